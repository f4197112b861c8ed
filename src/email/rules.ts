import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import type { EmailSendBody } from './schema.ts';
import {
  findContentIdIssues,
  findInvitationIssues,
  findNamedHeaderIssues,
  findNameIssues,
  findSourceConflict,
  findSourceIssues,
} from './send.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const emailRules: Record<'email-fields' | 'email-source' | 'email-campaign', FieldRule> = {
  'email-fields': defineRule<EmailSendBody>((fields, isGiven) => [
    ...findNameIssues(fields, isGiven),
    ...findNamedHeaderIssues(fields),
    ...findContentIdIssues(fields),
    ...findInvitationIssues(fields),
  ]),
  // The numbers of recipients come first.
  'email-source': defineRule<EmailSendBody>((_fields, isGiven) => findSourceIssues(isGiven), {
    isLeftToRoute: true,
  }),
  // A campaign that is there has content as well, beside which a change has to fit.
  'email-campaign': defineRule<Record<string, unknown>>((_fields, isGiven) => findSourceConflict(isGiven), {
    isLeftToRoute: true,
  }),
};
