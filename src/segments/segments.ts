import { findEventsKeptMs, loadLimits } from '../accounts/accounts.ts';
import {
  type ContactRecord,
  deleteSetWithin,
  findSets,
  type Holder,
  insertSet,
  listContactsByIds,
  loadProperties,
  replaceHolds,
  setReadiness,
  updateSet,
} from '../audience/audience.ts';
import { isLongerThan } from '../platform/characters.ts';
import { findCampaignMessages } from '../messages/messages.ts';
import { type Clock, now } from '../platform/clock.ts';
import { cursorOf, type Page } from '../platform/http/pagination.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection, Database, Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { loadEvents } from './asked-events.ts';
import { compileLeaves, compilePredicate } from './compile.ts';
import { makeUsersStale } from './staleness.ts';
import {
  askedEvents,
  collectMentionedNames,
  type Condition,
  type ConditionReading,
  parseConditions,
  referencesOf,
} from './conditions.ts';
import { type ExplainedCondition, explainConditions } from './explain.ts';
import type { SegmentBody, SegmentPatch } from './schema.ts';
import * as store from './store.ts';

export { describeConditions } from './condition-schema.ts';
export { segmentRules } from './rules.ts';
export { createSegmentDescriber } from './told-events.ts';
export { toldSegment } from './schema.ts';
export { computeEventReaders, findLaggingSince, tryLockPreview } from './store.ts';

export type SegmentTools = { database: Database; clock: Clock; newId: NewId };

/** What shows contacts, with what holds of their consents. */
type ShowingTools = SegmentTools & { secrets: Secrets };

export type SegmentOutcome =
  | { kind: 'done'; segment: store.SegmentRow }
  | { kind: 'invalid'; issues: readonly string[] }
  | { kind: 'limit_reached' }
  | { kind: 'not_found' };

/**
 * Parses conditions, which may refer to the organization's properties, sets, campaigns and events. Events that are to be
 * held are locked: see `loadEvents`.
 */
export async function readConditions(
  connection: Connection,
  organizationId: string,
  conditions: unknown,
  { isHeld }: { isHeld: boolean } = { isHeld: false },
): Promise<ConditionReading> {
  if (isLongerThan(JSON.stringify(conditions), conditionsLengthMax)) {
    return { ok: false, issues: [`conditions must have at most ${conditionsLengthMax} characters in all`] };
  }
  const { setIds, campaignIds, eventNames } = collectMentionedNames(conditions);
  const [properties, sets, campaignMessages, events, eventsKeptMs] = await Promise.all([
    loadProperties(connection, organizationId),
    findSets(connection, organizationId, setIds),
    findCampaignMessages(connection, organizationId, campaignIds),
    loadEvents(connection, { organizationId, names: eventNames, isHeld }),
    findEventsKeptMs(connection, organizationId),
  ]);
  return parseConditions(conditions, {
    properties,
    sets: new Map([...sets].map(([id, { kind }]) => [id, kind])),
    campaignMessages,
    events,
    eventsKeptMs,
  });
}

/** Every segment is evaluated for every contact that changes, so the limit does not depend on the plan. */
const segmentsMax = 1_000;
/** As JSON. A page has a hundred segments, and a worker reads all of an organization's at once. */
const conditionsLengthMax = 32_768;

/** The new segment has no members until it is computed. */
export async function createSegment(
  tools: SegmentTools,
  organizationId: string,
  body: SegmentBody,
): Promise<SegmentOutcome> {
  return orRefused(
    tools.database.asOrganizations([organizationId], async (transaction): Promise<SegmentOutcome> => {
      await store.lockSegments(transaction, organizationId);
      const reading = await readConditions(transaction, organizationId, body.conditions, { isHeld: true });
      if (!reading.ok) return { kind: 'invalid', issues: reading.issues };
      const { segments: limit } = await loadLimits(transaction, organizationId);
      const most = Math.min(limit ?? segmentsMax, segmentsMax);
      if (await store.hasSegments(transaction, organizationId, most)) return { kind: 'limit_reached' };
      const segment = { organizationId, id: tools.newId() };
      const at = now(tools.clock);
      await insertSet(transaction, {
        ...segment,
        kind: 'segment',
        name: body.name,
        description: body.description ?? null,
        isReady: false,
        at,
      });
      await store.insertSegment(transaction, { ...segment, conditions: body.conditions, at });
      await holdReferences(transaction, segment, reading.condition);
      return foundAgain(await store.findSegment(transaction, segment));
    }),
  );
}

/** If the conditions change, the members are computed again. */
export async function updateSegment(
  tools: SegmentTools,
  segment: store.SegmentKey,
  patch: SegmentPatch,
): Promise<SegmentOutcome> {
  const { organizationId } = segment;
  const { conditions, ...rest } = patch;
  return orRefused(
    tools.database.asOrganizations([organizationId], async (transaction): Promise<SegmentOutcome> => {
      await store.lockSegments(transaction, organizationId);
      const at = now(tools.clock);
      const set = await updateSet(transaction, { ...segment, kind: 'segment', patch: rest, at });
      if (set === null) return { kind: 'not_found' };
      if (conditions !== undefined) {
        const reading = await readConditions(transaction, organizationId, conditions, { isHeld: true });
        if (!reading.ok) throw new RefusedConditions(reading.issues);
        const ids = referencesOf(reading.condition).flatMap(({ kind, id }) =>
          kind === 'segment' ? [id] : [],
        );
        if (await store.usesSegment(transaction, { organizationId, ids, usedId: segment.id })) {
          throw new RefusedConditions([
            'conditions must not refer to the segment itself, directly or through other segments',
          ]);
        }
        await setReadiness(transaction, { organizationId, ids: [segment.id], isReady: false });
        await store.replaceConditions(transaction, { ...segment, conditions, at });
        await makeUsersStale(transaction, segment);
        await holdReferences(transaction, segment, reading.condition);
      }
      return foundAgain(await store.findSegment(transaction, segment));
    }),
  );
}

async function orRefused(work: Promise<SegmentOutcome>): Promise<SegmentOutcome> {
  try {
    return await work;
  } catch (cause) {
    if (cause instanceof RefusedConditions) return { kind: 'invalid', issues: cause.issues };
    throw cause;
  }
}

/** Thrown to roll the transaction back. */
class RefusedConditions extends Error {
  readonly issues: readonly string[];
  constructor(issues: readonly string[]) {
    super('the conditions were refused');
    this.issues = issues;
  }
}

function foundAgain(segment: store.SegmentRow | null): SegmentOutcome {
  if (segment === null) throw new Error('a segment that was just written is not there');
  return { kind: 'done', segment };
}

/** What the conditions refer to existed a moment ago. The hold makes sure that it still does. */
async function holdReferences(
  transaction: Transaction,
  segment: store.SegmentKey,
  condition: Condition,
): Promise<void> {
  const missing = await replaceHolds(transaction, { ...segment, kind: 'segment' }, referencesOf(condition));
  if (missing.length > 0) {
    throw new RefusedConditions(
      missing.map((id) => `conditions refer to ${id}, which was deleted in the meantime`),
    );
  }
}

export async function deleteSegment(
  tools: SegmentTools,
  segment: store.SegmentKey,
): Promise<'deleted' | 'not_found' | Holder> {
  return tools.database.asOrganizations([segment.organizationId], async (transaction) => {
    const outcome = await deleteSetWithin(transaction, { ...segment, kind: 'segment' }, now(tools.clock));
    if (outcome === 'deleted') {
      await replaceHolds(transaction, { ...segment, kind: 'segment' }, []);
      await store.deleteSegment(transaction, segment);
    }
    return outcome;
  });
}

/** The fields of an event that segments ask about, each of which must keep its type. */
export async function findReadFields(
  transaction: Connection,
  definition: { organizationId: string; id: string },
): Promise<{ name: string; segmentId: string }[]> {
  const { organizationId, id } = definition;
  const holders = await store.listHolders(transaction, definition);
  const fields = [];
  for (const segment of holders) {
    const reading = await readConditions(transaction, organizationId, segment.conditions);
    if (!reading.ok) throw new Error('stored conditions cannot be read', { cause: reading.issues });
    const asked = askedEvents(reading.condition).filter((event) => event.id === id);
    for (const name of new Set(asked.flatMap((event) => event.fields)))
      fields.push({ name, segmentId: segment.id });
  }
  return fields;
}

const sampleSize = 10;
/** Longer than a person would wait. To count more, save the segment. */
const lookTimeoutMs = 10_000;

/** What comes of a look at all contacts during a request. */
export type Look<Seen> =
  | { kind: 'seen'; seen: Seen }
  | { kind: 'invalid'; issues: readonly string[] }
  /** The organization is looking already, or too many others are. */
  | { kind: 'busy' };

export type Preview = { count: number; sample: ContactRecord[] };

/** How many contacts there are for whom conditions hold, and some of them. */
export async function previewConditions(
  tools: ShowingTools,
  organizationId: string,
  conditions: unknown,
): Promise<Look<Preview>> {
  return lookAtAll(tools, organizationId, conditions, async (transaction, condition) => {
    const predicate = compilePredicate(condition, [organizationId], now(tools.clock));
    const { count, sampleIds } = await store.joinByHash(transaction, predicate, () =>
      store.countMatching(transaction, predicate, sampleSize),
    );
    return { count, sample: await listContactsByIds(transaction, tools, organizationId, sampleIds) };
  });
}

/** A page of the contacts for whom conditions hold: one more than it holds, in the order of `pageClause`. */
export async function searchContacts(
  tools: ShowingTools,
  { organizationId, conditions, page }: { organizationId: string; conditions: unknown; page: Page },
): Promise<Look<ContactRecord[]>> {
  return lookAtAll(tools, organizationId, conditions, async (transaction, condition) => {
    const first = [organizationId, cursorOf(page), page.limit + 1];
    const predicate = compilePredicate(condition, first, now(tools.clock));
    const ids = await store.joinByHash(transaction, predicate, () =>
      store.listMatching(transaction, predicate, page),
    );
    const newestFirst = await listContactsByIds(transaction, tools, organizationId, ids);
    return page.before === null ? newestFirst : newestFirst.reverse();
  });
}

/**
 * Such a look may read all contacts, however few it is for. So an organization has one at a time, some of all organizations
 * have one at once, and none takes longer than a person waits.
 */
async function lookAtAll<Seen>(
  tools: ShowingTools,
  organizationId: string,
  conditions: unknown,
  look: (transaction: Transaction, condition: Condition) => Promise<Seen>,
): Promise<Look<Seen>> {
  return tools.database.asOrganizations([organizationId], async (transaction): Promise<Look<Seen>> => {
    const reading = await readConditions(transaction, organizationId, conditions);
    if (!reading.ok) return { kind: 'invalid', issues: reading.issues };
    if (!(await store.tryLockPreview(transaction, organizationId))) return { kind: 'busy' };
    await transaction.allowTime(lookTimeoutMs);
    return { kind: 'seen', seen: await look(transaction, reading.condition) };
  });
}

export type Explanation = { isMember: boolean; holds: boolean; conditions: ExplainedCondition };

/** Which of a segment's conditions hold for one contact; null if there is no such segment or contact. */
export async function explainMembership(
  tools: SegmentTools,
  segment: store.SegmentKey,
  contactId: string,
): Promise<Explanation | null> {
  const { organizationId } = segment;
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    const row = await store.findSegment(transaction, segment);
    if (row === null) return null;
    const reading = await readConditions(transaction, organizationId, row.conditions);
    if (!reading.ok) throw new Error('stored conditions cannot be read', { cause: reading.issues });
    const values: unknown[] = [organizationId, contactId, segment.id];
    const expressions = compileLeaves(reading.condition, {
      bind: (value) => `$${values.push(value)}`,
      at: now(tools.clock),
      organization: '$1',
      eventCounts: null,
    });
    const tested = await store.testContact(transaction, { expressions, values });
    if (tested === null) return null;
    const conditions = explainConditions(reading.condition, tested.truths);
    return { isMember: tested.isMember, holds: conditions.holds, conditions };
  });
}
