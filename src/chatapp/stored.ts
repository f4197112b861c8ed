import type { TemplateCategory, TemplateContent, TemplateParameters } from '../channels/chatapp/template.ts';
import type { Values } from '../channels/placeholders.ts';
import type { StoredLabels } from '../messages/messages.ts';

/** Details of a chat-app message that the API shows, also once its content was erased. */
export type StoredChatAppDetails = StoredLabels & {
  /** Of the contact that the request named; gone once it was erased. */
  contact_id?: string;
  /** The name of the template, and its language. */
  template: string;
  language: string;
};

/** What a chat-app message says. For a campaign, the parameters before placeholders are filled for each contact. */
export type StoredChatAppContent = {
  template_id: string;
  category: TemplateCategory;
  /** Without the code of an authentication template, which is sealed beside the message. */
  parameters: TemplateParameters;
  defaults?: Values;
  /** Of a campaign: what the template said when it was queued. What is sent is what it says at the hand-off. */
  template?: TemplateContent;
};
