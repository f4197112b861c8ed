import type { PublicError } from '../../platform/http/errors.ts';
import type { ShownAnswer } from '../../platform/http/wire.ts';

/**
 * Our errors by the codes of Postmark's documentation ("API error codes"): 10 for a wrong token, 405 where nothing more may be
 * sent, 1101 for a template that is not there, and 300 for whatever else is wrong with an email.
 */
const codes: Readonly<Record<string, number>> = {
  unauthorized: 10,
  forbidden: 10,
  monthly_quota_exceeded: 405,
  sending_suspended: 412,
  not_found: 1101,
  rate_limit_exceeded: 429,
  internal_server_error: 500,
  service_unavailable: 503,
};

export function codeOf(name: string): number {
  return codes[name] ?? 300;
}

/** The statuses for which its SDK has errors of their own; to all others, the request is wrong. */
const statuses = new Set([401, 404, 413, 422, 429, 500, 503]);

export function showError({ definition: { statusCode, name }, message }: PublicError): ShownAnswer {
  return {
    statusCode: statuses.has(statusCode) ? statusCode : 422,
    body: { ErrorCode: codeOf(name), Message: message },
  };
}
