import {
  type ContactReference,
  findHeld,
  identifyContacts,
  insertContactChange,
  type ResolvedContact,
  resolveContacts,
} from '../audience/audience.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import { type AcceptLimits, type AcceptOutcome, createAcceptance } from '../platform/http/acceptance.ts';
import {
  defineError,
  type ErrorDefinition,
  PublicError,
  toEnvelope,
  validationError,
} from '../platform/http/errors.ts';
import { showKey } from '../platform/http/json-text.ts';
import {
  claimKeys,
  keepResponses,
  keyConflict,
  type KeyState,
  retentionMs,
  type ScopedKey,
  type StoredResponse,
} from '../platform/http/idempotency.ts';
import type { NewId } from '../platform/ids.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { readWorth } from './conversion.ts';
import { insertPendingConversions, type PendingConversion } from './conversion-store.ts';
import type { ReadEvent } from './event-body.ts';
import { checkPayload } from './payload.ts';
import { isTimely, untimely } from './rules.ts';
import { backMsMax, type BatchRecord, type Payload } from './schema.ts';
import * as store from './store.ts';

/**
 * Events as they come in. An event, the contact that it makes, the change that segments hear of, the conversion that it
 * is and the response to its idempotency key are committed together, and only then is 202 answered. Requests share transactions, as
 * `platform/http/acceptance.ts` says; within one, events are taken one after the other.
 *
 * A contact may be deleted while an event of it is being stored. The event is erased all the same: erasures look once
 * more after the longest time that a transaction takes.
 */

export const contactRequired = defineError(400, 'contact_required', 'The event names no contact.');
export const contactAmbiguous = defineError(
  400,
  'contact_ambiguous',
  'The event has `contact_id` together with another identifier.',
);
export const contactNotFound = defineError(404, 'contact_not_found', 'No contact has the `contact_id`.');
export const eventNotFound = defineError(404, 'event_not_found', 'No event has that name.');
export const schemaMismatch = defineError(
  422,
  'schema_mismatch',
  'The payload does not match the schema of the event.',
);

export type IntakeTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
  /** Told after a commit that segments depend on. */
  onContactsChanged: () => void;
  /** Told after a commit that brought conversions. */
  onConverted: () => void;
};

/**
 * How long a conversion waits for its credit: clicks are written in batches, and the one that led to it may have come
 * just before. Less would miss clicks; more would show conversions later.
 */
const creditDelayMs = 5_000;

/** A `single` request has the outcome of its event; a `batch` tells that of each. */
export type EventRequest = {
  organizationId: string;
  form: 'single' | 'batch';
  events: readonly ReadEvent[];
  idempotencyKey: ScopedKey | null;
};

export type EventIntake = { send: (request: EventRequest) => Promise<AcceptOutcome> };

/** An event on its way. Its id is made once, so that it can be looked up after a broken commit. */
type Entry = { organizationId: string; id: string; event: ReadEvent };

/** A request that is about to be stored. */
type Candidate = Pick<EventRequest, 'form' | 'idempotencyKey'> & {
  organizationId: string;
  entries: readonly Entry[];
  /** What the last attempt to store it would have answered, and an event that it would have stored. */
  attempt: { response: StoredResponse; stored: store.EventKey } | null;
};

export function createEventIntake(tools: IntakeTools, limits: Partial<AcceptLimits> = {}): EventIntake {
  const acceptance = createAcceptance<Candidate>(
    {
      clock: tools.clock,
      store: (candidates) => storeTogether(tools, candidates),
      findStored: (candidates) => findStored(tools, candidates),
      isLarge,
      tooManyMessage: 'Too many events are waiting.',
    },
    limits,
  );
  return {
    send: ({ organizationId, events, ...request }) =>
      acceptance.accept(request.idempotencyKey, () => ({
        ...request,
        organizationId,
        entries: events.map((event) => ({ organizationId, id: tools.newId(), event })),
        attempt: null,
      })),
  };
}

/** What shares a transaction waits for all of it: so much takes about as long as the flush of the disk. */
const sharedEventsMax = 50;
const sharedBytesMax = 262_144;

function isLarge({ entries }: Candidate): boolean {
  const bytes = entries.reduce((sum, { event }) => sum + (event.kind === 'read' ? event.payloadBytes : 0), 0);
  return entries.length > sharedEventsMax || bytes > sharedBytesMax;
}

/** The events of a request are stored together, so that one of them stands for all. */
async function findStored(
  tools: IntakeTools,
  candidates: readonly Candidate[],
): Promise<ReadonlyMap<Candidate, StoredResponse>> {
  const wanted = candidates.flatMap(({ attempt }) => (attempt === null ? [] : [attempt.stored]));
  const present = await tools.database.asOrganizationsByIndex(organizationsOf(wanted), (transaction) =>
    store.findEventIds(transaction, wanted),
  );
  if (present.size > 0) {
    tools.onContactsChanged();
    tools.onConverted();
  }
  return new Map(
    candidates.flatMap((candidate) => {
      const { attempt } = candidate;
      const isStored = attempt !== null && present.has(attempt.stored.id);
      return isStored ? [[candidate, attempt.response] as const] : [];
    }),
  );
}

async function storeTogether(tools: IntakeTools, candidates: readonly Candidate[]): Promise<AcceptOutcome[]> {
  const at = now(tools.clock);
  const expiredBefore = dateOf(at.getTime() - retentionMs);
  for (const candidate of candidates) candidate.attempt = null;
  const entries = candidates.flatMap((candidate) => candidate.entries);

  let haveContactsChanged = false;
  let haveConverted = false;
  const outcomes = await tools.database.asOrganizationsByIndex(
    organizationsOf(candidates),
    async (transaction) => {
      const [keyStates, definitions, contacts] = await Promise.all([
        loadKeyStates(transaction, candidates, expiredBefore),
        store.findDefinitionsByName(transaction, entries.flatMap(nameOf)),
        resolveEntries(transaction, entries),
      ]);
      const free = candidates.filter((candidate) => (keyStates.get(candidate)?.kind ?? 'free') === 'free');
      const judged = new Map(
        free
          .flatMap((candidate) => candidate.entries)
          .map((entry) => [entry, judge(entry, { contact: contacts.get(entry), definitions, at })]),
      );
      const identified = await identify(tools, transaction, { judged, contacts, at });
      const events = [...judged].flatMap(([entry, verdict]) =>
        toNewEvent(entry, verdict, identified.contactIds),
      );
      const conversions = [...judged].flatMap(([entry, verdict]) =>
        toConversion(entry, verdict, identified.contactIds),
      );
      haveConverted = conversions.length > 0;
      const changes = await findChanges(transaction, events, definitions);
      haveContactsChanged = identified.hasChanged || changes.size > 0;

      const storedById = new Map(events.map((event) => [event.id, event]));
      const outcomes = candidates.map((candidate): AcceptOutcome => {
        const state = keyStates.get(candidate);
        if (state?.kind === 'replay') return { kind: 'response', response: state.response, isReplay: true };
        if (state !== undefined && state.kind !== 'free')
          return { kind: 'refused', error: keyConflict(state.kind) };
        const outcome = answer(candidate, judged);
        const stored = candidate.entries
          .map(({ id }) => storedById.get(id))
          .find((event) => event !== undefined);
        if (outcome.kind === 'response' && stored !== undefined)
          candidate.attempt = { response: outcome.response, stored };
        return outcome;
      });
      await Promise.all([
        ...[...changes].map(([organizationId, contactIds]) =>
          insertContactChange(transaction, {
            organizationId,
            id: tools.newId(),
            contactIds: [...contactIds],
          }),
        ),
        store.insertEvents(transaction, events),
        insertPendingConversions(transaction, conversions, dateOf(at.getTime() + creditDelayMs)),
        keepResponses(
          transaction,
          candidates.flatMap(({ idempotencyKey: key }, index) => {
            const outcome = outcomes[index];
            return key !== null && outcome?.kind === 'response' && !outcome.isReplay
              ? [{ key, response: outcome.response }]
              : [];
          }),
          { at, expiredBefore },
        ),
        transaction.commit(),
      ]);
      return outcomes;
    },
  );
  if (haveContactsChanged) tools.onContactsChanged();
  if (haveConverted) tools.onConverted();
  return outcomes;
}

/** What a segment must hear of is told by the caller, after its commit. */
export type HistoryTools = Pick<
  IntakeTools,
  'database' | 'clock' | 'newId' | 'secrets' | 'onContactsChanged'
>;

/**
 * Stores events that are told afterwards, one after the other, as requests bring them, except that they may have
 * happened at any time, and that none is a conversion: what was clicked before them may not be known any more. Returns
 * what each is refused for, or null. A dry run only judges them.
 */
export async function storeHistory(
  tools: HistoryTools,
  transaction: Transaction,
  given: { organizationId: string; events: readonly ReadEvent[]; at: Date; isDryRun: boolean },
): Promise<{ errors: (PublicError | null)[]; haveContactsChanged: boolean }> {
  const { organizationId, at } = given;
  const entries = given.events.map((event) => ({ organizationId, id: tools.newId(), event }));
  const [definitions, contacts] = await Promise.all([
    store.findDefinitionsByName(transaction, entries.flatMap(nameOf)),
    resolveEntries(transaction, entries),
  ]);
  const judged = new Map(
    entries.map((entry) => [
      entry,
      judge(entry, { contact: contacts.get(entry), definitions, at, isHistory: true }),
    ]),
  );
  const errors = [...judged.values()].map((verdict) => (verdict.kind === 'refused' ? verdict.error : null));
  if (given.isDryRun) return { errors, haveContactsChanged: false };
  const identified = await identify(tools, transaction, { judged, contacts, at });
  const events = [...judged].flatMap(([entry, verdict]) => toNewEvent(entry, verdict, identified.contactIds));
  const changes = await findChanges(transaction, events, definitions);
  for (const contactIds of changes.values())
    await insertContactChange(transaction, {
      organizationId,
      id: tools.newId(),
      contactIds: [...contactIds],
    });
  await store.insertEvents(transaction, events);
  return { errors, haveContactsChanged: identified.hasChanged || changes.size > 0 };
}

function organizationsOf(those: readonly { organizationId: string }[]): string[] {
  return [...new Set(those.map(({ organizationId }) => organizationId))];
}

async function loadKeyStates(
  transaction: Transaction,
  candidates: readonly Candidate[],
  expiredBefore: Date,
): Promise<Map<Candidate, KeyState>> {
  const keyed = candidates.flatMap((candidate) => {
    const { idempotencyKey: key } = candidate;
    return key === null ? [] : [{ candidate, key }];
  });
  const states = await claimKeys(
    transaction,
    keyed.map(({ key }) => key),
    { expiredBefore },
  );
  return new Map(
    keyed.flatMap(({ candidate }, index) => {
      const state = states[index];
      return state === undefined ? [] : [[candidate, state] as const];
    }),
  );
}

function nameOf({ organizationId, event }: Entry): store.DefinitionName[] {
  return event.kind === 'read' ? [{ organizationId, name: event.name }] : [];
}

/** Each by its own organization's contacts, in one round trip. */
async function resolveEntries(
  transaction: Transaction,
  entries: readonly Entry[],
): Promise<Map<Entry, ResolvedContact>> {
  const resolved = await Promise.all(
    [...groupBy(entries.flatMap(toReferring), ({ entry }) => entry.organizationId)].map(
      async ([organizationId, own]) => {
        const contacts = await resolveContacts(
          transaction,
          organizationId,
          own.map(({ reference }) => reference),
        );
        return own.flatMap(({ entry }, index) => {
          const contact = contacts[index];
          return contact === undefined ? [] : [[entry, contact] as const];
        });
      },
    ),
  );
  return new Map(resolved.flat());
}

type Referring = { entry: Entry; reference: ContactReference };

function toReferring(entry: Entry): Referring[] {
  return entry.event.kind === 'read' ? [{ entry, reference: entry.event.reference }] : [];
}

type Verdict =
  | { kind: 'refused'; error: PublicError }
  | {
      kind: 'fits';
      definition: store.SentDefinition;
      payload: Payload;
      occurredAt: Date;
      /** Null where the contact is still to be made. */
      contactId: string | null;
    };

/** In the order of the specification, by what can be known before anything is written. */
function judge(
  { organizationId, event }: Entry,
  known: {
    contact: ResolvedContact | undefined;
    definitions: ReadonlyMap<string, store.SentDefinition>;
    at: Date;
    /** Whether it may have happened at any time before. */
    isHistory?: boolean;
  },
): Verdict {
  const { contact, definitions, at, isHistory = false } = known;
  if (event.kind === 'invalid') return refuse(validationError, event.issues.join(', '));
  const occurredAt = event.occurredAtMs === null ? at : dateOf(event.occurredAtMs);
  const backMs = isHistory ? Infinity : backMsMax;
  if (!isTimely(occurredAt.getTime(), at, backMs)) return refuse(validationError, untimely(backMs));
  if (contact === undefined || contact.kind === 'required')
    return refuse(
      contactRequired,
      'Name the contact: by contact_id, or by external_id, email or phone_number.',
    );
  if (contact.kind === 'ambiguous')
    return refuse(contactAmbiguous, 'Give contact_id alone, without other identifiers of the contact.');
  const definition = definitions.get(store.nameKey({ organizationId, name: event.name }));
  if (definition === undefined)
    return refuse(eventNotFound, `There is no event of the name ${showKey(event.name)}. Define it first.`);
  if (contact.kind === 'not_found' && contact.by === 'contact_id')
    return refuse(contactNotFound, 'There is no contact with that contact_id.');
  const checked = checkPayload(definition, event.payload);
  if (checked.kind === 'mismatch') return refuse(schemaMismatch, checked.issues.join(', '));
  const contactId = contact.kind === 'found' ? contact.id : null;
  return { kind: 'fits', definition, payload: checked.payload, occurredAt, contactId };
}

function refuse(definition: ErrorDefinition, message: string): Verdict {
  return { kind: 'refused', error: new PublicError(definition, message) };
}

/**
 * Identifies the contacts of events that are stored, which makes those that nobody has, and fills in what events tell of
 * the others.
 */
async function identify(
  tools: HistoryTools,
  transaction: Transaction,
  known: {
    judged: ReadonlyMap<Entry, Verdict>;
    contacts: ReadonlyMap<Entry, ResolvedContact>;
    at: Date;
  },
): Promise<{ contactIds: ReadonlyMap<Entry, string>; hasChanged: boolean }> {
  const { judged, contacts, at } = known;
  const identified = [...judged].flatMap(([entry, verdict]) => {
    const contact = contacts.get(entry);
    const isNamedById = contact?.kind === 'found' && contact.by === 'contact_id';
    if (verdict.kind !== 'fits' || contact === undefined || isNamedById) return [];
    return toReferring(entry).map((referring) => ({ ...referring, contact }));
  });
  const contactIds = new Map<Entry, string>();
  let hasChanged = false;
  for (const [organizationId, own] of groupBy(identified, ({ entry }) => entry.organizationId)) {
    const identification = await identifyContacts(transaction, { ...tools, at }, organizationId, own);
    for (const [index, { entry }] of own.entries()) contactIds.set(entry, identification.ids[index] ?? '');
    hasChanged ||= identification.hasChanged;
  }
  return { contactIds, hasChanged };
}

function toNewEvent(
  entry: Entry,
  verdict: Verdict,
  identifiedIds: ReadonlyMap<Entry, string>,
): store.NewEvent[] {
  if (verdict.kind === 'refused') return [];
  return [{ ...toOccurrence(entry, verdict, identifiedIds), payload: JSON.stringify(verdict.payload) }];
}

function toConversion(
  entry: Entry,
  verdict: Verdict,
  identifiedIds: ReadonlyMap<Entry, string>,
): PendingConversion[] {
  if (verdict.kind === 'refused' || !verdict.definition.conversion.enabled) return [];
  const worth = readWorth(verdict.definition.conversion, verdict.payload);
  return [{ ...toOccurrence(entry, verdict, identifiedIds), ...worth }];
}

function toOccurrence(
  entry: Entry,
  verdict: Extract<Verdict, { kind: 'fits' }>,
  identifiedIds: ReadonlyMap<Entry, string>,
): Omit<store.NewEvent, 'payload'> {
  const contactId = identifiedIds.get(entry) ?? verdict.contactId;
  if (contactId === null) throw new Error('an event that is stored has a contact');
  return {
    organizationId: entry.organizationId,
    contactId,
    id: entry.id,
    definitionNumber: verdict.definition.number,
    occurredAt: verdict.occurredAt,
  };
}

/** The contacts, by organization, of whom segments hear: those with an event that some segment asks about. */
async function findChanges(
  transaction: Transaction,
  events: readonly store.NewEvent[],
  definitions: ReadonlyMap<string, store.SentDefinition>,
): Promise<Map<string, Set<string>>> {
  const changes = new Map<string, Set<string>>();
  if (events.length === 0) return changes;
  const sent = [...definitions.values()];
  const held = await findHeld(transaction, sent);
  const watched = new Set(sent.filter(({ id }) => held.has(id)).map(watchKey));
  for (const { organizationId, contactId, definitionNumber: number } of events) {
    if (!watched.has(watchKey({ organizationId, number }))) continue;
    const contactIds = changes.get(organizationId) ?? new Set();
    changes.set(organizationId, contactIds.add(contactId));
  }
  return changes;
}

function watchKey({ organizationId, number }: { organizationId: string; number: number }): string {
  return `${organizationId} ${number}`;
}

function answer({ form, entries }: Candidate, judged: ReadonlyMap<Entry, Verdict>): AcceptOutcome {
  const results = entries.map((entry) => {
    const verdict = judged.get(entry);
    return { id: entry.id, error: verdict?.kind === 'refused' ? verdict.error : null };
  });
  const [first] = results;
  if (form === 'single' && first !== undefined)
    return first.error === null ? accepted({ id: first.id }) : { kind: 'refused', error: first.error };
  const data = results.map(({ id, error }, index) =>
    error === null ? { index, id } : { index, error: toEnvelope(error) },
  );
  return accepted({ data } satisfies BatchRecord);
}

function accepted(body: unknown): AcceptOutcome {
  return {
    kind: 'response',
    response: { statusCode: 202, text: JSON.stringify(body), headers: {} },
    isReplay: false,
  };
}
