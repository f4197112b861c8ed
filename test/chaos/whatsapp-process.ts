import { openSync, writeSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type GraphAnswer,
  type GraphMessage,
  type GraphStatus,
  postWebhook,
  startGraph,
  writeStatus,
} from '../support/graph.ts';
import {
  type Account,
  type AnswerFate,
  type FromWhatsApp,
  type Line,
  readFates,
  type StatusFate,
  type ToldStatus,
  type ToWhatsApp,
} from './whatsapp.ts';

/**
 * WhatsApp, in a process that nothing kills: `whatsapp-process.ts LOGFILE ACCOUNTS`, of which the latter is JSON by the
 * ids of numbers. A message is in the log before it is answered. Numbers choose their fate (whatsapp.ts). A webhook is
 * posted until it is acknowledged, as Meta does.
 */
const [logFile = '', accountsJson = '{}'] = process.argv.slice(2);
const log = openSync(logFile, 'a');
const accounts = new Map(Object.entries(JSON.parse(accountsJson) as Record<string, Account>));
/** Those that had their fate: what comes again is taken. */
const met = new Set<string>();
let statusesUnderWay = 0;
let isSettleAwaited = false;

const graph = await startGraph({
  throughput: 'HIGH',
  messagesKeptMax: 0,
  answer,
  statuses: () => [],
  onMessage: takeDown,
});
process.on('message', (_order: ToWhatsApp) => {
  isSettleAwaited = true;
  tellIfSettled();
});
process.on('disconnect', () => process.exit(0));
/** Answers that are late, and those that wait for a webhook that is not acknowledged. */
const lateMs = 700;
setInterval(graph.releaseAnswers, lateMs);
tell({ port: graph.port });

const refusals: Readonly<Partial<Record<AnswerFate, GraphAnswer>>> = {
  error: { code: 131_000, status: 500 },
  unavailable: { code: 131_016, status: 503 },
  throttled: { code: 130_429, status: 429 },
  pair_throttled: { code: 131_056, status: 429 },
  refused: { code: 131_026 },
};

const gatewayError: GraphAnswer = {
  status: 502,
  body: '<html>Bad gateway</html>',
  headers: { 'content-type': 'text/html' },
};

function answer({ to }: GraphMessage): GraphAnswer {
  const fates = readFates(to);
  const taken = fates.status === 'before_answer' ? 'late' : 'accepted';
  if (met.has(to) && fates.answer !== 'refused') return taken;
  met.add(to);
  const what = fates.answer;
  const refusal = refusals[what];
  if (refusal !== undefined) {
    note({ kind: 'refused', to, what });
    return refusal;
  }
  switch (what) {
    case 'late':
      return 'late';
    case 'bad_gateway':
      note({ kind: 'unanswered', to, what });
      return gatewayError;
    case 'lost':
    case 'cut_within':
    case 'silent':
    case 'cut_before':
      note({ kind: 'unanswered', to, what });
      return what;
    case 'accepted':
    case 'error':
    case 'unavailable':
    case 'throttled':
    case 'pair_throttled':
    case 'refused':
      return taken;
  }
}

function takeDown(message: GraphMessage): void {
  const { to, phoneNumberId, accessToken, id, template, values } = message;
  note({ kind: 'taken', atMs: Date.now(), to, phoneNumberId, accessToken, id, template, values });
  for (const { status, afterMs } of statuses[readFates(to).status]) void report(message, status, afterMs);
}

type Planned = { status: GraphStatus['status']; afterMs: number };

const inOrder: readonly Planned[] = [
  { status: 'sent', afterMs: 0 },
  { status: 'delivered', afterMs: 20 },
];
const read: Planned = { status: 'read', afterMs: 60 };

const statuses: Readonly<Record<StatusFate, readonly Planned[]>> = {
  delivered: inOrder,
  read: [...inOrder, read],
  read_alone: [read],
  failed: [
    { status: 'sent', afterMs: 0 },
    { status: 'failed', afterMs: 40 },
  ],
  failed_after_delivery: [...inOrder, { status: 'failed', afterMs: 200 }],
  late: [
    { status: 'sent', afterMs: 1_000 },
    { status: 'delivered', afterMs: 1_500 },
  ],
  twice: [...inOrder, read, ...inOrder, read],
  reversed: [
    { status: 'read', afterMs: 0 },
    { status: 'delivered', afterMs: 100 },
    { status: 'sent', afterMs: 200 },
  ],
  before_answer: [
    { status: 'sent', afterMs: 0 },
    { status: 'delivered', afterMs: 0 },
  ],
  hidden: inOrder,
  none: [],
};

/** Of a message that was accepted, and cannot be delivered all the same. */
const failureCode = 131_026;

type Waiting = { message: GraphMessage; told: ToldStatus };

const waiting = new Map<string, Waiting[]>();

async function report(message: GraphMessage, status: GraphStatus['status'], afterMs: number): Promise<void> {
  statusesUnderWay += 1;
  await delay(afterMs);
  const { to, id, phoneNumberId } = message;
  const others = waiting.get(phoneNumberId);
  const mine: Waiting = { message, told: { kind: 'told', atMs: 0, to, id, status, tries: 0 } };
  if (others !== undefined) {
    others.push(mine);
    return;
  }
  waiting.set(phoneNumberId, [mine]);
  await postAll(phoneNumberId);
}

const statusesAtOnceMax = 50;

/** One webhook of an account after the other, until none waits. */
async function postAll(phoneNumberId: string): Promise<void> {
  const own = waiting.get(phoneNumberId) ?? [];
  // What comes in together leaves together.
  await new Promise((resolve) => setImmediate(resolve));
  while (own.length > 0) {
    const some = own.splice(0, statusesAtOnceMax);
    const tries = await postUntilTaken(phoneNumberId, some);
    for (const { told } of some) note({ ...told, atMs: Date.now(), tries });
    graph.releaseAnswers();
    statusesUnderWay -= some.length;
  }
  waiting.delete(phoneNumberId);
  tellIfSettled();
}

const repetitionPauseMs = 50;

async function postUntilTaken(phoneNumberId: string, some: readonly Waiting[]): Promise<number> {
  const account = accounts.get(phoneNumberId);
  if (account === undefined) throw new Error(`the number ${phoneNumberId} is nobody's`);
  const metadata = { display_phone_number: '15550783881', phone_number_id: phoneNumberId };
  const changes = some.map(({ message, told: { to, status } }) => {
    const failure = status === 'failed' ? { code: failureCode } : {};
    const written = writeStatus(message, { status, ...failure }, readFates(to).status === 'hidden');
    return { field: 'messages', value: { messaging_product: 'whatsapp', metadata, statuses: [written] } };
  });
  const entry = [{ id: account.businessAccountId, changes }];
  const body = JSON.stringify({ object: 'whatsapp_business_account', entry });
  // Ends, since an API that is killed is started again.
  for (let tries = 1; ; tries += 1) {
    const answered = await postWebhook(account.webhookUrl, account.appSecret, body).catch(() => 0);
    if (answered === 200) return tries;
    await delay(repetitionPauseMs);
  }
}

function tellIfSettled(): void {
  if (isSettleAwaited && statusesUnderWay === 0) tell({ settled: true });
}

function note(line: Line): void {
  writeSync(log, `${JSON.stringify(line)}\n`);
}

function tell(message: FromWhatsApp): void {
  process.send?.(message);
}
