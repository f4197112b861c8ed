import { now, systemClock } from '../src/platform/clock.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { compilePredicate } from '../src/segments/compile.ts';
import { readConditions } from '../src/segments/segments.ts';
import { countMatching } from '../src/segments/store.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';

/**
 * A segment of three conditions on events, over ten million of the last thirty days by a tenth as many contacts: how long
 * its contacts are computed against the same `select` written by hand.
 */
const eventsDefault = 10_000_000;
const eventsPerContact = 10;
const filledAtOnce = 100_000;
const roundsCount = 3;
const countingMsMax = 600_000;

const kinds = ['order.completed', 'page.viewed', 'order.returned'] as const;

const conditions = {
  type: 'group',
  match: 'all',
  conditions: [
    {
      type: 'event',
      event: 'order.completed',
      within: { value: 7, unit: 'day' },
      where: [{ field: 'total', operator: 'gt', value: 50 }],
    },
    { type: 'event', event: 'page.viewed', count: { operator: 'gte', value: 3 } },
    { type: 'event', event: 'order.returned', count: { operator: 'eq', value: 0 } },
  ],
};

const byHand = `
  select count(*)
  from contacts c
  where c.organization_id = $1
    and c.id in (
      select contact_id from events
      where organization_id = $1 and definition_number = 1 and occurred_at > now() - interval '7 days'
        and (payload ->> 'total')::numeric > 50
    )
    and c.id in (
      select contact_id from events
      where organization_id = $1 and definition_number = 2
      group by contact_id
      having count(*) >= 3
    )
    and not exists (
      select from events e
      where e.organization_id = $1 and e.definition_number = 3 and e.contact_id = c.id
    )`;

export async function benchEventSegments({ events = eventsDefault }: { events?: number }): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const { organizationId, database } = installation;
    await database.rows(unpreparedStatement('set statement_timeout = 0'));
    const contacts = Math.floor(events / eventsPerContact);
    await database.rows(unpreparedStatement(insertContactsText), [organizationId, contacts]);
    for (const [index, name] of kinds.entries())
      await database.rows(unpreparedStatement(insertDefinitionText), [organizationId, index + 1, name]);
    for (let from = 1; from <= events; from += filledAtOnce) {
      const to = Math.min(from + filledAtOnce - 1, events);
      await database.rows(unpreparedStatement(insertEventsText), [organizationId, from, to, contacts]);
    }
    await database.rows(unpreparedStatement('analyze contacts, events'));
    const handMs: number[] = [];
    const conditionsMs: number[] = [];
    let [expected, counted]: (number | undefined)[] = [];
    for (let round = 0; round < roundsCount; round += 1) {
      let startedAtMs = performance.now();
      const [row] = await database.asOrganizations([organizationId], async (transaction) => {
        await transaction.allowTime(countingMsMax);
        return transaction.rows(unpreparedStatement<{ count: number }>(byHand), [organizationId]);
      });
      handMs.push(performance.now() - startedAtMs);
      expected = row?.count;
      startedAtMs = performance.now();
      counted = await countByConditions(installation);
      conditionsMs.push(performance.now() - startedAtMs);
    }
    console.log(`\nevent-segments: three conditions over ${events} events of ${contacts} contacts`);
    console.table([
      {
        'by hand ms': Math.round(median(handMs)),
        'the same conditions ms': Math.round(median(conditionsMs)),
        ratio: (median(conditionsMs) / median(handMs)).toFixed(2),
        'by hand': expected,
        counted,
      },
    ]);
  } finally {
    await installation.remove();
  }
}

/** As a preview does, which gives up after ten seconds. */
async function countByConditions({ database, organizationId }: BenchInstallation): Promise<number> {
  return database.asOrganizations([organizationId], async (transaction) => {
    const reading = await readConditions(transaction, organizationId, conditions);
    if (!reading.ok) throw new Error(reading.issues.join(', '));
    await transaction.allowTime(countingMsMax);
    const predicate = compilePredicate(reading.condition, [organizationId], now(systemClock));
    return (await countMatching(transaction, predicate, 0)).count;
  });
}

const contactId = (n: string) =>
  `(lpad(to_hex(1760000000000 + ${n}), 12, '0') || '70008001' || lpad(to_hex(${n}), 12, '0'))::uuid`;

const insertContactsText = `
  insert into contacts (organization_id, id, external_id, created_at, updated_at)
  select $1, ${contactId('n')}, 'crm-' || n, now(), now()
  from generate_series(1, $2::bigint) n`;

const insertDefinitionText = `
  insert into event_definitions
    (organization_id, id, number, name, schema, conversion, created_at, updated_at)
  values ($1, gen_random_uuid(), $2::integer, $3, '{"fields":[{"name":"total","type":"number","required":false}]}',
    '{"enabled":false,"value_field":null,"currency_field":null,"currencies":null}', now(), now())`;

/** Of six events four are views, and few are returns; they arrived as they happened, as far as there are partitions. */
const insertEventsText = `
  insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
  select $1, ${contactId('contact')},
    (lpad(to_hex((extract(epoch from greatest(occurred_at, date_trunc('month', now()))) * 1000)::bigint), 12, '0')
      || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid,
    case when n % 60 = 0 then 3 when n % 6 < 2 then 1 else 2 end,
    occurred_at,
    jsonb_build_object('total', n % 100, 'currency', 'EUR')
  from (
    select n, 1 + (hashint8(n)::bigint + 2147483648) % $4::bigint as contact,
      now() - interval '30 days' * ((hashint8(n + 7)::bigint + 2147483648) / 4294967296.0) as occurred_at
    from generate_series($2::bigint, $3::bigint) n
  ) made`;
