import path from 'node:path';
import { applyEverythingTold } from './end.ts';
import type { Installation } from './installation.ts';
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
  type AnswerFate,
  composeNumber,
  type Line,
  type MessageCentre,
  readFates,
  type ReceiptFate,
  startMessageCentre,
  type TakenPart,
  type ToldReceipt,
} from './message-centre.ts';
import {
  type MessagesReport,
  type OnStart,
  runOnInstallation,
  sendWhileKilling,
  startAll,
} from './messages.ts';
import { createRandom, type Random } from './random.ts';
import { findOwnEnds } from './servers.ts';

/**
 * Texts over SMPP, while processes are killed and the message centre cuts connections before and after it answers,
 * puts texts off, keeps answers back, and sends receipts late, twice, out of order and before the answer.
 *
 * Each text must be there once or, where its hand-off is `uncertain`, at most once; and the database must agree with the
 * receipts of the message centre. Each text goes to a number of its own, by which it is found there.
 */
export type SmsPlan = { seed: number; texts: number; kills: number };

export function runSms(plan: SmsPlan, onStart: OnStart): Promise<MessagesReport> {
  return runOnInstallation(
    onStart,
    async (directory) => {
      const remote = await startMessageCentre(path.join(directory, 'texts.log'));
      return {
        remote,
        settings: {
          POSTILLION_SMS_PROVIDER: 'smpp',
          POSTILLION_SMPP_URL: `smpp://chaos:secret@127.0.0.1:${remote.port}?window=50&connections=2`,
        },
      };
    },
    (installation, centre) => killWhileSending(installation, centre, plan),
  );
}

const perSecond = 250;

async function killWhileSending(
  installation: Installation,
  centre: MessageCentre,
  plan: SmsPlan,
): Promise<Omit<MessagesReport, 'evidence'>> {
  await startAll(installation);
  const startedAtMs = performance.now();
  const random = createRandom(plan.seed, 'texts');
  const draw = (name: string) => drawText(installation, plan, name, random);
  const load = { name: 'text', sends: plan.texts, kills: plan.kills, perSecond, draw };
  const sent = await sendWhileKilling(installation, load, { seed: plan.seed, random });
  await centre.whenSettled();
  await applyEverythingTold(installation);
  const seconds = Math.round((performance.now() - startedAtMs) / 1_000);

  const findings = await compare(installation, sent.ledger, await centre.readLog());
  return { ...findings, ...sent, seconds };
}

/** A text whose answer is kept back takes half a minute: these come early, so that the end of a run need not wait. */
const silentShare = 0.5;

function drawText({ senders }: Installation, plan: SmsPlan, name: string, random: Random): Send {
  const sender = random.pick(senders);
  const number = Number(name.split('-')[1]);
  const drawn = drawAnswerFate(random);
  const isSilent = drawn === 'silent' && (plan.texts < 1_000 || number > plan.texts * silentShare);
  const to = composeNumber(isSilent ? 'lost' : drawn, drawReceiptFate(random), number);
  const key = `key-${name}`;
  return {
    sender,
    key,
    recipients: [to],
    path: '/v1/sms/send',
    body: { from: sender.textsFrom, to, body: drawBody(`Chaos ${key}.`, random) },
    ids: new Set(),
  };
}

function drawAnswerFate(random: Random): AnswerFate {
  const chance = random.between(0, 1_000);
  if (chance < 10) return 'throttled';
  if (chance < 15) return 'queue_full';
  if (chance < 20) return 'system_error';
  if (chance < 30) return 'refused';
  if (chance < 34) return 'lost';
  if (chance < 38) return 'dropped_after_answer';
  if (chance < 39) return 'silent';
  if (chance < 40) return 'restart';
  return 'accepted';
}

function drawReceiptFate(random: Random): ReceiptFate {
  const chance = random.between(0, 100);
  if (chance < 4) return 'undelivered';
  if (chance < 7) return 'expired';
  if (chance < 9) return 'rejected';
  if (chance < 14) return 'late';
  if (chance < 24) return 'twice';
  if (chance < 34) return 'before_answer';
  if (chance < 39) return 'in_steps';
  if (chance < 42) return 'none';
  return 'delivered';
}

function drawBody(words: string, random: Random): string {
  if (random.isLucky(0.06)) return `${words} ${'A long one. '.repeat(20)}`;
  if (random.isLucky(0.04)) return `${words} ${'Длинное сообщение 🙂 '.repeat(6)}`;
  return random.isLucky(0.05) ? `${words} Grüße, αβγ 🙂` : words;
}

type Recipient = {
  address: string;
  status: string;
  failure_class: string | null;
  uncertain: boolean;
  ambiguities: number;
  provider_message_id: string | null;
  was_handed_off: boolean;
  message_status: string;
  segments: number;
  is_queued: boolean;
};

/** What the message centre knows of one number. */
type Truth = { taken: TakenPart[]; told: ToldReceipt[]; wasRefused: boolean };

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
    `select r.address, r.status, r.failure_class, r.uncertain, r.ambiguities, r.provider_message_id,
       r.handed_off_at is not null as was_handed_off, m.status as message_status,
       (m.details ->> 'segments')::integer as segments, q.message_id is not null as is_queued
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
  const repeats = [...truths].flatMap(([number, { taken }]) =>
    countRepeats(taken) > 0 ? Array.from({ length: countRepeats(taken) }, () => number) : [],
  );
  expectNone('taken more than once', repeats);
  expectNone(
    'taken, and unknown to the database',
    [...truths.keys()].filter((number) => !stored.has(number)),
  );
  expectNone('arrived as another text, or from somebody else', findChangedTexts(ledger, truths));
  checkStatuses(recipients, truthOf, expectNone);
  await expectEmpty(installation, emptyQueries, expectNone);
  violations.push(...findOwnEnds(installation));
  const counts = {
    accepted: accepted.length,
    'taken by the message centre': recipients.filter((each) => isWhole(truthOf(each).taken)).length,
    ...countStatuses(recipients),
    'given up between two parts': recipients.filter(
      (each) => each.status === 'failed' && isGivenUp(each, truthOf(each)),
    ).length,
    'hand-offs cut off': recipients.filter(({ ambiguities }) => ambiguities > 0).length,
    '… settled by a receipt': recipients.filter((each) => each.ambiguities > 0 && !each.uncertain).length,
    '… uncertain, and taken without a receipt': recipients.filter(
      (each) => each.uncertain && isWhole(truthOf(each).taken),
    ).length,
    '… uncertain, and never taken': recipients.filter(
      (each) => each.uncertain && !isWhole(truthOf(each).taken),
    ).length,
    'connections cut by the message centre': lines.filter(({ kind }) => kind === 'cut' || kind === 'restart')
      .length,
    'texts put off or refused by it': lines.filter(({ kind }) => kind === 'refused').length,
    'receipts told': lines.filter(({ kind }) => kind === 'told').length,
    '… more than once, until acknowledged': lines.filter((line) => line.kind === 'told' && line.tries > 1)
      .length,
  };
  return { counts, lost: lost.length, repeats: repeats.length, violations };
}

function groupLines(lines: readonly Line[]): Map<string, Truth> {
  const truths = new Map<string, Truth>();
  for (const line of lines) {
    const truth = truths.get(line.to) ?? { taken: [], told: [], wasRefused: false };
    truths.set(line.to, truth);
    if (line.kind === 'taken') truth.taken.push(line);
    if (line.kind === 'told') truth.told.push(line);
    // What is put off comes again; only the codes of fate `refused` are final.
    if (line.kind === 'refused' && readFates(line.to).answer === 'refused') truth.wasRefused = true;
  }
  return truths;
}

function isWhole(taken: readonly TakenPart[]): boolean {
  return new Set(taken.map(({ part }) => part)).size === (taken[0]?.parts ?? Infinity);
}

function countRepeats(taken: readonly TakenPart[]): number {
  return taken.length - new Set(taken.map(({ part }) => part)).size;
}

function isLost(recipient: Recipient, truth: Truth): boolean {
  const { uncertain, is_queued } = recipient;
  return (
    !uncertain && !is_queued && !truth.wasRefused && !isWhole(truth.taken) && !isGivenUp(recipient, truth)
  );
}

/** Between two parts: it cannot arrive whole, and is said to have failed. */
function isGivenUp({ failure_class, segments }: Recipient, truth: Truth): boolean {
  return segments > 1 && failure_class === 'other' && !isWhole(truth.taken);
}

function findChangedTexts(ledger: Ledger, truths: ReadonlyMap<string, Truth>): string[] {
  return ledger.sends.flatMap(({ recipients: [number = ''], body }) => {
    const truth = truths.get(number);
    const taken = truth?.taken ?? [];
    if (!isWhole(taken)) return [];
    const parts = [...taken].sort((first, second) => first.part - second.part);
    const isSame =
      parts.map(({ text }) => text).join('') === body.body && parts.every(({ from }) => from === body.from);
    return isSame || countRepeats(parts) > 0 ? [] : [number];
  });
}

/** What a final receipt makes of a text: the status of the recipient, and of the message. */
const ends: Readonly<Record<string, readonly [recipient: string, message: string]>> = {
  DELIVRD: ['delivered', 'delivered'],
  UNDELIV: ['bounced', 'undelivered'],
  EXPIRED: ['failed', 'expired'],
  REJECTD: ['failed', 'failed'],
};

function expectedStatuses(recipient: Recipient, truth: Truth): readonly [recipient: string, message: string] {
  const end = truth.told.map(({ stat }) => ends[stat]).find((known) => known !== undefined);
  if (end !== undefined) return end;
  // A worker that is killed before it writes the refusal down leaves the text uncertain.
  if (truth.wasRefused && !recipient.uncertain) return ['failed', 'failed'];
  if (isGivenUp(recipient, truth) && !recipient.uncertain) return ['failed', 'failed'];
  // One that was put off before its hand-off was cut off is `delayed` still.
  return [recipient.status === 'delayed' ? 'delayed' : 'sent', recipient.uncertain ? 'sending' : 'sent'];
}

function checkStatuses(
  recipients: readonly Recipient[],
  truthOf: (recipient: Recipient) => Truth,
  expectNone: Expect,
): void {
  const done = recipients.filter(({ is_queued }) => !is_queued);
  expectNone(
    'its status is not what the message centre told',
    done
      .filter((each) => {
        const [status, messageStatus] = expectedStatuses(each, truthOf(each));
        return each.status !== status || each.message_status !== messageStatus;
      })
      .map(nameOf),
  );
  expectNone(
    'uncertain, though its receipt came',
    done.filter((each) => each.uncertain && truthOf(each).told.length > 0).map(nameOf),
  );
  expectNone(
    'put off, and then forgotten',
    done.filter(({ status, uncertain }) => status === 'delayed' && !uncertain).map(nameOf),
  );
  expectNone(
    'uncertain, though no hand-off of it was cut off',
    done.filter(({ uncertain, ambiguities }) => uncertain && ambiguities === 0).map(nameOf),
  );
  expectNone(
    'cut off more than once, so that it was repeated',
    done.filter(({ ambiguities }) => ambiguities > 1).map(nameOf),
  );
  expectNone(
    'known under another id than the one that it was given',
    done
      .filter((each) => {
        const last = truthOf(each).taken.find(({ part, parts }) => part === parts);
        return each.provider_message_id !== null && each.provider_message_id !== last?.messageId;
      })
      .map(nameOf),
  );
  expectNone(
    'taken in another number of segments than were counted',
    done
      .filter((each) => isWhole(truthOf(each).taken) && truthOf(each).taken[0]?.parts !== each.segments)
      .map(nameOf),
  );
}

function nameOf({ address, status, message_status, failure_class, uncertain }: Recipient): string {
  const { answer, receipt } = readFates(address);
  const words = [address, answer, receipt, status, message_status, failure_class ?? '', uncertain ? '?' : ''];
  return words.join(' ');
}

/** Each returns what must not be. */
const emptyQueries: Readonly<Record<string, string>> = {
  'a quota that is not the sum of the segments': `
    select m.organization_id, m.segments, coalesce(u.used, 0) as used
    from (
      select organization_id, sum((details ->> 'segments')::integer) as segments from messages group by 1
    ) m
    left join (
      select organization_id, sum(used) as used from quota_usage where channel = 'sms' group by 1
    ) u using (organization_id)
    where m.segments is distinct from u.used`,
  'came in, and never applied': 'select event, due_at, attempts from sms_events',
  'reported, and never applied': 'select channel, report, due_at, attempts from provider_events',
  ...queueLeftovers,
};
