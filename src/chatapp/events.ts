import type { ToldOfChatApp } from '../channels/chatapp/provider.ts';
import { readKeyword } from '../channels/keywords.ts';
import {
  applyTemplateReviews,
  findAccountHolders,
  holdCampaigns,
  notePeopleLimit,
  releaseCampaigns,
} from '../chat-templates/chat-templates.ts';
import {
  applyInOrder,
  createReportIntake,
  createStoring,
  defaultAppliedMax,
  planNextLooks,
} from '../messages/messages.ts';
import { createBatcher } from '../platform/batcher.ts';
import { type Clock, dateOf, now, parseTimestamp } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { type ChoreTools, type RunningChore, startChore } from '../platform/queue/chore.ts';
import { keepRoom } from '../platform/queue/room.ts';
import type { Choice } from './choice-store.ts';
import { type ChoiceTools, makeChoice, moveChoices } from './choices.ts';
import {
  type ChatAppEvent,
  countPutBackEvents,
  findNextChatAppEventAt,
  insertChatAppEvents,
  takeDueChatAppEvents,
  type ToldBesides,
} from './event-store.ts';
import type { ReportedFinding } from './findings.ts';
import { findAddresses, keepPeople, listNamesOf } from './people-store.ts';
import { noteReached } from './unreachable.ts';

/**
 * What providers of chat-app messages tell: statuses, which are reports as on every channel; what people wrote or chose;
 * and what became of templates and accounts. All of it is stored before it is acknowledged, and concerns one organization
 * alone: the one by whose own way it came, or else the one that has the business account.
 */

export type ChatAppIntakeTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  log: Log;
  /** Which provider tells, by its name in the registry. */
  provider: string;
  onReported: () => void;
  onTold: () => void;
  /** Smaller in tests. */
  storedMax?: number;
  waitingMax?: number;
};

/** Stores what was told; rejects if it cannot be stored. `organizationId` is null where the account tells it. */
export type ChatAppIntake = (told: ToldOfChatApp & { organizationId: string | null }) => Promise<void>;

export function createChatAppIntake(tools: ChatAppIntakeTools): ChatAppIntake {
  const { database, clock, newId, log, provider, onReported, onTold, ...limits } = tools;
  const report = createReportIntake({ ...limits, database, clock, newId, onTaken: onReported });
  const takeEvent = createStoring<ChatAppEvent>({
    ...limits,
    store: (events) => {
      const dueAt = now(clock);
      return insertChatAppEvents(
        database,
        events.map((event) => ({ ...event, dueAt })),
      );
    },
    onStored: onTold,
  });
  const holders = createBatcher<string, string | undefined>({
    itemsMax: 500,
    concurrency: 2,
    run: async (businessAccountIds) => {
      const found = await findAccountHolders(database, [...new Set(businessAccountIds)]);
      return businessAccountIds.map((id) => found.get(id));
    },
  });
  return async ({ organizationId: known, ...told }) => {
    const organizationId = known ?? (await holders.add(told.businessAccountId));
    if (organizationId === undefined) {
      log.warn({ provider, kind: told.kind }, 'something was told of a business account that nobody has');
      return;
    }
    if (told.kind !== 'status')
      return takeEvent({ id: newId(), attempts: 0, event: { ...told, organizationId } });
    const { person, finding: found } = told;
    if (found?.kind === 'own_fault') logOwnFault(log, { organizationId, provider, words: found.words });
    const hasArrived = told.report.status === 'delivered' || told.report.status === 'opened';
    const finding: ReportedFinding = { kind: 'reported', person, finding: found, hasArrived };
    await report({ channel: 'chatapp', provider, report: told.report, organizationId, finding });
  };
}

/** Where nobody looks at the message that has failed, nobody else would hear of it. */
function logOwnFault(
  log: Log,
  { organizationId, provider, words }: { organizationId: string; provider: string; words: string },
): void {
  log.error(
    { organization_id: organizationId, provider, words },
    'a provider refused what was never to be sent',
  );
}

export type ChatAppEventTools = ChoreTools &
  ChoiceTools & {
    /** Called after every commit that changed the consent of contacts. */
    onContactsChanged: () => void;
    /** Smaller in tests. */
    appliedMax?: number;
  };

/** Applies what is stored. May run on any number of nodes. */
export function startChatAppEvents(given: ChatAppEventTools): RunningChore {
  const { appliedMax = defaultAppliedMax } = given;
  return startChore(given, {
    name: 'applying what providers of chat-app messages told',
    topic: 'chat_app_events',
    work: () =>
      applyInOrder(given, {
        name: 'events of chat apps',
        lockName: 'events of chat apps',
        appliedMax,
        takeDue: takeDueChatAppEvents,
        apply: (transaction, events) => applyTogether(given, transaction, events),
        onApplied: ({ haveContactsChanged }) => {
          if (haveContactsChanged) given.onContactsChanged();
        },
        putBack: (transaction, events) => putBack(given, transaction, events),
        findNextAt: findNextChatAppEventAt,
      }),
  });
}

async function applyTogether(
  tools: ChatAppEventTools,
  transaction: Transaction,
  events: readonly ChatAppEvent[],
): Promise<{ haveContactsChanged: boolean }> {
  let haveContactsChanged = false;
  const unknown: ChatAppEvent[] = [];
  for (const event of events) {
    const applied = await applyEvent(transaction, tools, event.event);
    if (applied === 'unknown person') unknown.push(event);
    haveContactsChanged ||= applied === 'contact changed';
  }
  const kept = await keepRoom(unknown, {
    organizationOf: ({ event }) => event.organizationId,
    countWaiting: (organizationId, countMax) =>
      transaction.asOrganizations([organizationId], () =>
        countPutBackEvents(transaction, organizationId, countMax),
      ),
    onDropped: (dropped) => {
      tools.log.warn(dropped, 'too much was told of people whom nobody knows');
    },
  });
  await putBack(tools, transaction, kept);
  return { haveContactsChanged };
}

/** `unknown person`: the status that says who it is may still be on its way. */
type Applied = 'done' | 'contact changed' | 'unknown person';

async function applyEvent(
  transaction: Transaction,
  tools: ChatAppEventTools,
  event: ToldBesides & { organizationId: string },
): Promise<Applied> {
  const { organizationId } = event;
  switch (event.kind) {
    case 'inbound': {
      const keyword = readKeyword(event.text);
      if (keyword === null || keyword === 'help') return hearFrom(transaction, tools, event);
      tools.log.info({ organization_id: organizationId, keyword }, 'a keyword came in');
      return choose(transaction, tools, event, { subject: 'all', choice: keyword });
    }
    case 'marketing_preference': {
      const choice = event.value === 'stop' ? 'stop' : 'start';
      return choose(transaction, tools, event, { subject: 'marketing', choice });
    }
    case 'changed_number':
      return changeNumber(transaction, tools, event);
    case 'template':
      await applyTemplateReviews(tools, transaction, organizationId, [event.template]);
      return 'done';
    case 'people_limit':
      await transaction.asOrganizations([organizationId], () => notePeopleLimit(tools, transaction, event));
      return 'done';
    case 'account':
      tools.log.warn(
        { organization_id: organizationId, words: event.words },
        'the provider speaks of an account',
      );
      await noteAccount(transaction, event);
      return 'done';
  }
}

async function noteAccount(
  transaction: Transaction,
  event: Extract<ToldBesides, { kind: 'account' }> & { organizationId: string },
): Promise<void> {
  const { organizationId, words, areCampaignsHeld } = event;
  if (areCampaignsHeld === null) return;
  await transaction.asOrganizations([organizationId], async () => {
    if (areCampaignsHeld) await holdCampaigns(transaction, { organizationId, words, until: null });
    else await releaseCampaigns(transaction, organizationId);
  });
}

type OfPerson = Extract<ToldBesides, { kind: 'inbound' | 'marketing_preference' | 'changed_number' }> & {
  organizationId: string;
};

async function choose(
  transaction: Transaction,
  tools: ChatAppEventTools,
  { organizationId, person, at }: OfPerson,
  chosen: Pick<Choice, 'subject' | 'choice'>,
): Promise<Applied> {
  return transaction.asOrganizations([organizationId], async () => {
    const addresses = await findAddresses(transaction, organizationId, person);
    if (addresses.length === 0) return 'unknown person';
    let hasChanged = false;
    for (const address of addresses) {
      const choice = { organizationId, address, ...chosen, at: pastOf(tools, at) };
      if (await makeChoice(transaction, tools, choice)) hasChanged = true;
    }
    await noteReached(transaction, tools, { organizationId, addresses });
    return hasChanged ? 'contact changed' : 'done';
  });
}

/** Whoever writes has the app, whatever it says. */
async function hearFrom(
  transaction: Transaction,
  tools: ChatAppEventTools,
  { organizationId, person }: OfPerson,
): Promise<Applied> {
  await transaction.asOrganizations([organizationId], async () => {
    const addresses = await findAddresses(transaction, organizationId, person);
    await noteReached(transaction, tools, { organizationId, addresses });
  });
  return 'done';
}

/**
 * The number of the contact stays what the organization made it; what the person has said goes for the new number too.
 */
async function changeNumber(
  transaction: Transaction,
  tools: ChatAppEventTools,
  event: Extract<OfPerson, { kind: 'changed_number' }>,
): Promise<Applied> {
  const { organizationId, person, newPerson } = event;
  return transaction.asOrganizations([organizationId], async () => {
    const [addresses, [to]] = [
      await findAddresses(transaction, organizationId, person),
      await findAddresses(transaction, organizationId, newPerson),
    ];
    if (to === undefined) return 'done';
    const known = listNamesOf(newPerson, to).map((knownAs) => ({ organizationId, knownAs, address: to }));
    await keepPeople(transaction, known, now(tools.clock));
    let hasChanged = false;
    for (const from of addresses) {
      const move = { organizationId, from, to, at: pastOf(tools, event.at) };
      if (await moveChoices(transaction, tools, move)) hasChanged = true;
    }
    return hasChanged ? 'contact changed' : 'done';
  });
}

/** As JSON has it, and never later than now: nobody could take back what was said in the future. */
function pastOf({ clock }: { clock: Clock }, at: Date | string): Date {
  const toldMs = typeof at === 'string' ? parseTimestamp(at) : at.getTime();
  return dateOf(Math.min(toldMs ?? Infinity, clock.nowMs()));
}

async function putBack(
  { clock, log }: { clock: Clock; log: Log },
  transaction: Transaction,
  events: readonly ChatAppEvent[],
): Promise<void> {
  const later = planNextLooks(clock, events, ({ event: { organizationId, kind } }) => {
    log.warn(
      { organization_id: organizationId, kind },
      'what a chat app told cannot be applied, and is dropped',
    );
  });
  await insertChatAppEvents(transaction, later);
}
