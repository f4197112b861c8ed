import type { Installation } from './installation.ts';
import type { Ledger, Send } from './load.ts';
import type { Delivery } from './sink.ts';

/** What must be true after every run, compared from three sides: clients, database, sink. */
export type Findings = {
  accepted: number;
  recipients: number;
  deliveries: number;
  lost: number;
  explainedDuplicates: number;
  unexplainedDuplicates: number;
  /** A sentence each, with an example. */
  violations: string[];
};

type Recipient = {
  organization_id: string;
  message_id: string;
  address: string;
  status: string;
  drop_reason: string | null;
  uncertain: boolean;
  ambiguities: number;
  is_queued: boolean;
};

export async function checkInvariants(installation: Installation, ledger: Ledger): Promise<Findings> {
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  const deliveries = await installation.sink.readDeliveries();
  const recipients = await installation.ask<Recipient>(
    `select r.organization_id, r.message_id, r.address, r.status, r.drop_reason, r.uncertain, r.ambiguities,
       q.message_id is not null as is_queued
     from recipients r
     left join delivery_queue q using (organization_id, message_id, ordinal)`,
  );
  const stored = new Map(recipients.map((recipient) => [nameOf(recipient), recipient]));
  const delivered = countDeliveries(deliveries);

  await checkAcceptance(installation, ledger, expectNone);
  const lost = [
    ...ledger.sends.flatMap((send) => namesOf(send)).filter((name) => !stored.has(name)),
    ...recipients.filter(isForgotten).map(nameOf),
  ];
  expectNone('accepted, but neither at an end nor queued', lost);
  expectNone(
    'delivered, but unknown to the database',
    [...delivered.keys()].filter((name) => !stored.has(name)),
  );

  let explainedDuplicates = 0;
  let unexplainedDuplicates = 0;
  for (const recipient of recipients) {
    const beyondOne = Math.max((delivered.get(nameOf(recipient)) ?? 0) - 1, 0);
    const explained = Math.min(beyondOne, recipient.ambiguities);
    explainedDuplicates += explained;
    unexplainedDuplicates += beyondOne - explained;
    if (beyondOne > explained) violations.push(`delivered more often than explained: ${nameOf(recipient)}`);
  }
  checkStatuses(recipients, delivered, expectNone);
  expectNone('repeated with another content', findChangedContents(deliveries));
  const suppressed = new Set<string>(installation.suppressed);
  expectNone(
    'delivered to a suppressed address',
    deliveries.filter(({ recipient }) => suppressed.has(recipient)).map(({ recipient }) => recipient),
  );
  await expectEmpty(installation, emptyQueries, expectNone);
  return {
    accepted: ledger.sends.filter(({ ids }) => ids.size > 0).length,
    recipients: recipients.length,
    deliveries: deliveries.length,
    lost: lost.length,
    explainedDuplicates,
    unexplainedDuplicates,
    violations,
  };
}

export type Expect = (what: string, found: readonly string[]) => void;

/** Each expectation that is not met becomes a sentence with an example. */
export function expectInto(violations: string[]): Expect {
  return (what, found) => {
    if (found.length > 0) violations.push(`${what}: ${found.length}, for example ${found[0] ?? ''}`);
  };
}

/** None of these queries, by what they find, finds anything. */
export async function expectEmpty(
  { ask }: Installation,
  queries: Readonly<Record<string, string>>,
  expectNone: Expect,
): Promise<void> {
  for (const [what, text] of Object.entries(queries)) {
    expectNone(
      what,
      (await ask(text)).map((row) => JSON.stringify(row)),
    );
  }
}

/** How many messages have each status. */
export function countStatuses(recipients: readonly { message_status: string }[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { message_status: status } of recipients) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

type Stored = { organization_id: string; id: string; key: string | null; kept_id: string | null };

/** Each message and event with the key that it was accepted under, and the id that is answered to that key. */
function listStored({ ask }: Installation): Promise<Stored[]> {
  return ask<Stored>(
    `select s.organization_id, s.id, k.key, k.response::json ->> 'id' as kept_id
     from (
       select organization_id, id from messages
       union all
       select organization_id, id from events
     ) s
     left join idempotency_keys k on k.organization_id = s.organization_id and k.response::json ->> 'id' = s.id::text`,
  );
}

/** The responses under each key, and what is stored. */
export async function checkAcceptance(
  installation: Installation,
  ledger: Ledger,
  expectNone: Expect,
): Promise<void> {
  const stored = await listStored(installation);
  const keysById = new Map(stored.map(({ organization_id, id, key }) => [`${organization_id} ${id}`, key]));
  const answered = new Set(
    ledger.sends.flatMap(({ sender, ids }) => [...ids].map((id) => `${sender.organizationId} ${id}`)),
  );
  expectNone(
    'never accepted',
    ledger.sends.filter(({ ids }) => ids.size === 0).map(({ key }) => key),
  );
  expectNone(
    'more than one id for a key',
    ledger.sends.filter(({ ids }) => ids.size > 1).map(({ key }) => key),
  );
  expectNone(
    'stored, but never answered to anybody',
    [...keysById.keys()].filter((name) => !answered.has(name)),
  );
  expectNone(
    'the response kept with the key is not the one that was given',
    ledger.sends
      .filter(({ sender, key, ids }) =>
        [...ids].some((id) => keysById.get(`${sender.organizationId} ${id}`) !== key),
      )
      .map(({ key }) => key),
  );
  expectNone(
    'answered without an end',
    Array.from({ length: ledger.hangs }, () => 'a request'),
  );
  expectNone(
    'answered with something else than 202 and 503',
    [...ledger.answers.keys()].filter((answer) => answer !== '202' && !answer.startsWith('503 ')),
  );
}

/** Not in a final status, and no job is left that would bring it there. */
function isForgotten({ status, drop_reason, uncertain, is_queued }: Recipient): boolean {
  return !is_queued && (status === 'sent' || status === 'delayed') && drop_reason === null && !uncertain;
}

function checkStatuses(
  recipients: readonly Recipient[],
  delivered: ReadonlyMap<string, number>,
  expectNone: Expect,
): void {
  const isAtSink = (recipient: Recipient) => delivered.has(nameOf(recipient));
  expectNone(
    'called delivered, and never arrived',
    recipients.filter((each) => each.status === 'delivered' && !isAtSink(each)).map(nameOf),
  );
  expectNone(
    'arrived, and neither called delivered nor uncertain',
    recipients
      .filter((each) => isAtSink(each) && each.status !== 'delivered' && !each.uncertain && !each.is_queued)
      .map(nameOf),
  );
  expectNone(
    'bounced, though nobody refused it',
    recipients
      .filter(
        ({ status, address }) => ['bounced', 'failed'].includes(status) && !address.startsWith('unknown-'),
      )
      .map(nameOf),
  );
  expectNone(
    'written to, though it was dropped',
    recipients.filter((each) => each.drop_reason !== null && isAtSink(each)).map(nameOf),
  );
}

/** Rows that queue and workers must not leave once everything is sent. */
export const queueLeftovers: Readonly<Record<string, string>> = {
  'a job claimed by a worker that is no more': `
    select message_id, claimed_by
    from delivery_queue
    where claimed_by is not null and claimed_by not in (select epoch from workers)`,
  'a marker of a worker that is no more': `
    select epoch, batch
    from hand_offs
    where epoch not in (select epoch from workers)`,
  'a slice claimed by a worker that is no more': `
    select message_id, first_ordinal, claimed_by
    from delivery_slices
    where claimed_by is not null and claimed_by not in (select epoch from workers)`,
  'a job left in the queue': 'select message_id, due_at, claimed_by, attempts, crashes from delivery_queue',
  'a slice left in the queue': 'select message_id, first_ordinal, claimed_by, writes from delivery_slices',
};

/** Each returns the rows that violate an invariant. */
const emptyQueries: Readonly<Record<string, string>> = {
  'a quota that is not the sum of its messages': `
    select m.organization_id, m.recipients, coalesce(u.used, 0) as used
    from (select organization_id, sum(recipient_count) as recipients from messages group by 1) m
    left join (
      select organization_id, sum(used) as used from quota_usage where channel = 'email' group by 1
    ) u using (organization_id)
    where m.recipients is distinct from u.used`,
  'a message whose recipients are not as many as it says': `
    select m.id, m.recipient_count, count(r.ordinal) as recipients
    from messages m
    left join recipients r on r.organization_id = m.organization_id and r.message_id = m.id
    group by m.organization_id, m.id, m.recipient_count
    having m.recipient_count <> count(r.ordinal)`,
  'a message whose status is not that of its recipients': `
    select m.id, m.status, count(*) as recipients, count(*) filter (where r.status = 'delivered') as delivered,
      count(*) filter (where r.status in ('bounced', 'failed') or r.drop_reason is not null) as failed
    from messages m
    join recipients r on r.organization_id = m.organization_id and r.message_id = m.id
    group by m.organization_id, m.id, m.status
    having m.status <> case
      when count(*) = count(*) filter (where r.status in ('bounced', 'failed') or r.drop_reason is not null)
        then 'failed'
      when count(*) = count(*) filter (where r.status = 'delivered') then 'delivered'
      when bool_or(r.status = 'delivered')
        and bool_or(r.status in ('bounced', 'failed') or r.drop_reason is not null) then 'partially_delivered'
      when bool_or(r.handed_off_at is not null) then 'sent'
      else 'queued'
    end`,
  'an attachment kept of a message that nobody waits for': `
    select a.message_id
    from attachment_contents a
    where not exists (
      select from delivery_queue q where q.organization_id = a.organization_id and q.message_id = a.message_id
    )`,
  ...queueLeftovers,
};

function countDeliveries(deliveries: readonly Delivery[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { messageId, recipient } of deliveries) {
    const name = `${messageId} ${recipient}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return counts;
}

/** A retry must be the same message to the octet, so that receivers can tell. */
function findChangedContents(deliveries: readonly Delivery[]): string[] {
  const digests = new Map<string, string>();
  return deliveries.flatMap(({ messageId, recipient, digest }) => {
    const name = `${messageId} ${recipient}`;
    const first = digests.get(name) ?? digest;
    digests.set(name, first);
    return first === digest ? [] : [name];
  });
}

function nameOf({ message_id, address }: Recipient): string {
  return `${message_id} ${address}`;
}

function namesOf({ ids, recipients }: Send): string[] {
  return [...ids].flatMap((id) => recipients.map((address) => `${id} ${address}`));
}
