import type { FastifyInstance, FastifyReply } from 'fastify';
import { STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Log } from '../log.ts';
import {
  DatabaseUnavailableError,
  isConflict,
  isStatementTimeout,
  OrganizationDeletedError,
} from '../postgres/database.ts';
import {
  badRequest,
  internalServerError,
  overloaded,
  PublicError,
  requestTimeout,
  resourceNotFound,
  serviceUnavailable,
  toEnvelope,
  unauthorized,
} from './errors.ts';

/**
 * What goes wrong, as the client reads it: always the error envelope, also where no request could be parsed, or that of the
 * service for which the client was written.
 */

export function sendError(reply: FastifyReply, error: PublicError): void {
  reply.request.errorName = error.definition.name;
  reply.request.errorMessage = error.message;
  const { peer = reply.request.routeOptions.config.wire?.peer } = reply.request.routeOptions.config;
  const { statusCode, body } = peer?.showError(error) ?? {
    statusCode: error.definition.statusCode,
    body: toEnvelope(error),
  };
  void reply
    .code(statusCode)
    .headers(error.headers)
    .header('content-type', 'application/json; charset=utf-8')
    .send(JSON.stringify(body));
}

export function toPublicError(cause: unknown, request: { id: string }, log: Log): PublicError {
  if (cause instanceof PublicError) return cause;
  if (cause instanceof DatabaseUnavailableError) {
    log.warn({ request_id: request.id, err: cause }, 'database unavailable');
    return new PublicError(
      serviceUnavailable,
      'The service is temporarily unavailable. Try again in a moment.',
      {
        'retry-after': '1',
      },
    );
  }
  // Its key was looked at before that.
  if (cause instanceof OrganizationDeletedError)
    return new PublicError(unauthorized, 'The organization of this API key is being deleted.');
  if (isConflict(cause) || isStatementTimeout(cause)) {
    log.warn({ request_id: request.id, err: cause }, 'a request stood in the way of others');
    return overloaded('Another request is changing the same data at the moment. Try again in a moment.');
  }
  if (
    cause instanceof Error &&
    'statusCode' in cause &&
    typeof cause.statusCode === 'number' &&
    cause.statusCode < 500
  ) {
    return mapFrameworkError(cause);
  }
  log.error({ request_id: request.id, err: cause }, 'request failed');
  return new PublicError(
    internalServerError,
    'Something went wrong on our side. The request id helps us to find it.',
  );
}

/** Fastify's own refusals (a URL that cannot be decoded, a length that does not fit): 400, without its words. */
export function mapFrameworkError(cause: Error): PublicError {
  const code = 'code' in cause ? cause.code : undefined;
  if (code === 'FST_ERR_BAD_URL') return resourceNotFound();
  return new PublicError(badRequest, 'The request is malformed.');
}

/** How long a client that is refused before its request was read may take to read the answer. */
const lingerMs = 2_000;

/**
 * Requests that Node.js's parser gives up on. Headers that are too large cannot hold a key of ours, so that they
 * are answered like any other wrong key. What is still arriving is dropped for a while: a connection that is reset
 * at once takes the answer with it.
 */
export function answerUnparsable(
  this: FastifyInstance,
  cause: Error & { code?: string },
  socket: Socket,
): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  const error = errorOfUnparsable(cause.code);
  const body = JSON.stringify(toEnvelope(error));
  const { statusCode } = error.definition;
  const status = `${statusCode} ${STATUS_CODES[statusCode] ?? ''}`;
  socket.removeAllListeners('data');
  socket.on('data', () => undefined);
  socket.resume();
  socket.end(
    `HTTP/1.1 ${status}\r\ncontent-type: application/json; charset=utf-8\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nx-request-id: unparsed\r\nx-content-type-options: nosniff\r\n` +
      `cache-control: no-store\r\nconnection: close\r\n\r\n${body}`,
  );
  setTimeout(() => socket.destroy(), lingerMs).unref();
}

function errorOfUnparsable(code: string | undefined): PublicError {
  if (code === 'HPE_HEADER_OVERFLOW') {
    return new PublicError(unauthorized, 'The request headers are too large to hold a valid API key.');
  }
  return code === 'ERR_HTTP_REQUEST_TIMEOUT'
    ? new PublicError(requestTimeout, requestTimeout.when)
    : new PublicError(badRequest, 'The request is not valid HTTP.');
}

export function wrongContentType(): PublicError {
  return new PublicError(badRequest, 'The Content-Type must be application/json.');
}
