import { badRequest, PublicError, validationError } from '../platform/http/errors.ts';
import { defaultJsonLimits, readJson } from '../platform/http/json-text.ts';
import type { PageRequest } from '../platform/http/route.ts';

/** Members of a JSON object. */
export type Fields = Readonly<Record<string, unknown>>;

/** What another site has a browser send without asking first is none of this type (Fetch Standard, CORS). */
const jsonType = /^application\/json\s*(?:;|$)/i;

/** What a page of the sandbox posts. Throws a PublicError for anything but a JSON object. */
export function readFields({ body, header }: PageRequest): Fields {
  if (!jsonType.test(header('content-type') ?? ''))
    throw new PublicError(badRequest, 'The Content-Type must be application/json.');
  const reading = readJson(body, body.toString('utf8'), defaultJsonLimits);
  if (reading.kind === 'malformed') throw new PublicError(badRequest, `${reading.problem}.`);
  const { value, issues } = reading;
  if (issues.length > 0) throw new PublicError(validationError, issues.join(', '));
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new PublicError(badRequest, 'The body is no object.');
  return { ...value };
}
