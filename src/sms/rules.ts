import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import type { SmsSendBody } from './schema.ts';
import { compileSms, fillSms, smsLengthMax } from '../channels/sms/sms.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const smsRules: Record<'sms-length', FieldRule> = {
  'sms-length': defineRule<SmsSendBody>(({ body, variables = {} }) =>
    body === undefined || fillSms(compileSms(body), variables) !== null
      ? []
      : [`body must have 1 to ${smsLengthMax} characters with its variables replaced, and not only blanks`],
  ),
};
