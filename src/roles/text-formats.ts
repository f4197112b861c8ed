import { audienceFormats } from '../audience/audience.ts';
import { deviceFormats } from '../devices/devices.ts';
import { domainFormats } from '../domains/domains.ts';
import { emailFormats } from '../email/email.ts';
import { pushFormats } from '../push/push.ts';
import { paginationFormats } from '../platform/http/pagination.ts';
import { requestLogFormats } from '../request-log/request-log.ts';
import { templateFormats } from '../templates/templates.ts';
import { webhookFormats } from '../webhooks/webhooks.ts';
import type { TextFormat } from '../platform/http/validation.ts';

/** Every text format that a schema of any room may name. */
export const textFormats: Readonly<Record<string, TextFormat>> = {
  ...paginationFormats,
  ...audienceFormats,
  ...deviceFormats,
  ...domainFormats,
  ...emailFormats,
  ...pushFormats,
  ...requestLogFormats,
  ...templateFormats,
  ...webhookFormats,
};
