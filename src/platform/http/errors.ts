import { showKey } from './json-text.ts';

/** An error that clients may see: part of the public interface, listed in the documentation of its routes. */
export type ErrorDefinition = { readonly statusCode: number; readonly name: string; readonly when: string };

export function defineError<Name extends string>(
  statusCode: number,
  name: Name,
  when: string,
): ErrorDefinition & { name: Name } {
  return { statusCode, name, when };
}

export const badRequest = defineError(
  400,
  'bad_request',
  'The request is malformed or breaks a rule of the account.',
);
export const unauthorized = defineError(
  401,
  'unauthorized',
  'The API key is missing, invalid, expired or revoked.',
);
export const forbidden = defineError(403, 'forbidden', 'The API key lacks the permission for this action.');
export const notFound = defineError(404, 'not_found', 'The resource does not exist.');
export const requestTimeout = defineError(
  408,
  'request_timeout',
  'The request took too long to arrive; send it again, on a new connection.',
);
export const conflict = defineError(409, 'conflict', 'The request conflicts with the current state.');
export const payloadTooLarge = defineError(413, 'payload_too_large', 'The body exceeds the size limit.');
export const validationError = defineError(422, 'validation_error', 'The request failed validation.');
export const storageLimitReached = defineError(
  422,
  'storage_limit_reached',
  'The organization stores as much as its plan allows; delete something, or have the limit raised.',
);
export const rateLimitExceeded = defineError(
  429,
  'rate_limit_exceeded',
  'Too many requests in the 60-second window; wait for the seconds in `retry-after`.',
);
export const internalServerError = defineError(
  500,
  'internal_server_error',
  'Something unexpected went wrong.',
);
export const serviceUnavailable = defineError(
  503,
  'service_unavailable',
  'The service is overloaded or temporarily unavailable; try again after the seconds in `retry-after`.',
);

/** Thrown where a request ends in an error; the server writes it as the envelope and as nothing else. */
export class PublicError extends Error {
  override readonly name = 'PublicError';
  readonly definition: ErrorDefinition;
  readonly headers: Readonly<Record<string, string>>;

  /** `message` tells the client what to do next and must not hold anything internal. */
  constructor(definition: ErrorDefinition, message: string, headers: Readonly<Record<string, string>> = {}) {
    super(message);
    this.definition = definition;
    this.headers = headers;
  }
}

export type ErrorEnvelope = { status_code: number; name: string; message: string };

export function toEnvelope(error: PublicError): ErrorEnvelope {
  return { status_code: error.definition.statusCode, name: error.definition.name, message: error.message };
}

/** One sentence for an id that is unknown, malformed or another organization's: the three must look the same. */
export function resourceNotFound(): PublicError {
  return new PublicError(notFound, 'The requested resource does not exist.');
}

/**
 * For an id in a body that names nothing: which field, what it should have named, and the id as it was given. Ids that
 * are unknown, malformed or another organization's get the same sentence.
 */
export function referenceNotFound(field: string, kind: string, id: string): PublicError {
  return new PublicError(notFound, `${field} is not a ${kind} of this organization: ${showKey(id)}`);
}

/** A client that is refused because there is no room should come back soon, but not at once. */
export function overloaded(message: string): PublicError {
  return new PublicError(serviceUnavailable, message, { 'retry-after': '1' });
}
