import { type Static, Type } from 'typebox';
import type { AcceptOutcome } from '../platform/http/acceptance.ts';
import { PublicError, toEnvelope, validationError } from '../platform/http/errors.ts';
import type { Schema } from '../platform/http/openapi.ts';
import { readIdempotencyKey, type StoredResponse } from '../platform/http/idempotency.ts';
import { canonicalJson } from '../platform/http/json-text.ts';
import { literals, itemError, itemIndex } from '../platform/http/shapes.ts';
import type { RuleFacts, Validator } from '../platform/http/validation.ts';
import { sha256 } from '../platform/secrets.ts';
import type { Prepared } from './submission.ts';

/**
 * Up to 500 messages of one channel in one request, which are stored in one transaction. Each is judged as if it had come
 * by itself, and has a result of its own, in their order; either those that are refused are left out, or the first of them
 * refuses all.
 */

export const batchItemsMax = 500;

/** As one email may have. */
export const batchBytesMax = 30 * 1_048_576;

/** Whom the messages of a batch may reach together: 500 emails to as many as each may have. */
export const batchRecipientsMax = 25_000;

/** How many messages count as one request. */
const itemsPerRequest = 10;

const refusing = ['refuse_all', 'skip'] as const;

/** Body of a batch; `item` is the title of what describes one of its messages. */
export const batchBody = (title: string, field: BatchField, item: string) =>
  Type.Object(
    {
      [field]: Type.Array(Type.Unsafe<unknown>({ title: item }), { minItems: 1, maxItems: batchItemsMax }),
      on_error: Type.Optional(
        literals(refusing, {
          description:
            'What is done where a message is refused: nothing is stored, and the answer is the error of the first such ' +
            'message (`refuse_all`, unless this is given), or the others are stored (`skip`).',
        }),
      ),
    },
    { title, additionalProperties: false },
  );

/** What a batch calls its messages. */
export type BatchField = 'emails' | 'messages';

/** As `batchBody` has let it through. */
export type BatchBody = { on_error?: (typeof refusing)[number] } & Partial<
  Record<BatchField, readonly unknown[]>
>;

/** What describes one message of a batch in the description of the API: the body of a single one, and a key. */
export function describeBatchItem(single: {
  type: string;
  required?: readonly string[] | undefined;
  properties: object;
}): Schema {
  const { type, required, properties } = single;
  return {
    type,
    ...(required !== undefined && { required }),
    properties: {
      ...properties,
      idempotency_key: {
        type: 'string',
        minLength: 1,
        maxLength: 256,
        description: 'As the header `Idempotency-Key` of a request that sends this message alone.',
      },
    },
    additionalProperties: false,
    description: 'One message; its own result, or the error of the batch, tells what is wrong with it.',
  };
}

const names = (description: string) => Type.Optional(Type.Array(Type.String(), { description }));

export const batchRecord = Type.Object(
  {
    object: Type.Literal('batch'),
    data: Type.Array(
      Type.Union([
        Type.Object(
          {
            index: itemIndex,
            id: Type.String({ format: 'uuid' }),
            missing_variables: names('As `postillion-missing-variables` tells them of a single message.'),
            warnings: names('As `postillion-warnings` tells them of a single message.'),
          },
          { title: 'BatchedMessage' },
        ),
        Type.Object(
          {
            index: itemIndex,
            error: itemError,
          },
          { title: 'RefusedMessage' },
        ),
      ]),
      { description: 'What became of each message, in their order.' },
    ),
  },
  { title: 'MessageBatch' },
);

type BatchRecord = Static<typeof batchRecord>;

/** The key of one message, and the SHA-256 of the canonical JSON of the rest of its body. */
export type ItemKey = { key: string; bodyDigest: Uint8Array };

/** One message of a batch as it came, as far as its schema and rules tell. It can be sent between threads. */
export type ReadItem<Body> =
  | { kind: 'read'; body: Body; key: ItemKey | null }
  | { kind: 'invalid'; issues: readonly string[] }
  | { kind: 'bad_key'; message: string };

/** Reads each message by itself, by the validator of a single one. */
export function readBatchItems<Body>(
  items: readonly unknown[],
  validate: Validator,
  facts: RuleFacts,
): ReadItem<Body>[] {
  return items.map((item) => readItem(item, validate, facts));
}

function readItem<Body>(item: unknown, validate: Validator, facts: RuleFacts): ReadItem<Body> {
  if (typeof item !== 'object' || item === null || Array.isArray(item)) {
    return { kind: 'invalid', issues: validate(item, facts) };
  }
  const { idempotency_key: key = null, ...body } = item as { idempotency_key?: unknown };
  const keyIssues = key === null || typeof key === 'string' ? [] : ['idempotency_key must be a string'];
  // Before validation, which may replace Base64 text by its bytes.
  const bodyDigest = typeof key === 'string' ? new Uint8Array(sha256(canonicalJson(body))) : null;
  const issues = [...validate(body, facts), ...keyIssues];
  if (issues.length > 0) return { kind: 'invalid', issues };
  try {
    const read = typeof key === 'string' ? readIdempotencyKey(key) : null;
    return {
      kind: 'read',
      body: body as Body, // Its schema has checked it.
      key: read === null || bodyDigest === null ? null : { key: read, bodyDigest },
    };
  } catch (cause) {
    if (!(cause instanceof PublicError)) throw cause;
    return { kind: 'bad_key', message: cause.message };
  }
}

/** One message of a batch, ready to be stored, or refused. */
export type BatchItem = {
  prepared: Prepared;
  key: ItemKey | null;
  /** As that of a single message: needed where `prepared` has a `templateVersion`. */
  prepareAnew?: (() => Promise<Prepared>) | null;
};

export function countBatchRequests(items: number): number {
  return Math.ceil(items / itemsPerRequest);
}

/** Two messages with one key would be one and the same: the later one is refused. */
export function refuseRepeatedKeys(items: readonly BatchItem[], field: BatchField): BatchItem[] {
  const firsts = new Map<string, number>();
  return items.map((item, place) => {
    const first = item.key === null ? undefined : firsts.get(item.key.key);
    if (item.key !== null && first === undefined) firsts.set(item.key.key, place);
    if (first === undefined) return item;
    const issue = `idempotency_key must not be that of ${field}[${first}]`;
    return { prepared: new PublicError(validationError, issue), key: null };
  });
}

/** The first that is refused, as the error of the whole batch; null if none is. */
export function findBatchRefusal(outcomes: readonly AcceptOutcome[], field: BatchField): PublicError | null {
  for (const [place, outcome] of outcomes.entries()) {
    if (outcome.kind !== 'refused') continue;
    const { definition, message, headers } = outcome.error;
    return new PublicError(definition, `${field}[${place}]: ${message}`, headers);
  }
  return null;
}

/** Says also what is likely a mistake in a message, which a single one has in headers. */
export function respondToBatch(
  outcomes: readonly AcceptOutcome[],
  hintsOf: (place: number) => { missingVariables: readonly string[]; warnings: readonly string[] },
): StoredResponse {
  const data = outcomes.map((outcome, place): BatchRecord['data'][number] => {
    if (outcome.kind === 'refused') return { index: place, error: toEnvelope(outcome.error) };
    const { id } = JSON.parse(outcome.response.text) as { id: string }; // As the acceptance of one message wrote it.
    const { missingVariables, warnings } = hintsOf(place);
    return {
      index: place,
      id,
      ...(missingVariables.length > 0 && { missing_variables: [...missingVariables] }),
      ...(warnings.length > 0 && { warnings: [...warnings] }),
    };
  });
  const record: BatchRecord = { object: 'batch', data };
  return { statusCode: 202, text: JSON.stringify(record), headers: {} };
}
