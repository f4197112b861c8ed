/** What the rest of the program may know of messages of chat apps. */
export type {
  AccountExamination,
  ChatAppAccount,
  ChatAppProvider,
  ManagementDelay,
  ReviewedTemplate,
  SentTemplate,
  TemplateEdit,
  TemplateQuality,
  TemplateState,
  TemplateSubmission,
} from './provider.ts';
export { templateQualities, templateStates } from './provider.ts';
export {
  fillTemplate,
  findTemplateIssues,
  findValueProblem,
  listTemplateParameters,
  listTemplateTexts,
  listTemplateWarnings,
  type TemplateBubble,
  type TemplateButton,
  templateCategories,
  type TemplateCategory,
  type TemplateComponent,
  type TemplateContent,
} from './template.ts';
