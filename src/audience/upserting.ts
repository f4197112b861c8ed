import { now } from '../platform/clock.ts';
import type { AcceptOutcome } from '../platform/http/acceptance.ts';
import { overloaded, PublicError, toEnvelope, validationError } from '../platform/http/errors.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import { respondOnce } from '../platform/http/keyed-response.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { shareIdentifiers } from './consents.ts';
import type { ReadContact } from './contact-body.ts';
import { type ContactRefusal, refuseContact } from './contact-refusal.ts';
import { emptyContact, mergeContact, type Properties } from './contact-values.ts';
import { type ContactTools, listContactsByIds, listUnknownSets } from './contacts.ts';
import { identifiersOf, planBatch, type PlannedRow, type RowOutcome } from './files/import-plan.ts';
import { findPresent, lockImports } from './files/import-store.ts';
import { allInOrder, isOvertaken, writePlan } from './files/plan-writing.ts';
import { loadProperties } from './property-store.ts';
import type { BulkContacts, ContactBody, ContactRecord } from './schema.ts';
import { findSets } from './set-store.ts';
import { hasOptOuts } from './suppression-store.ts';

/**
 * Contacts that a request names by their identifiers: each is made if there is none, and else changed, as a row of a file
 * is (`files/import-plan.ts` decides which contact is meant). One request is one transaction, in which what is said later
 * of the same contact comes on top of what was said before.
 *
 * Whoever writes one of the contacts meanwhile is quicker: what the request comes to is decided anew on top of that. So two
 * that name one new person at once make one contact, and neither loses what the other has said.
 */

/** Lists and tags that one request may name: for each contact it is read which of them it is in. */
export const bulkSetsMax = 1_000;

export type UpsertRequest = { organizationId: string; bodies: readonly ReadContact[] };

/** What became of one contact. */
type Upserted = { kind: 'written'; contactId: string; isNew: boolean; isChanged: boolean } | ContactRefusal;

/** `onChanged` is told after the commit if segments may depend on what was written. */
type UpsertTools = ContactTools & { onChanged: () => void };

/** The contact as it is then; throws the PublicError that refuses it. */
export async function upsertContact(
  tools: UpsertTools,
  organizationId: string,
  body: ContactBody,
): Promise<{ contact: ContactRecord; isNew: boolean }> {
  const { upserted, contact } = await untilNotOvertaken(() =>
    tools.database.asOrganizations([organizationId], async (transaction) => {
      const [upserted] = await upsertWithin(transaction, tools, {
        organizationId,
        bodies: [{ kind: 'read', body }],
      });
      if (upserted === undefined) throw new Error('a contact has no outcome');
      const ids = upserted.kind === 'written' ? [upserted.contactId] : [];
      const [contact] = await listContactsByIds(transaction, tools, organizationId, ids);
      return { upserted, contact };
    }),
  );
  if (upserted.kind !== 'written') throw refuseContact(upserted);
  if (contact === undefined) throw new Error('a contact that was just written is not there');
  if (upserted.isChanged) tools.onChanged();
  return { contact, isNew: upserted.isNew };
}

/** Each by itself: one that is refused has its error, and the others are written. Once for an idempotency key. */
export async function upsertContacts(
  tools: UpsertTools,
  request: UpsertRequest,
  key: ScopedKey | null,
): Promise<AcceptOutcome> {
  let hasChanged = false;
  const outcome = await untilNotOvertaken(() =>
    tools.database.asOrganizations([request.organizationId], (transaction) =>
      respondOnce(transaction, { key, at: now(tools.clock) }, async () => {
        // Before any other lock, as imports do: two that name the same people would else wait for each other.
        await lockImports(transaction, request.organizationId);
        const upserted = await upsertWithin(transaction, tools, request);
        hasChanged = upserted.some((one) => one.kind === 'written' && one.isChanged);
        const response: BulkContacts = { data: upserted.map(showUpserted) };
        return { statusCode: 200, text: JSON.stringify(response), headers: {} };
      }),
    ),
  );
  if (hasChanged) tools.onChanged();
  return outcome;
}

function showUpserted(upserted: Upserted, index: number): BulkContacts['data'][number] {
  return upserted.kind === 'written'
    ? { index, id: upserted.contactId, created: upserted.isNew }
    : { index, error: toEnvelope(refuseContact(upserted)) };
}

/**
 * Attempts, each of which others were quicker than. With fewer, requests would be refused where many say something of one
 * person at once; with more, they would wait for longer than a client does.
 */
const triesMax = 20;

async function untilNotOvertaken<Result>(work: () => Promise<Result>): Promise<Result> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await work();
    } catch (cause) {
      if (!isOvertaken(cause)) throw cause;
      if (tries === triesMax) throw overloaded('The contact is being changed by many requests at once.');
    }
  }
}

type UpsertRow = PlannedRow & { setIds: readonly string[] };

async function upsertWithin(
  transaction: Transaction,
  tools: ContactTools,
  { organizationId, bodies }: UpsertRequest,
): Promise<Upserted[]> {
  const setIds = [...new Set(bodies.flatMap(listSetIds))];
  if (setIds.length > bulkSetsMax)
    throw new PublicError(validationError, `contacts must name at most ${bulkSetsMax} lists and tags in all`);
  const [, haveOptedOut, sets, properties] = await allInOrder([
    shareIdentifiers(transaction, organizationId),
    hasOptOuts(transaction, organizationId),
    findSets(transaction, organizationId, setIds, { areKept: true }),
    loadProperties(transaction, organizationId),
  ]);
  const read = bodies.map((body) => readRow(body, { sets, properties }));
  const rows = read.flatMap((one) => (one.kind === 'row' ? [one.row] : []));
  const outcomes: RowOutcome[] = [];
  // Ends because every plan is for one row at least.
  while (outcomes.length < rows.length) {
    const planned = rows.slice(outcomes.length);
    const present = await findPresent(transaction, {
      organizationId,
      identifiers: identifiersOf(planned),
      setIds,
    });
    const plan = planBatch({
      rows: planned,
      present,
      setIdsOf: (row) => row.setIds,
      properties,
      newId: tools.newId,
      isDryRun: false,
    });
    const at = now(tools.clock);
    await writePlan(transaction, tools, { organizationId, plan, haveOptedOut, at, isLast: false });
    outcomes.push(...plan.outcomes);
  }
  const inOrder = outcomes.values();
  return read.map((one) => (one.kind === 'row' ? toUpserted(inOrder.next().value) : one));
}

function listSetIds(read: ReadContact): string[] {
  if (read.kind === 'invalid') return [];
  const { list_ids: listIds = [], tag_ids: tagIds = [] } = read.body;
  return [...listIds, ...tagIds].map((id) => id.toLowerCase());
}

function readRow(
  read: ReadContact,
  known: { sets: ReadonlyMap<string, { kind: string }>; properties: Properties },
): { kind: 'row'; row: UpsertRow } | { kind: 'invalid'; issues: readonly string[] } {
  if (read.kind === 'invalid') return read;
  const { list_ids: listIds = [], tag_ids: tagIds = [], ...input } = read.body;
  const merged = mergeContact(emptyContact, input, known.properties);
  const issues = [
    ...(merged.kind === 'invalid' ? merged.issues : []),
    ...listUnknownSets('list', listIds, known.sets),
    ...listUnknownSets('tag', tagIds, known.sets),
  ];
  if (merged.kind === 'invalid' || issues.length > 0) return { kind: 'invalid', issues };
  return { kind: 'row', row: { input, values: merged.values, setIds: listSetIds(read) } };
}

function toUpserted(outcome: RowOutcome | undefined): Upserted {
  switch (outcome?.kind) {
    case 'created':
    case 'updated':
    case 'unchanged':
      return {
        kind: 'written',
        contactId: outcome.contactId,
        isNew: outcome.kind === 'created',
        isChanged: outcome.kind !== 'unchanged',
      };
    case 'taken':
    case 'invalid':
      return outcome;
    case undefined:
      throw new Error('a contact has no outcome');
  }
}
