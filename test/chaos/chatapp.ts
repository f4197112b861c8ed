import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { applyEverythingTold } from './end.ts';
import { chatTemplates, type Installation } from './installation.ts';
import {
  checkAcceptance,
  countStatuses,
  type Expect,
  expectEmpty,
  expectInto,
  queueLeftovers,
} from './invariants.ts';
import type { Ledger, Send } from './load.ts';
import {
  type MessagesReport,
  type OnStart,
  runOnInstallation,
  sendWhileKilling,
  startAll,
} from './messages.ts';
import { createRandom, type Random } from './random.ts';
import { findOwnEnds } from './servers.ts';
import {
  type AnswerFate,
  composeNumber,
  type Line,
  prepareWhatsApp,
  readFates,
  type StatusFate,
  type TakenMessage,
  type ToldStatus,
  type WhatsApp,
} from './whatsapp.ts';

/**
 * Chat-app messages over WhatsApp, while processes are killed and WhatsApp loses answers, cuts connections, answers late
 * or with errors, and sends webhooks late, twice, out of order and before the answer.
 *
 * A notice must be there once or, where its hand-off is `uncertain`, at most once. A code may be there once more for an
 * ambiguity that is recorded, unless a status came first. The database must agree with what was reported, everybody who
 * was written to must count against the messaging limit, and at the end no code may be readable anywhere. Each message goes to a number of its own, by which it is found there.
 */
export type ChatAppPlan = { seed: number; messages: number; kills: number };

export function runChatApp(plan: ChatAppPlan, onStart: OnStart): Promise<MessagesReport> {
  return runOnInstallation(onStart, prepareWhatsApp, (installation, whatsApp) =>
    killWhileSending(installation, whatsApp, plan),
  );
}

const perSecond = 150;

async function killWhileSending(
  installation: Installation,
  whatsApp: WhatsApp,
  plan: ChatAppPlan,
): Promise<Omit<MessagesReport, 'evidence'>> {
  await startAll(installation);
  // Before the first message: who was written to earlier is not counted.
  await installation.ask(
    `insert into chat_app_limits (organization_id, people_per_day_max, told_at) select id, 1000000, now() from organizations`,
  );
  const startedAtMs = performance.now();
  const random = createRandom(plan.seed, 'chat-app messages');
  const draw = (name: string) => drawMessage(installation, plan, name, random);
  const load = { name: 'message', sends: plan.messages, kills: plan.kills, perSecond, draw };
  const sent = await sendWhileKilling(installation, load, { seed: plan.seed, random });
  await whatsApp.whenSettled();
  await applyEverythingTold(installation);
  const seconds = Math.round((performance.now() - startedAtMs) / 1_000);

  const findings = await compare(installation, sent.ledger, await whatsApp.readLog());
  return { ...findings, ...sent, seconds };
}

/** A message whose answer is kept back takes half a minute: these come early, so that the end of a run need not wait. */
const silentShare = 0.5;
/** Shorter runs have neither these nor messages to a person who got too many, which wait for six seconds. */
const longRunMin = 1_000;
const codeShare = 0.4;

function drawMessage({ senders }: Installation, plan: ChatAppPlan, name: string, random: Random): Send {
  const number = Number(name.split('-')[1]);
  const to = composeNumber(drawAnswerFate(random, plan, number), drawStatusFate(random), number);
  const isCode = random.isLucky(codeShare);
  return {
    sender: random.pick(senders),
    key: `key-${name}`,
    recipients: [to],
    path: '/v1/chatapp/send',
    body: {
      to,
      template: isCode ? chatTemplates.code : chatTemplates.notice,
      language: 'en_US',
      parameters: isCode ? { code: codeOf(number) } : noticeOf(name),
    },
    ids: new Set(),
  };
}

function noticeOf(name: string): Record<string, string> {
  return { order_number: name, first_name: 'Zoë "{{first_name}}" 🙂', track_id: name };
}

/** Found wherever it stands: nothing else looks like it. */
function codeOf(number: number): string {
  return `Z${String(number).padStart(7, '0')}Q`;
}

const codePattern = 'Z[0-9]{7}Q';
/** As PostgreSQL writes octets. */
const codeOctetsPattern = '5a(3[0-9]){7}51';

/** Of a thousand; the rest is accepted. */
const answerShares: readonly (readonly [AnswerFate, number])[] = [
  ['late', 20],
  ['lost', 12],
  ['cut_within', 8],
  ['silent', 2],
  ['cut_before', 10],
  ['bad_gateway', 8],
  ['error', 8],
  ['unavailable', 6],
  ['throttled', 4],
  ['pair_throttled', 10],
  ['refused', 12],
];

/** Of a hundred; of the rest it is said that it was delivered. */
const statusShares: readonly (readonly [StatusFate, number])[] = [
  ['read', 10],
  ['read_alone', 6],
  ['failed', 6],
  ['failed_after_delivery', 4],
  ['late', 8],
  ['twice', 10],
  ['reversed', 10],
  ['before_answer', 10],
  ['hidden', 6],
  ['none', 8],
];

function drawAnswerFate(random: Random, { messages }: ChatAppPlan, number: number): AnswerFate {
  const drawn = drawFrom(answerShares, random.between(0, 1_000)) ?? 'accepted';
  const isLong = messages >= longRunMin;
  if (drawn === 'silent' && (!isLong || number > messages * silentShare)) return 'lost';
  return drawn === 'pair_throttled' && !isLong ? 'throttled' : drawn;
}

function drawStatusFate(random: Random): StatusFate {
  return drawFrom(statusShares, random.between(0, 100)) ?? 'delivered';
}

function drawFrom<Fate>(shares: readonly (readonly [Fate, number])[], chance: number): Fate | null {
  let end = 0;
  for (const [fate, share] of shares) {
    end += share;
    if (chance < end) return fate;
  }
  return null;
}

type Recipient = {
  organization_id: string;
  address: string;
  category: string;
  status: string;
  failure_class: string | null;
  uncertain: boolean;
  ambiguities: number;
  provider_message_id: string | null;
  message_status: string;
  was_delivered: boolean;
  was_read: boolean;
  is_queued: boolean;
};

/** What WhatsApp knows of one number. */
type Truth = { taken: TakenMessage[]; told: ToldStatus[]; wasRefused: boolean };

const nothing: Truth = { taken: [], told: [], wasRefused: false };

async function compare(
  installation: Installation,
  ledger: Ledger,
  lines: readonly Line[],
): Promise<Pick<MessagesReport, 'counts' | 'lost' | 'repeats' | 'violations'>> {
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  const truths = groupLines(lines);
  const recipients = await installation.ask<Recipient>(
    `select r.organization_id, r.address, m.category, r.status, r.failure_class, r.uncertain, r.ambiguities,
       r.provider_message_id, m.status as message_status, r.delivered_at is not null as was_delivered,
       r.opened_at is not null as was_read, q.message_id is not null as is_queued
     from recipients r
     join messages m on m.organization_id = r.organization_id and m.id = r.message_id
     left join delivery_queue q on q.organization_id = r.organization_id and q.message_id = r.message_id`,
  );
  const truthOf = ({ address }: Recipient) => truths.get(address) ?? nothing;
  const stored = new Set(recipients.map(({ address }) => address));
  const accepted = ledger.sends.filter(({ ids }) => ids.size > 0);

  await checkAcceptance(installation, ledger, expectNone);
  const lost = [
    ...accepted.flatMap((send) => send.recipients).filter((number) => !stored.has(number)),
    ...recipients.filter((each) => isLost(each, truthOf(each))).map(nameOf),
  ];
  expectNone('accepted, and neither taken, refused, uncertain nor queued', lost);
  expectNone(
    'taken, and unknown to the database',
    [...truths]
      .filter(([number, { taken }]) => taken.length > 0 && !stored.has(number))
      .map(([name]) => name),
  );
  expectNone('arrived as another message, or from somebody else', findChangedMessages(ledger, truths));
  checkRepeats(recipients, truthOf, expectNone);
  checkStatuses(recipients, truthOf, expectNone);
  await checkPeople(installation, truths, expectNone);
  await checkReached(installation, recipients, truthOf, expectNone);
  expectNone('a code that can be read', await findReadableCodes(installation));
  await expectEmpty(installation, emptyQueries, expectNone);
  violations.push(...findOwnEnds(installation));
  const cutOff = recipients.filter(({ ambiguities }) => ambiguities > 0);
  const repeated = recipients.filter((each) => truthOf(each).taken.length > 1);
  const uncertain = recipients.filter((each) => each.uncertain);
  const told = lines.filter((line) => line.kind === 'told');
  const counts = {
    accepted: accepted.length,
    '… codes': recipients.filter(isCode).length,
    'taken by WhatsApp': recipients.filter((each) => truthOf(each).taken.length > 0).length,
    ...countStatuses(recipients),
    'hand-offs cut off': cutOff.length,
    '… of codes': cutOff.filter(isCode).length,
    '… settled by a status or a repeat': cutOff.filter((each) => !each.uncertain).length,
    '… uncertain, and taken without a status': uncertain.filter((each) => truthOf(each).taken.length > 0)
      .length,
    '… uncertain, and never taken': uncertain.filter((each) => truthOf(each).taken.length === 0).length,
    'codes that were taken twice': repeated.length,
    'requests without an answer': lines.filter(({ kind }) => kind === 'unanswered').length,
    'messages put off or refused by it': lines.filter(({ kind }) => kind === 'refused').length,
    'statuses told': told.length,
    '… more than once, until acknowledged': told.filter(({ tries }) => tries > 1).length,
  };
  return { counts, lost: lost.length, repeats: repeated.length, violations };
}

function groupLines(lines: readonly Line[]): Map<string, Truth> {
  const truths = new Map<string, Truth>();
  for (const line of lines) {
    const truth = truths.get(line.to) ?? { taken: [], told: [], wasRefused: false };
    truths.set(line.to, truth);
    if (line.kind === 'taken') truth.taken.push(line);
    if (line.kind === 'told') truth.told.push(line);
    // What is put off comes again; this alone is final.
    if (line.kind === 'refused' && line.what === 'refused') truth.wasRefused = true;
  }
  return truths;
}

function isCode({ category }: Recipient): boolean {
  return category === 'authentication';
}

function isLost({ uncertain, is_queued }: Recipient, { wasRefused, taken }: Truth): boolean {
  return !uncertain && !is_queued && !wasRefused && taken.length === 0;
}

/** By the template, its values, and the account that it was sent from. */
function findChangedMessages(ledger: Ledger, truths: ReadonlyMap<string, Truth>): string[] {
  return ledger.sends.flatMap(({ key, recipients: [number = ''], body, sender: { chatApp } }) => {
    const { code } = body.parameters as { code?: string };
    const name = key.replace('key-', '');
    const { order_number, first_name, track_id } = noticeOf(name);
    const values =
      code === undefined
        ? { order_number, first_name, 'button 0': track_id }
        : { 'body 0': code, 'button 0': code };
    const expected = JSON.stringify([body.template, chatApp.phoneNumberId, chatApp.accessToken, values]);
    return (truths.get(number)?.taken ?? [])
      .map((taken) =>
        JSON.stringify([taken.template, taken.phoneNumberId, taken.accessToken, { ...taken.values }]),
      )
      .filter((found) => found !== expected)
      .map((found) => `${found} instead of ${expected}`);
  });
}

/** Within this time a status that was acknowledged is applied, unless something is killed meanwhile. */
const appliedWithinMs = 5_000;

function checkRepeats(
  recipients: readonly Recipient[],
  truthOf: (recipient: Recipient) => Truth,
  expectNone: Expect,
): void {
  expectNone(
    'a notice that was taken twice',
    recipients.filter((each) => !isCode(each) && truthOf(each).taken.length > 1).map(nameOf),
  );
  expectNone(
    'a notice that was cut off more than once, so that it was repeated',
    recipients.filter((each) => !isCode(each) && each.ambiguities > 1).map(nameOf),
  );
  expectNone(
    'taken more often than its recorded ambiguities explain',
    recipients.filter((each) => truthOf(each).taken.length > 1 + each.ambiguities).map(nameOf),
  );
  expectNone(
    'a code that was repeated more than once',
    recipients.filter((each) => truthOf(each).taken.length > 2 || each.ambiguities > 2).map(nameOf),
  );
  expectNone(
    'repeated, though a status had said long before that it was there',
    recipients
      .filter((each) => {
        const { taken, told } = truthOf(each);
        const firstToldAtMs = Math.min(...told.map(({ atMs }) => atMs));
        return taken.slice(1).some(({ atMs }) => atMs > firstToldAtMs + appliedWithinMs);
      })
      .map(nameOf),
  );
}

/** The status of the recipient, and of the message, after everything that was told of it. */
function expectedStatuses(
  { uncertain, status }: Recipient,
  { told, wasRefused }: Truth,
): readonly [recipient: string, message: string] {
  const isTold = (wanted: ToldStatus['status']) => told.some((each) => each.status === wanted);
  if (isTold('read')) return ['opened', 'read'];
  // Whichever comes first: a person has more than one device.
  if (isTold('delivered')) return ['delivered', 'delivered'];
  if (isTold('failed')) return ['failed', 'failed'];
  // A worker that is killed before it writes the refusal down leaves the message uncertain.
  if (wasRefused && !uncertain) return ['failed', 'failed'];
  // One that was put off before its hand-off was cut off is `delayed` still.
  return [uncertain && status === 'delayed' ? 'delayed' : 'sent', 'sent'];
}

function checkStatuses(
  recipients: readonly Recipient[],
  truthOf: (recipient: Recipient) => Truth,
  expectNone: Expect,
): void {
  const done = recipients.filter(({ is_queued }) => !is_queued);
  expectNone(
    'its status is not what WhatsApp told',
    done
      .filter((each) => {
        const [status, messageStatus] = expectedStatuses(each, truthOf(each));
        return each.status !== status || each.message_status !== messageStatus;
      })
      .map(nameOf),
  );
  expectNone(
    'delivered or read, and without the time of it, or the other way round',
    done
      .filter((each) => {
        const [status] = expectedStatuses(each, truthOf(each));
        const isRead = status === 'opened';
        return each.was_read !== isRead || each.was_delivered !== (isRead || status === 'delivered');
      })
      .map(nameOf),
  );
  expectNone(
    'uncertain, though a status came',
    done.filter((each) => each.uncertain && truthOf(each).told.length > 0).map(nameOf),
  );
  expectNone(
    'uncertain, though no hand-off of it was cut off',
    done.filter(({ uncertain, ambiguities }) => uncertain && ambiguities === 0).map(nameOf),
  );
  expectNone(
    'called certain, though its last hand-off was cut off, and no status came',
    done
      .filter((each) => !each.uncertain && each.ambiguities === (isCode(each) ? 2 : 1))
      .filter((each) => truthOf(each).told.length === 0)
      .map(nameOf),
  );
  expectNone(
    'known under another id than any that it was given',
    done
      .filter(
        (each) =>
          each.provider_message_id !== null &&
          !truthOf(each).taken.some(({ id }) => id === each.provider_message_id),
      )
      .map(nameOf),
  );
}

/** A status says how WhatsApp calls the person: who later says stop is found by that. */
async function checkPeople(
  { ask }: Installation,
  truths: ReadonlyMap<string, Truth>,
  expectNone: Expect,
): Promise<void> {
  const people = await ask<{ known_as: string; address: string }>(
    'select known_as, address from chat_app_people',
  );
  const known = new Set(people.map((person) => `${person.known_as} ${person.address}`));
  expectNone(
    'reported, and how WhatsApp calls the person is not known',
    [...truths]
      .filter(([number, { told }]) => told.length > 0 && !known.has(`US.${number.slice(1)} ${number}`))
      .map(([number]) => number),
  );
}

/** Whoever was written to, or may have been, and nobody else: also where the outcome was lost with its worker. */
async function checkReached(
  { ask, senders }: Installation,
  recipients: readonly Recipient[],
  truthOf: (recipient: Recipient) => Truth,
  expectNone: Expect,
): Promise<void> {
  const counts = await ask<{ organization_id: string; people: number }>(
    'select organization_id, sum(people)::integer as people from chat_app_reached_counts group by 1',
  );
  const counted = new Map(counts.map((row) => [row.organization_id, row.people]));
  const wrong = senders.flatMap(({ organizationId }) => {
    const own = recipients.filter((each) => each.organization_id === organizationId);
    const taken = own.filter((each) => truthOf(each).taken.length > 0);
    const reached = own.filter((each) => truthOf(each).taken.length > 0 || each.ambiguities > 0);
    const people = counted.get(organizationId) ?? 0;
    return people >= taken.length && people <= reached.length
      ? []
      : [`${people}, of ${taken.length} to ${reached.length}`];
  });
  expectNone('counts of reached people that are not those of WhatsApp', wrong);
}

/** In any column of any table, and in what the processes log. */
async function findReadableCodes({ ask, directory }: Installation): Promise<string[]> {
  const tables = await ask<{ name: string }>(
    `select format('%I.%I', schemaname, tablename) as name
     from pg_tables
     where schemaname not in ('pg_catalog', 'information_schema')`,
  );
  const found: string[] = [];
  for (const { name } of tables) {
    const rows = await ask(
      `select from ${name} t where t::text ~ '${codePattern}' or t::text ~ '${codeOctetsPattern}' limit 1`,
    );
    if (rows.length > 0) found.push(name);
  }
  const logs = (await readdir(directory)).filter((name) => name.endsWith('.log'));
  for (const name of logs)
    if (new RegExp(codePattern).test(await readFile(path.join(directory, name), 'utf8'))) found.push(name);
  return found;
}

function nameOf(recipient: Recipient): string {
  const { address, category, status, message_status, failure_class, uncertain, ambiguities } = recipient;
  const fates = readFates(address);
  const words = [address, category, fates.answer, fates.status, status, message_status, failure_class ?? ''];
  return [...words, uncertain ? '?' : '', ambiguities].join(' ');
}

/** Each returns what must not be. */
const emptyQueries: Readonly<Record<string, string>> = {
  'a quota that is not the number of messages': `
    select m.organization_id, m.messages, coalesce(u.used, 0) as used
    from (select organization_id, count(*) as messages from messages group by 1) m
    left join (
      select organization_id, sum(used) as used from quota_usage where channel = 'chatapp' group by 1
    ) u using (organization_id)
    where m.messages is distinct from u.used`,
  'a code kept of a message that nobody waits for': 'select message_id from attachment_contents',
  'reported, and never applied': `
    select channel as what, due_at, attempts from provider_events
    union all
    select 'chatapp', due_at, attempts from chat_app_events`,
  ...queueLeftovers,
};
