/** What the rest of the program may know of messages of chat apps. */
export type {
  ChatAppAccount,
  ChatAppProvider,
  ManagementDelay,
  ReviewedTemplate,
  SentTemplate,
  TemplateQuality,
  TemplateState,
  TemplateSubmission,
} from './provider.ts';
export { templateQualities, templateStates } from './provider.ts';
export {
  listTemplateParameters,
  templateCategories,
  type TemplateCategory,
  type TemplateContent,
} from './template.ts';
