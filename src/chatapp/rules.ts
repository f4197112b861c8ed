import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import type { ChatAppSendBody } from './schema.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const chatAppRules: Record<'chatapp-template', FieldRule> = {
  'chatapp-template': defineRule<ChatAppSendBody>((_fields, isGiven) => {
    const isAlone = isGiven('template_id') && !isGiven('template') && !isGiven('language');
    const isNamed = !isGiven('template_id') && isGiven('template') && isGiven('language');
    return isAlone || isNamed
      ? []
      : ['template_id must be given alone, or else template together with language'];
  }),
};
