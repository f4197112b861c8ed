import { findOrganizations } from '../accounts/accounts.ts';
import { dateOf, now } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { ChoreTools, RunningChore } from '../platform/queue/chore.ts';
import { startTurns, type TurnResult } from '../platform/queue/turns.ts';
import { parseUrl } from '../platform/url.ts';
import {
  describeLogged,
  type EventDescribers,
  findFailingWebhooks,
  findWithAlerts,
  type LoggedEvent,
  noteAlertsRead,
  readLog,
} from '../webhooks/webhooks.ts';
import { type AlertKind, alertKinds, isAlertKind } from './kinds.ts';
import { writeAlert } from './mail.ts';
import { sendAlert, type SendingTools } from './sender.ts';
import * as store from './store.ts';
import type { AlertSubject } from './words.ts';

/**
 * Alerts: people of an organization are told by email of what goes wrong. They read the log of events beside its webhooks,
 * from a position of their own:
 *
 * 1. **read**: what is new in the log is added to what waits of its kind (`alerts`), and the position moves on, in one
 *    transaction. Of an endpoint that fails it is noted when to look at it (`alert_watches`): most work again soon.
 * 2. **watched**: an endpoint that still fails after a quarter of an hour, a day and four days is added as well.
 * 3. **told**: what waits of a kind becomes one email, an hour after the last of that kind or at once, and does not wait any
 *    more, in the transaction that accepts the email (sender.ts).
 *
 * So each event is told once, whatever dies, and however much happens a kind takes one row and one email an hour. What
 * becomes of the emails themselves is none of the kinds: alerts cause no alerts.
 */
export type AlertTools = ChoreTools &
  SendingTools & {
    describers: EventDescribers;
    /** Called after a commit that queued an email. */
    onQueued: () => void;
    /** Smaller in tests. */
    eventsMax?: number;
  };

/** Of a kind, between two emails. */
const pauseMs = 60 * 60_000;
/** How much is told with its name; the rest is counted. */
const newestMax = 10;
/** For how long an endpoint has failed when people are told, again and again. It is disabled after five days. */
const failingStages = [
  { afterMs: 15 * 60_000, said: '15 minutes' },
  { afterMs: 24 * 60 * 60_000, said: '24 hours' },
  { afterMs: 4 * 24 * 60 * 60_000, said: '4 days' },
];
const defaultEventsMax = 200;
const organizationsMax = 100;

export function startAlerts(tools: AlertTools): RunningChore {
  const { database, clock } = tools;
  return startTurns(tools, {
    name: 'sending alerts',
    topic: 'alerts',
    slicesMs: [null],
    organizationsMax,
    find: async (after, limit) => {
      const page = { at: now(clock), after, limit };
      const found = await Promise.all([findWithAlerts(database, page), store.findDue(database, page)]);
      return [...new Set(found.flat())].sort().slice(0, limit);
    },
    findNextAt: (after) => store.findNextDue(database, after),
    work: async (organizationId): Promise<TurnResult> => {
      const isMore = await database.asOrganizations([organizationId], (transaction) =>
        noteHappened(tools, transaction, organizationId),
      );
      const isTold = await tellNext(tools, organizationId);
      return isMore || isTold ? 'more' : null;
    },
  });
}

/** Adds a bounded piece of the log to what waits, and the endpoints that have failed for long. Returns whether there is more. */
async function noteHappened(
  { clock, eventsMax = defaultEventsMax }: AlertTools,
  transaction: Transaction,
  organizationId: string,
): Promise<boolean> {
  const settings = await store.lockSettings(transaction, organizationId);
  if (settings === null) {
    await noteAlertsRead(transaction, organizationId, Number.MAX_SAFE_INTEGER);
    return false;
  }
  const at = now(clock);
  const { events, next } = await readLog(transaction, {
    organizationId,
    from: settings.next_position,
    patterns: alertKinds,
    campaignEvents: null,
    limit: eventsMax,
  });
  const [failing, others] = [
    events.filter(({ type }) => type === 'webhook.failing'),
    events.filter(({ type }) => type !== 'webhook.failing'),
  ];
  await store.watchWebhooks(
    transaction,
    organizationId,
    // Of one that failed several times, the last is what is watched.
    [...new Map(failing.map((event) => [event.subjectId, event])).values()].map((event) => ({
      webhookId: event.subjectId,
      failingSince: event.at,
      dueAt: dateOf(event.at.getTime() + (failingStages[0]?.afterMs ?? 0)),
    })),
  );
  const watched = await lookAtWatched(transaction, organizationId, at);
  const noted = [...groupBy([...others, ...watched], ({ type }) => type)].flatMap(([type, ofType]) =>
    isAlertKind(type) ? [toNoted(type, ofType)] : [],
  );
  if (noted.length > 0)
    await store.noteAlerts(transaction, { organizationId, noted, at, pauseMs, newestMax });
  await store.savePosition(transaction, organizationId, next);
  await noteAlertsRead(transaction, organizationId, next);
  return events.length === eventsMax;
}

function toNoted(kind: AlertKind, events: readonly LoggedEvent[]): store.Noted {
  const sinceMs = Math.min(...events.map(({ at }) => at.getTime()));
  return {
    kind,
    count: events.length,
    since: dateOf(sinceMs),
    newest: events
      .slice(-newestMax)
      .reverse()
      .map(({ id, position, at, subjectId, facts }) => ({
        id,
        position,
        atMs: at.getTime(),
        subjectId,
        facts,
      })),
  };
}

/** Those endpoints that still fail when they are looked at; each is looked at again at the next stage. */
async function lookAtWatched(
  transaction: Transaction,
  organizationId: string,
  at: Date,
): Promise<LoggedEvent[]> {
  const due = await store.takeDueWatches(transaction, organizationId, at);
  if (due.length === 0) return [];
  const webhooks = await findFailingWebhooks(
    transaction,
    organizationId,
    due.map(({ webhookId }) => webhookId),
  );
  const still = due.filter(({ webhookId, failingSince }) => {
    const webhook = webhooks.get(webhookId);
    return webhook?.status === 'enabled' && webhook.failingSince?.getTime() === failingSince.getTime();
  });
  const stages = still.map((watch) => {
    const failedMs = at.getTime() - watch.failingSince.getTime();
    // Whoever was away for a day tells of the day, and not of the quarter of an hour.
    const place = failingStages.findLastIndex(({ afterMs }) => failedMs >= afterMs);
    return { watch, said: failingStages[place]?.said ?? '', next: failingStages[place + 1] };
  });
  await store.watchWebhooks(
    transaction,
    organizationId,
    stages.flatMap(({ watch, next }) =>
      next === undefined ? [] : [{ ...watch, dueAt: dateOf(watch.failingSince.getTime() + next.afterMs) }],
    ),
  );
  return stages.map(({ watch, said }) => ({
    id: watch.webhookId,
    position: 0,
    type: 'webhook.failing',
    at,
    subjectId: watch.webhookId,
    ordinal: null,
    facts: { failing_for: said },
  }));
}

/** Tells what is due of one kind. Returns whether there was anything. */
async function tellNext(tools: AlertTools, organizationId: string): Promise<boolean> {
  const { database, clock, log } = tools;
  const told = await database.transaction(async (transaction) => {
    const within = <Result>(work: () => Promise<Result>) =>
      transaction.asOrganizations([organizationId], work);
    const at = now(clock);
    const due = await within(async () => {
      // Another node waits here, and finds what this one has left.
      const settings = await store.lockSettings(transaction, organizationId);
      const alert = settings && (await store.takeDueAlert(transaction, organizationId, at));
      if (settings === null || alert === null) return null;
      const [organization] = await findOrganizations(transaction, organizationId);
      if (organization === undefined) return null;
      return {
        settings,
        alert,
        organization,
        newest: await describe(tools, transaction, organizationId, alert),
      };
    });
    if (due === null) return null;
    const { settings, alert, organization, newest } = due;
    const problem = await sendAlert(tools, transaction, {
      organizationId,
      addresses: settings.addresses,
      mail: writeAlert({
        kind: alert.kind,
        organization,
        count: alert.waiting,
        since: alert.waiting_since,
        newest,
      }),
      at,
    });
    await within(() =>
      problem === null
        ? store.noteTold(transaction, organizationId, alert.kind, at)
        : store.putOff(transaction, organizationId, alert.kind, {
            problem,
            dueAt: dateOf(at.getTime() + pauseMs),
          }),
    );
    return { problem, isNew: problem !== alert.problem, kind: alert.kind };
  });
  if (told === null) return false;
  const { problem, isNew, kind } = told;
  if (problem === null) tools.onQueued();
  else if (isNew)
    log.warn({ organization_id: organizationId, kind, problem }, 'an alert cannot be sent and waits');
  return true;
}

/** What is told of the events, as it is now; of what is gone, its id. */
async function describe(
  { describers }: AlertTools,
  transaction: Transaction,
  organizationId: string,
  { kind, newest }: store.AlertRow,
): Promise<{ at: Date; subject: AlertSubject }[]> {
  const events = newest.map((event) => ({
    ...event,
    type: kind,
    ordinal: null,
    at: dateOf(event.atMs),
  }));
  const described = await describeLogged(transaction, describers, organizationId, events);
  const ids = kind.startsWith('webhook.') ? events.map(({ subjectId }) => subjectId) : [];
  const webhooks = await findFailingWebhooks(transaction, organizationId, ids);
  return events.map((event, place) => {
    const webhook = webhooks.get(event.subjectId);
    return {
      at: event.at,
      subject: {
        ...described[place]?.data,
        ...event.facts,
        id: event.subjectId,
        ...(webhook !== undefined && {
          name: webhook.description ?? hostOf(webhook.url),
          last_failure: webhook.lastFailureMessage,
        }),
      },
    };
  });
}

/** The rest may be a secret. */
function hostOf(url: string): string {
  return parseUrl(url)?.host ?? '';
}
