import { setMaxListeners } from 'node:events';
import { Agent, get } from 'node:http';
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { postWebhook } from '../support/graph.ts';
import type { FromNeighbour, Line, NeighbourTarget, ToNeighbour } from './neighbour.ts';

/**
 * An organization, and strangers with it, that do at once whatever is dear to everybody else: `neighbour-process.ts
 * LOGFILE TARGET`, of which the latter is JSON. It prepares, says that it is ready, attacks when it is told to, and at
 * the end tells what it was answered. Every loop ends with the attack, and its requests have a rate.
 */
const [, targetJson = ''] = process.argv.slice(2);
/** Its own, since conditions ask about fields that are declared. */
const dearEvent = 'neighbour.happened';
const target = JSON.parse(targetJson) as NeighbourTarget;
const { apiUrl, key } = target;
const { port } = new URL(apiUrl);
const attack = new AbortController();
// Every loop and socket listens to it.
setMaxListeners(0, attack.signal);
const sockets = new Set<Socket>();
const answers = new Map<string, number>();

process.on('disconnect', () => process.exit(0));
process.on('message', ({ order }: { order: ToNeighbour }) => {
  if (order === 'attack') void attackUntilStopped();
  else attack.abort();
});

async function attackUntilStopped(): Promise<void> {
  tell('attacking');
  const attacks = [
    ...Array.from({ length: unreadSockets }, (_none, index) => leaveAnswersUnread(index)),
    askForPages(),
    ...Array.from({ length: eventReaders }, readEvents),
    ...Array.from({ length: strangers }, (_none, index) => declareMuch(index)),
    ...Array.from({ length: segmentsCount }, (_none, index) => computeSegments(index)),
    floodReports(),
  ];
  await Promise.all(attacks);
  for (const socket of sockets) socket.destroy();
  tell({ stopped: [...answers].sort().map(([what, count]): Line => ({ what, count })) });
}

/** Requests of which no answer is ever read, and then again on a new connection. */
const unreadSockets = 10;
const pipelinedRequests = 300;
const unreadForMs = 5_000;

/** Uncompressed, the largest of the documentation's pages and the description of the API. */
async function leaveAnswersUnread(index: number): Promise<void> {
  const page = index % 2 === 0 ? '/docs/segments' : '/openapi.json';
  const request = `GET ${page} HTTP/1.1\r\nhost: neighbour\r\n\r\n`;
  while (!attack.signal.aborted) {
    const socket = open(`127.0.1.${index + 1}`);
    socket.write(request.repeat(pipelinedRequests));
    // Who does not read does not notice either that the connection is ended.
    await pause(unreadForMs);
    socket.destroy();
    count('answers left unread');
  }
}

/** From one address, as often as somebody with a script would: the largest page as it is sent by Brotli, among them. */
const pagesPerSecond = 80;

async function askForPages(): Promise<void> {
  for (let number = 0; !attack.signal.aborted; number += 1) {
    void drain(number % 2 === 0 ? '/docs/guides/operating' : '/openapi.json', {}, 'page');
    await pause(1_000 / pagesPerSecond);
  }
}

const eventReaders = 10;

async function readEvents(): Promise<void> {
  while (!attack.signal.aborted) {
    await drain(`/v1/contacts/${contactId}/events?limit=100`, withKey.headers, 'page of events');
    await pause(minimumPauseMs);
  }
}

/** One octet of a body that is said to be three megabytes, from as many networks. */
const strangers = 45;
const connectAgainMs = 1_000;

async function declareMuch(index: number): Promise<void> {
  while (!attack.signal.aborted) {
    const socket = open(`127.0.${10 + index}.1`);
    socket.write(
      `POST ${new URL(target.strangersUrl).pathname} HTTP/1.1\r\nhost: neighbour\r\ncontent-type: application/json\r\ncontent-length: 3000000\r\n\r\n{`,
    );
    // What comes is read, so that the end is noticed.
    socket.resume();
    await untilClosed(socket);
    count('declared length: connection ended');
    await pause(connectAgainMs);
  }
}

/** Ninety questions about events each, asked anew all the time. */
const segmentsCount = 3;
const conditionsOfEach = 90;
const changeEveryMs = 5_000;

async function computeSegments(index: number): Promise<void> {
  const conditionsOf = (round: number) => ({
    type: 'group',
    match: 'any',
    conditions: Array.from({ length: conditionsOfEach }, (_none, number) => ({
      type: 'event',
      event: dearEvent,
      count: { operator: 'gte', value: 1 + number },
      within: { value: 30, unit: 'day' },
      where: [{ field: 'name', operator: 'contains', value: `${round} ${number}` }],
    })),
  });
  const { body } = await ask(
    '/v1/segments',
    { ...withKey, body: { name: `Dear ${index}`, conditions: conditionsOf(0) } },
    'segment made',
  );
  const id = String(body.id);
  for (let round = 1; !attack.signal.aborted; round += 1) {
    await pause(changeEveryMs);
    await ask(
      `/v1/segments/${id}`,
      { ...withKey, method: 'PATCH', body: { conditions: conditionsOf(round) } },
      'segment changed',
    );
  }
}

/** Signed, and about messages that nobody knows. */
const reportsEveryMs = 10_000;
const reportsAtOnce = 4;
const statusesOfEach = 15_000;

async function floodReports(): Promise<void> {
  const { callbackUrl, appSecret, businessAccountId, phoneNumberId } = target;
  const bodies = Array.from({ length: reportsAtOnce }, (_none, index) => {
    const statuses = Array.from({ length: statusesOfEach }, (_other, number) => ({
      id: `wamid.nobody-${index}-${number}`,
      status: 'delivered',
      timestamp: '1795262400',
      recipient_id: '4915000000000',
    }));
    const value = { messaging_product: 'whatsapp', metadata: { phone_number_id: phoneNumberId }, statuses };
    return JSON.stringify({
      object: 'whatsapp_business_account',
      entry: [{ id: businessAccountId, changes: [{ field: 'messages', value }] }],
    });
  });
  while (!attack.signal.aborted) {
    for (const body of bodies) {
      const answered = await postWebhook(callbackUrl, appSecret, body).catch(() => 'no answer');
      count(`reports: ${answered}`);
    }
    await pause(reportsEveryMs);
  }
}

/** Twenty thousand events, and a page of those that are printed largest. */
const eventsOfBatch = 500;
const batches = 40;
const largeEvents = 100;
const numbersOfEach = 1_500;

/** Resolves with the contact that the large ones belong to. */
async function prepare(): Promise<string> {
  const field = { name: 'name', type: 'string', required: true };
  await askForGood('/v1/events', { name: dearEvent, schema: { fields: [field] } });
  for (let batch = 0; batch < batches; batch += 1) {
    const events = Array.from({ length: eventsOfBatch }, (_none, index) => ({
      event: dearEvent,
      email: `c${(batch * eventsOfBatch + index) % 2_000}@neighbour.example`,
      payload: { name: `${batch} ${index}` },
    }));
    await askForGood('/v1/events/send/batch', { events });
  }
  // The longest that is taken; what a database would print in hundreds of digits is not.
  const { id } = await askForGood('/v1/contacts', { email: 'large@neighbour.example' });
  const numbers = Array.from({ length: numbersOfEach }, () => 1e21);
  for (let index = 0; index < largeEvents; index += 1) {
    const payload = { name: 'large', numbers };
    await askForGood('/v1/events/send', { event: dearEvent, contact_id: id, payload });
  }
  return String(id);
}

const withKey = { headers: { authorization: `Bearer ${key}` } };

const keptAlive = new Agent({ keepAlive: true });

/**
 * Asks for something, and throws away what comes, without unpacking or parsing it: on the machine of the service whatever
 * the client does is taken from the service, too.
 */
async function drain(path: string, headers: Readonly<Record<string, string>>, what: string): Promise<void> {
  const status = await new Promise<number | undefined>((resolve) => {
    const request = get(
      `${apiUrl}${path}`,
      {
        agent: keptAlive,
        headers: { 'accept-encoding': 'br', ...headers },
        signal: AbortSignal.any([attack.signal, AbortSignal.timeout(answerLimitMs)]),
      },
      (response) => {
        response.resume();
        response.once('close', () => {
          resolve(response.complete ? response.statusCode : undefined);
        });
      },
    );
    request.once('error', () => {
      resolve(undefined);
    });
  });
  if (status !== undefined || !attack.signal.aborted) count(`${what}: ${status ?? 'no answer'}`);
}

const answerLimitMs = 60_000;

type Question = { method?: string; headers?: Readonly<Record<string, string>>; body?: unknown };

async function ask(path: string, { method, headers = {}, body }: Question, what: string) {
  try {
    const response = await fetch(`${apiUrl}${path}`, {
      method: method ?? (body === undefined ? 'GET' : 'POST'),
      headers: { ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.any([attack.signal, AbortSignal.timeout(answerLimitMs)]),
    });
    const text = await response.text();
    count(`${what}: ${response.status}`);
    return { status: response.status, body: JSON.parse(text) as Record<string, unknown> };
  } catch {
    if (!attack.signal.aborted) count(`${what}: no answer`);
    return { status: 0, body: {} };
  }
}

async function askForGood(path: string, body: unknown): Promise<Record<string, unknown>> {
  const { status, body: answered } = await ask(path, { ...withKey, body }, 'prepared');
  if (status >= 300 || status === 0) throw new Error(`${path}: ${status} ${JSON.stringify(answered)}`);
  return answered;
}

const minimumPauseMs = 10;

async function pause(ms: number): Promise<void> {
  await delay(ms, undefined, { signal: attack.signal }).catch(() => undefined);
}

function open(localAddress: string): Socket {
  const socket = connect({ host: '127.0.0.1', port: Number(port), localAddress });
  socket.on('error', () => undefined);
  socket.once('close', () => sockets.delete(socket));
  sockets.add(socket);
  return socket;
}

async function untilClosed(socket: Socket): Promise<void> {
  if (socket.closed) return;
  await new Promise<void>((resolve) => {
    socket.once('close', () => {
      resolve();
    });
    attack.signal.addEventListener(
      'abort',
      () => {
        socket.destroy();
      },
      { once: true },
    );
  });
}

function count(what: string): void {
  answers.set(what, (answers.get(what) ?? 0) + 1);
}

function tell(message: FromNeighbour): void {
  process.send?.(message);
}

// At the end, when all constants are there.
const contactId = await prepare();
tell('ready');
