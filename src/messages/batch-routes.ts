import type { TObject } from 'typebox';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import {
  badRequest,
  type ErrorDefinition,
  payloadTooLarge,
  PublicError,
  validationError,
} from '../platform/http/errors.ts';
import { idempotencyErrors, invalidIdempotencyKey } from '../platform/http/idempotency.ts';
import { defineRoute, type Route } from '../platform/http/route.ts';
import {
  createValidation,
  type FieldRule,
  type RuleFacts,
  type TextFormat,
  type Validator,
} from '../platform/http/validation.ts';
import type { Acceptor } from './accept.ts';
import {
  batchBody,
  type BatchBody,
  batchBytesMax,
  type BatchField,
  type BatchItem,
  batchItemsMax,
  batchRecipientsMax,
  batchRecord,
  countBatchRequests,
  type ReadItem,
  readBatchItems,
} from './batch.ts';
import type { Prepared } from './submission.ts';

/** Reads the messages of a batch; large bodies are read in their thread. */
export type BatchReader<Body> = (items: readonly unknown[], facts: RuleFacts) => ReadItem<Body>[];

/** By the schema of a single message, with the formats and rules that it names. */
export function createBatchReader<Body>(
  formats: Readonly<Record<string, TextFormat>>,
  rules: Readonly<Record<string, FieldRule>>,
  schema: TObject,
): BatchReader<Body> {
  let validator: Validator | null = null;
  return (items, facts) =>
    readBatchItems(items, (validator ??= createValidation(formats, rules).compile(schema)), facts);
}

/** A message that is ready to be stored, or the error of the rule that it breaks. */
export type PreparedItem = Pick<BatchItem, 'prepared' | 'prepareAnew'>;

export type BatchRouteInput<Body> = {
  /** Of a single message, below `/v1`. */
  path: `/${string}/send`;
  operationId: string;
  scope: string;
  tag: string;
  /** What they are, in the plural. */
  noun: string;
  field: BatchField;
  /** Titles of the schemas of the body and of one message in it. */
  titles: { body: string; item: string };
  errors: readonly ErrorDefinition[];
  read: BatchReader<Body>;
  /** All of them, in their order. */
  prepare: (organizationId: string, bodies: readonly Body[]) => Promise<PreparedItem[]>;
};

/** The batch of what a route of a channel sends one by one. */
export function batchRoute<Body>(
  { acceptor }: { acceptor: Acceptor },
  { path, operationId, scope, tag, noun, field, titles, errors, read, prepare }: BatchRouteInput<Body>,
): Route {
  const itemsOf = (body: unknown) => (body as BatchBody)[field] ?? [];
  return defineRoute({
    method: 'POST',
    path: `${path}/batch`,
    operationId,
    scope,
    tag,
    summary: `Send up to ${batchItemsMax} ${noun}`,
    description:
      'Each as if it were sent by itself, in their order, and all of them stored in one transaction before the answer is ' +
      'given. If one is refused, nothing is stored and the answer is its error, which begins with its place; with ' +
      '`on_error: skip` the others are stored, and each has its result. An `idempotency_key` in a message is the ' +
      '`Idempotency-Key` of a request that sends it alone; the header is the key of the whole. Ten of them count as one ' +
      'request towards the limit of requests.',
    body: batchBody(titles.body, field, titles.item),
    bodyBytesMax: batchBytesMax,
    isIdempotent: true,
    countRequests: ({ body, prepared }) =>
      countBatchRequests((prepared === null ? itemsOf(body) : readItemsOf(prepared)).length),
    success: { statusCode: 202, schema: batchRecord, when: 'What became of each of them, in their order.' },
    errors: [...errors, payloadTooLarge, ...idempotencyErrors],
    handle: async ({ caller, body, prepared: fromThread, facts, idempotencyKey, traceId }) => {
      const { organizationId } = caller;
      const given = fromThread === null ? read(itemsOf(body), facts) : readItemsOf<Body>(fromThread);
      const onError = fromThread === null ? (body as BatchBody).on_error : onErrorOf(fromThread);
      const bodies = given.flatMap((item) => (item.kind === 'read' ? [item.body] : []));
      const prepared = await prepare(organizationId, bodies);
      refuseTooMany(prepared);
      const ready = prepared.values();
      const items = given.map((item): BatchItem => {
        if (item.kind !== 'read') return { prepared: refuse(item), key: null };
        const { value } = ready.next();
        if (value === undefined) throw new Error('a message of a batch was not prepared');
        return { ...value, key: item.key };
      });
      const outcome = await acceptor.acceptBatch({
        organizationId,
        endpoint: `POST ${path}`,
        field,
        onError: onError ?? 'refuse_all',
        items,
        idempotencyKey,
        traceId,
      });
      return toRouteResponse(outcome);
    },
  });
}

/** A push goes to each device of a contact, so that few messages may be for very many. */
function refuseTooMany(items: readonly PreparedItem[]): void {
  const recipients = items.reduce(
    (sum, { prepared }) => sum + (prepared instanceof PublicError ? 0 : prepared.recipients.length),
    0,
  );
  if (recipients > batchRecipientsMax)
    throw new PublicError(
      badRequest,
      `The messages of a batch may have ${batchRecipientsMax} recipients or devices together, and these have ${recipients}. Send fewer at once.`,
    );
}

function refuse(item: Exclude<ReadItem<unknown>, { kind: 'read' }>): Prepared {
  return item.kind === 'invalid'
    ? new PublicError(validationError, item.issues.join(', '))
    : new PublicError(invalidIdempotencyKey, item.message);
}

/** What the thread for large bodies makes of a batch. */
export type ReadBatch<Body> = { items: ReadItem<Body>[]; onError: BatchBody['on_error'] };

/** For the thread: `read` as the route has it. */
export function prepareLargeBatch<Body>(
  field: BatchField,
  read: BatchReader<Body>,
): (body: unknown, facts: RuleFacts) => ReadBatch<Body> {
  return (body, facts) => ({
    items: read((body as BatchBody)[field] ?? [], facts), // The route's schema has checked it.
    onError: (body as BatchBody).on_error,
  });
}

function readItemsOf<Body>(prepared: unknown): ReadItem<Body>[] {
  return (prepared as ReadBatch<Body>).items; // As `prepareLargeBatch` made it.
}

function onErrorOf(prepared: unknown): BatchBody['on_error'] {
  return (prepared as ReadBatch<unknown>).onError;
}
