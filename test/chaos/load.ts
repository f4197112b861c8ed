import { setMaxListeners } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import type { Installation, Sender } from './installation.ts';
import type { Random } from './random.ts';

/**
 * Clients that send and repeat each request under its key, on every 503 and every broken connection, until it
 * is accepted. The responses are recorded, to be compared with what is stored and what was delivered.
 */
export type Ledger = {
  sends: Send[];
  answers: Map<string, number>;
  connectionsBroken: number;
  /** Requests that had no answer within the limit. */
  hangs: number;
  replies: Reply[];
};

/** One answer, such as `202` or `503 service_unavailable`, and when its request began and ended, in epoch milliseconds. */
export type Reply = { answer: string; beganAtMs: number; endedAtMs: number };

export type Send = {
  sender: Sender;
  key: string;
  recipients: string[];
  path: string;
  body: Readonly<Record<string, unknown>>;
  /** All that were given for the key: one, if all is well. */
  ids: Set<string>;
};

export type LoadPlan = {
  /** Names what is sent, so that two loads on one installation have nothing in common. */
  name: string;
  sends: number;
  clients: number;
  /** Says what is sent under that name. */
  draw: (name: string) => Send;
  /** As long as the faults last; afterwards as fast as the clients can. */
  perSecond: number;
};

export function createLedger(): Ledger {
  return { sends: [], answers: new Map(), connectionsBroken: 0, hangs: 0, replies: [] };
}

/** The event that each organization has defined. */
export const chaosEvent = 'chaos.happened';

const answerLimitMs = 30_000;
const retryPauseMs = 100;
/** Longer than any outage, if each refusal comes at once: a request that is refused for this long will be so for ever. */
const triesMax = 3_000;

/** Goes on until there were so many sends and the faults are over; resolves when everything was accepted. */
export async function runLoad(
  installation: Installation,
  ledger: Ledger,
  plan: LoadPlan,
  random: Random,
  faultsOver: AbortSignal,
): Promise<void> {
  let number = 0;
  const pauseMs = (1_000 * plan.clients) / plan.perSecond;
  setMaxListeners(plan.clients, faultsOver);
  const work = async () => {
    while (number < plan.sends || !faultsOver.aborted) {
      number += 1;
      const send = plan.draw(`${plan.name}-${number}`);
      ledger.sends.push(send);
      const isTwin = random.isLucky(0.03);
      const isRepeated = random.isLucky(0.05);
      const pause = delay(pauseMs * random.between(0.5, 1.5), undefined, { signal: faultsOver }).catch(
        ignore,
      );
      await Promise.all([
        sendUntilAccepted(installation, ledger, send),
        ...(isTwin ? [sendUntilAccepted(installation, ledger, send)] : []),
      ]);
      if (isRepeated) await sendUntilAccepted(installation, ledger, send);
      await pause;
    }
  };
  await Promise.all(Array.from({ length: plan.clients }, work));
}

/** A quarter are events, half of them of contacts whom nobody knows yet. */
export function drawEmailOrEvent(installation: Installation, name: string, random: Random): Send {
  if (!random.isLucky(0.25)) return drawEmail(installation, name, random);
  const contact = random.isLucky(0.5) ? name : `regular-${random.pick([1, 2, 3])}`;
  return {
    sender: random.pick(installation.senders),
    key: `key-${name}`,
    recipients: [],
    path: '/v1/events/send',
    body: { event: chaosEvent, email: `${contact}@example.com`, payload: { name } },
    ids: new Set(),
  };
}

/** One of every kind: 1, 5 and 50 recipients, with and without an attachment, and addresses with a fate. */
export function drawEmail({ senders, suppressed }: Installation, name: string, random: Random): Send {
  const count = random.pick([1, 1, 1, 1, 1, 1, 1, 1, 5, 5, 5, 50]);
  const addressOf = (index: number) => {
    const fate = random.between(0, 1);
    if (fate < 0.02) return `unknown-${name}-${index}@example.com`;
    if (fate < 0.04) return `later-${name}-${index}@example.com`;
    if (fate < 0.06) return suppressed[index % suppressed.length] ?? suppressed[0];
    return `r-${name}-${index}@example.com`;
  };
  const recipients = [...new Set(Array.from({ length: count }, (_none, index) => addressOf(index)))];
  return composeEmail(random.pick(senders), {
    key: `key-${name}`,
    recipients,
    hasAttachment: random.isLucky(0.1),
  });
}

/** The request that sends an email, with what is recorded of it. */
export function composeEmail(
  sender: Sender,
  email: { key: string; recipients: string[]; hasAttachment: boolean },
): Send {
  const { key, recipients, hasAttachment } = email;
  return {
    sender,
    key,
    recipients,
    path: '/v1/email/send',
    body: {
      from: `hello@${sender.domain}`,
      from_name: 'Chaos',
      to: recipients,
      subject: `Chaos ${key}`,
      text: `This is ${key}.`,
      ...(hasAttachment ? { attachments: [attachment] } : {}),
    },
    ids: new Set(),
  };
}

/** Twice at once, or again later, it must come to the same. */
export async function sendUntilAccepted(
  installation: Installation,
  ledger: Ledger,
  send: Send,
): Promise<void> {
  for (let attempt = 1; attempt <= triesMax; attempt += 1) {
    const outcome = await tryToSend(installation, ledger, send);
    if (outcome.kind === 'accepted') send.ids.add(outcome.id);
    if (outcome.kind !== 'again') return;
    await delay(retryPauseMs);
  }
}

type TryOutcome = { kind: 'accepted'; id: string } | { kind: 'refused' } | { kind: 'again' };

async function tryToSend(
  { apiUrl }: Installation,
  ledger: Ledger,
  { sender, key, path, body: sent }: Send,
): Promise<TryOutcome> {
  const beganAtMs = Date.now();
  try {
    const response = await fetch(`${apiUrl}${path}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${sender.key}`,
        'content-type': 'application/json',
        'idempotency-key': key,
      },
      body: JSON.stringify(sent),
      signal: AbortSignal.timeout(answerLimitMs),
    });
    const body = (await response.json()) as { id?: string; name?: string };
    const answer = response.status === 202 ? '202' : `${response.status} ${body.name ?? ''}`;
    ledger.answers.set(answer, (ledger.answers.get(answer) ?? 0) + 1);
    ledger.replies.push({ answer, beganAtMs, endedAtMs: Date.now() });
    if (response.status !== 202) return { kind: response.status < 500 ? 'refused' : 'again' };
    return { kind: 'accepted', id: body.id ?? '' };
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === 'TimeoutError') ledger.hangs += 1;
    else ledger.connectionsBroken += 1;
    return { kind: 'again' };
  }
}

const attachment = {
  filename: 'note.txt',
  content_type: 'text/plain',
  content: Buffer.from('A small attachment. '.repeat(100)).toString('base64'),
};

function ignore(): void {
  // The pause was cut short.
}
