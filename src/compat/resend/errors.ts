import type { PublicError } from '../../platform/http/errors.ts';
import type { ShownAnswer } from '../../platform/http/wire.ts';

/**
 * Our errors by the names that Resend's SDK declares (`RESEND_ERROR_CODE_KEY`). Those that both have are left out, and so are
 * those for which there is nothing better than its `validation_error`.
 */
const names: Readonly<Record<string, string>> = {
  unauthorized: 'invalid_api_key',
  forbidden: 'restricted_api_key',
  not_found: 'not_found',
  rate_limit_exceeded: 'rate_limit_exceeded',
  monthly_quota_exceeded: 'monthly_quota_exceeded',
  invalid_idempotency_key: 'invalid_idempotency_key',
  invalid_idempotent_request: 'invalid_idempotent_request',
  concurrent_idempotent_requests: 'concurrent_idempotent_requests',
  attachment_rejected: 'invalid_attachment',
  sending_suspended: 'invalid_access',
  internal_server_error: 'internal_server_error',
  service_unavailable: 'application_error',
  request_timeout: 'application_error',
};

/** With our status and our sentence. */
export function showError({ definition: { statusCode, name }, message }: PublicError): ShownAnswer {
  return { statusCode, body: { statusCode, name: names[name] ?? 'validation_error', message } };
}
