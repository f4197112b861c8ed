import { type Clock, dateOf, now, parseTimestamp } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import type { CallingDevice } from '../platform/http/route.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import {
  changeRecipients,
  endRepeats,
  type RecipientListeners,
  lockEngagedRecipients,
  type RecipientKey,
  type RecipientStatus,
  type RecipientTools,
  textOfKey,
  type ToldEngagement,
} from '../messages/messages.ts';
import { pushChannel } from './channel.ts';
import * as store from './engagement-store.ts';
import type { EngagementCounts, EngagementEvent } from './schema.ts';

/**
 * What apps report of pushes on their devices. Reports come late, in any order, more than once, and while the hand-off is
 * still under way:
 *
 * 1. The recipients are **found** by message and device. An event of a message that the device was not sent, or of a time
 *    that cannot be, is rejected; the others count.
 * 2. Messages and recipients are **locked**, as the settlement of their hand-off locks them. Which events are known
 *    already is read after that.
 * 3. What they say is **written**: the first time of each kind in any order of arrival, and with it the recipient's
 *    status. A click is a display, and a display is a delivery. A push that was dismissed has arrived, no more.
 */
export type PushEngagementTools = RecipientListeners & RecipientTools & { database: Database; clock: Clock };

/** Clocks of phones are wrong by hours where their time zone is. */
const aheadMaxMs = 86_400_000;

/** Events of one push on one device by which repetitions are known. An app has four of each, and some more clicks. */
const eventIdsMax = 32;

type TimedEvent = EngagementEvent & { at: Date };

export async function recordPushEngagements(
  tools: PushEngagementTools,
  organizationId: string,
  device: CallingDevice,
  events: readonly EngagementEvent[],
): Promise<EngagementCounts> {
  const at = now(tools.clock);
  const possible = events.flatMap((event) => {
    const occurredMs = parseTimestamp(event.occurred_at) ?? Number.POSITIVE_INFINITY;
    if (occurredMs > at.getTime() + aheadMaxMs) return [];
    return [
      {
        ...event,
        message_id: event.message_id.toLowerCase(),
        at: dateOf(Math.min(occurredMs, at.getTime())),
      },
    ];
  });
  const { counts, haveContactsChanged } = await tools.database.asOrganizationsByIndex(
    [organizationId],
    (transaction) => record(transaction, tools, { organizationId, device, events: possible, at }),
  );
  if (haveContactsChanged) tools.onContactsChanged();
  if (counts.accepted > 0) tools.onCampaignProgress();
  return { ...counts, rejected: events.length - counts.accepted - counts.duplicate };
}

type Recording = {
  organizationId: string;
  device: CallingDevice;
  events: readonly TimedEvent[];
  at: Date;
};

async function record(
  transaction: Transaction,
  tools: RecipientTools,
  { organizationId, device, events, at }: Recording,
): Promise<{ counts: Omit<EngagementCounts, 'rejected'>; haveContactsChanged: boolean }> {
  const byMessage = groupBy(events, ({ message_id: id }) => id);
  const found = await store.findPushedRecipients(transaction, { organizationId, ...device }, [
    ...byMessage.keys(),
  ]);
  const locked = await lockEngagedRecipients(transaction, [...found.values()]);
  const present = locked.filter(({ hasOnlyFailed }) => !hasOnlyFailed);
  const known = await store.findEngagements(transaction, present);
  const learnt = present.flatMap(({ organizationId, messageId, ordinal }) => {
    const recipient = found.get(messageId);
    const told = byMessage.get(messageId);
    if (recipient === undefined || told === undefined) return [];
    const key = { organizationId, messageId, ordinal };
    const before = known.get(textOfKey(key)) ?? nothingKnown;
    const after = told.reduce((sum, event) => learn(sum, event, recipient.acceptedAt), before);
    const accepted = after.eventIds.length - before.eventIds.length;
    return [{ recipient, engaged: { ...key, ...after }, accepted, duplicate: told.length - accepted }];
  });
  const changed = learnt.filter(({ accepted }) => accepted > 0);
  const counts = {
    accepted: learnt.reduce((sum, { accepted }) => sum + accepted, 0),
    duplicate: learnt.reduce((sum, { duplicate }) => sum + duplicate, 0),
  };
  if (changed.length === 0) return { counts, haveContactsChanged: false };
  const engaged = changed.map((one) => one.engaged);
  const contactIds = new Set(changed.map(({ recipient }) => recipient.contactId));
  const { haveContactsChanged } = await changeRecipients(transaction, tools, {
    at,
    write: { kind: 'told_engagements', engaged: engaged.map(sumUp) },
    channelOf: () => pushChannel,
    told: { contacts: [...contactIds].map((contactId) => ({ organizationId, contactId, addressKey: '' })) },
    alongside: () => [store.writeEngagements(transaction, engaged), endRepeats(transaction, engaged)],
  });
  return { counts, haveContactsChanged };
}

const nothingKnown: store.PushEngagement = {
  deliveredAt: null,
  displayedAt: null,
  clickedAt: null,
  dismissedAt: null,
  actionId: null,
  eventIds: [],
};

function learn(known: store.PushEngagement, event: TimedEvent, acceptedAt: Date): store.PushEngagement {
  const { event_id: eventId, type } = event;
  if (known.eventIds.includes(eventId) || known.eventIds.length >= eventIdsMax) return known;
  const at = event.at < acceptedAt ? acceptedAt : event.at;
  const isClick = type === 'clicked';
  const isFirstClick = isClick && (known.clickedAt === null || at < known.clickedAt);
  return {
    deliveredAt: type === 'dismissed' ? known.deliveredAt : earliest(known.deliveredAt, at),
    displayedAt: isClick || type === 'displayed' ? earliest(known.displayedAt, at) : known.displayedAt,
    clickedAt: isClick ? earliest(known.clickedAt, at) : known.clickedAt,
    dismissedAt: type === 'dismissed' ? earliest(known.dismissedAt, at) : known.dismissedAt,
    actionId: isFirstClick ? (event.action_id ?? null) : known.actionId,
    eventIds: [...known.eventIds, eventId],
  };
}

function earliest(known: Date | null, at: Date): Date {
  return known === null || at < known ? at : known;
}

/** As the recipient of any message has it: who has seen a push has opened it. */
function sumUp(engaged: RecipientKey & store.PushEngagement): ToldEngagement {
  const { organizationId, messageId, ordinal, deliveredAt, displayedAt, clickedAt, dismissedAt } = engaged;
  const times = [deliveredAt, displayedAt, clickedAt, dismissedAt];
  const firstAt = times.reduce((first, at) => (at === null ? first : earliest(first, at)), null);
  if (firstAt === null) throw new Error('an engagement has no time');
  const [status, statusAt] = statusOf(engaged) ?? (['sent', firstAt] as const);
  return {
    ...{ organizationId, messageId, ordinal, status, statusAt, firstAt },
    openedAt: displayedAt,
    clickedAt,
  };
}

function statusOf(engaged: store.PushEngagement): readonly [RecipientStatus, Date] | null {
  const { deliveredAt, displayedAt, clickedAt } = engaged;
  if (clickedAt !== null) return ['clicked', clickedAt];
  if (displayedAt !== null) return ['opened', displayedAt];
  return deliveredAt && ['delivered', deliveredAt];
}
