import type { EmailSending } from '../email/email.ts';
import { type TaskRunner, largeBodyBytesMin, ownBytes } from '../platform/http/body-threads.ts';
import { tooManyRequests } from '../platform/http/admission.ts';
import { invalidIdempotentRequest, type ScopedKey, toScopedKey } from '../platform/http/idempotency.ts';
import { PublicError } from '../platform/http/errors.ts';
import type { Caller } from '../platform/http/route.ts';
import { storageIsFull } from '../platform/http/route-handler.ts';
import type { LentShares } from '../platform/http/server.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Secrets } from '../platform/secrets.ts';
import { headLengthOf } from './header-fields.ts';
import { type Message, readMessage, readMessageTask, type ReadMessage } from './reading.ts';

/**
 * A message that has come in whole is accepted as an email of `POST /email/send` is: by the same checks, in the same order,
 * and stored before it is answered.
 */

export type AcceptingTools = {
  clock: Clock;
  sending: EmailSending;
  runner: TaskRunner;
  secrets: Pick<Secrets, 'keyedHash'>;
  isKeyUsed: (key: Omit<ScopedKey, 'fingerprint'>) => Promise<boolean>;
  lent: LentShares;
};

/** What is known of it afterwards, also if it was refused. */
export type Accepted = {
  /** The message that was stored, or had been before. */
  id: string | null;
  error: unknown;
  key: string | null;
  isReplay: boolean;
  shownBody: string | null;
};

export type ArrivedMessage = { blocks: readonly Buffer[]; length: number; recipients: readonly string[] };

/** Those of requests. A key of the option is one of theirs, so that a program may go over from one way to the other. */
const keysOfRequests = 'POST /email/send';
const keysOfMessageIds = 'SMTP Message-ID';

/** Never rejects. */
export async function acceptMessage(
  tools: AcceptingTools,
  caller: Caller,
  message: ArrivedMessage,
): Promise<Accepted> {
  const accepted: Accepted = { id: null, error: null, key: null, isReplay: false, shownBody: null };
  const place = tools.lent.places.take(caller.organizationId, 1);
  try {
    if (place === null) throw tooManyRequests();
    const read = await readInTurn(tools, message);
    accepted.shownBody = read.shownBody;
    if (read.kind === 'refused') throw new PublicError(read.definition, read.message);
    accepted.key = read.key?.shown ?? null;
    const idempotencyKey = scopeKey(tools, caller, read);
    await refuseIfFull(tools, caller, idempotencyKey);
    const { organizationId } = caller;
    const outcome = await tools.sending.send({ organizationId, idempotencyKey }, read.item, null);
    if (outcome.kind === 'refused') throw inItsWords(outcome.error, read);
    accepted.id = readId(outcome.response.text);
    accepted.isReplay = outcome.isReplay;
  } catch (cause) {
    accepted.error = cause;
  } finally {
    place?.release();
  }
  return accepted;
}

/** A header may be long in few octets, too: what takes more than some milliseconds has a thread. */
const headBytesMax = 16_384;

async function readInTurn(
  { clock, runner }: AcceptingTools,
  { blocks, length, recipients }: ArrivedMessage,
): Promise<ReadMessage> {
  const at = now(clock);
  const small = length < largeBodyBytesMin ? Buffer.concat(blocks) : null;
  if (small !== null && headLengthOf(small) <= headBytesMax)
    return readMessage({ source: small, recipients, at });
  const sources = blocks.map(ownBytes);
  const message: Omit<Message, 'source'> = { recipients, at };
  return runner.run(
    readMessageTask,
    { ...message, source: sources },
    sources.map(({ buffer }) => buffer),
  );
}

function scopeKey(
  { secrets }: AcceptingTools,
  { organizationId }: Caller,
  { key }: Extract<ReadMessage, { kind: 'read' }>,
): ScopedKey | null {
  if (key === null) return null;
  const endpoint = key.by === 'option' ? keysOfRequests : keysOfMessageIds;
  const { key: text, bodyDigest } = key;
  return toScopedKey(secrets, { organizationId, endpoint, key: text, params: {}, bodyDigest });
}

/** What was accepted before is answered as it was then. */
async function refuseIfFull(
  { isKeyUsed }: AcceptingTools,
  { fullStorage }: Caller,
  key: ScopedKey | null,
): Promise<void> {
  if (!fullStorage || (key !== null && (await isKeyUsed(key)))) return;
  throw storageIsFull(fullStorage);
}

/** Who gave no key is not told of one. */
function inItsWords(error: PublicError, { key }: Extract<ReadMessage, { kind: 'read' }>): PublicError {
  return error.definition === invalidIdempotentRequest && key?.by === 'message_id'
    ? new PublicError(
        invalidIdempotentRequest,
        'The Message-ID was used with a different message to the same recipients. Give each message its own.',
      )
    : error;
}

function readId(text: string): string {
  const { id } = JSON.parse(text) as { id: string }; // As `acceptedResponse` writes it.
  return id;
}
