import { beforeEach, describe, expect, test } from 'vitest';
import { messageChannels } from '../../../test/support/channels.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { addSuppressions, toErasedKey } from '../../audience/audience.ts';
import { type Clock, dateOf, systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { eraseNext, type ErasureTools, startErasing } from './erasure.ts';

const newId = createShuffledIds(systemClock);
const address = 'ann@example.com';
let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});

function erasingTools(clock: Clock): ErasureTools {
  return {
    database: { ...database, connectAlone: () => Promise.reject(new Error('nobody notifies')) },
    clock,
    log: silentLog,
    newId,
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    channels: messageChannels,
  };
}

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** Messages to the address, which were all delivered. */
async function insertMessages(organizationId: string, count: number): Promise<void> {
  for (let number = 0; number < count; number += 1) {
    await run(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', 'transactional', 'a@postillion.test', '{}', 1, now(), now())
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status, status_at, handed_off_at)
       values ($1, $2, 0, 'to', $3, $3, 'delivered', now(), now())`,
      [organizationId, newId(), address],
    );
  }
}

async function insertErasure(organizationId: string, requestedAt: Date): Promise<void> {
  await run('insert into erasures (organization_id, address, requested_at, due_at) values ($1, $2, $3, $3)', [
    organizationId,
    address,
    requestedAt,
  ]);
}

/** Rows of the organization cannot be changed until it is called. */
async function breakRecipientsOf(organizationId: string): Promise<() => Promise<void>> {
  await run(
    `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`,
  );
  await run(
    `create trigger refusing before update on recipients for each row
     when (old.organization_id = '${organizationId}') execute function refuse()`,
  );
  return async () => {
    await run('drop function refuse() cascade');
  };
}

test('an address that cannot be erased is put off for longer each time, and keeps nobody else from their turn', async () => {
  const [broken, other] = [newId(), newId()];
  await insertMessages(broken, 1);
  await insertMessages(other, 1);
  const requestedAtMs = systemClock.nowMs() + 1_000;
  await insertErasure(broken, dateOf(requestedAtMs));
  await insertErasure(other, dateOf(requestedAtMs + 1));
  const logged: object[] = [];
  const tools = {
    ...erasingTools(createManualClock()),
    log: { ...silentLog, error: (fields: object) => void logged.push(fields) },
  };
  /** After so many minutes. */
  const eraseAll = async (minutes: number) => {
    const at = dateOf(requestedAtMs + minutes * 60_000 + 1);
    // Once of each organization, and once in vain.
    for (let round = 0; await eraseNext(tools, at); round += 1) expect(round).toBeLessThan(2);
    const [row] = await run<{ due_at: Date }>('select due_at from erasures where organization_id = $1', [
      broken,
    ]);
    return row && (row.due_at.getTime() - at.getTime()) / 60_000;
  };
  const repair = await breakRecipientsOf(broken);
  expect(await eraseAll(0)).toBe(1);
  expect(await run('select organization_id from recipients where address = $1', [address])).toEqual([
    { organization_id: broken },
  ]);
  expect(logged).toMatchObject([{ organization_id: broken, pause_ms: 60_000 }]);
  expect(await eraseAll(5)).toBeCloseTo(5, 3);
  expect(await eraseAll(30)).toBeCloseTo(30, 3);
  expect(await eraseAll(10 * 60)).toBe(60);
  await repair();
  expect(await eraseAll(12 * 60)).toBeUndefined();
  expect(await run('select from recipients where address = $1', [address])).toEqual([]);
});

test('an address is erased from five messages two at a time, at once, and from nobody else’s', async () => {
  const [organizationId, other] = [newId(), newId()];
  await insertMessages(organizationId, 5);
  await insertMessages(other, 5);
  const requestedAt = dateOf(systemClock.nowMs() + 1_000);
  await insertErasure(organizationId, requestedAt);
  const clock = createManualClock(requestedAt.getTime());
  const erasing = startErasing({ ...erasingTools(clock), recipientsMax: 2 });
  // It sleeps until the last look, and so does its next attempt at listening.
  await clock.whenWaiting(2);
  const left = () =>
    run('select organization_id, count(*) as messages from recipients where address = $1 group by 1', [
      address,
    ]);
  expect(await left()).toEqual([{ organization_id: other, messages: 5 }]);
  expect(await run('select due_at from erasures')).toEqual([
    { due_at: dateOf(requestedAt.getTime() + 60_000) },
  ]);

  // Three that were accepted before the deletion, and committed after it.
  await run(
    `update recipients set address = $2, address_key = $2
     where organization_id = $1 and message_id in (select message_id from recipients where organization_id = $1 limit 3)`,
    [organizationId, address],
  );
  clock.advance(60_001);
  await clock.whenWaiting(2);
  expect(await left()).toEqual([{ organization_id: other, messages: 5 }]);
  expect(await run('select from erasures')).toEqual([]);
  await erasing.stop();
});

/** A campaign that sent to these, in the order of their ordinals. Returns its message. */
async function insertCampaign(
  organizationId: string,
  recipients: readonly { contactId: string; sentTo: string; dropReason?: string }[],
): Promise<string> {
  const messageId = newId();
  await run(
    `with message as (
       insert into messages
         (organization_id, id, channel, class, campaign_id, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, 'email', 'campaign', $3, 'a@postillion.test', '{}', cardinality($4::uuid[]), now(), now())
     ), copies as (
       insert into sandbox_messages
         (organization_id, id, channel, message_id, ordinal, recipient, sender, outcome, source, created_at)
       select $1, gen_random_uuid(), 'email', $2, position - 1, sent_to, 'a@postillion.test', 'delivered', '', now()
       from unnest($5::text[], $6::text[]) with ordinality as copy (sent_to, drop_reason, position)
       where drop_reason is null and sent_to <> ''
     )
     insert into recipients
       (organization_id, message_id, ordinal, field, address, address_key, contact_id, variables, drop_reason, status,
       status_at, handed_off_at)
     select $1, $2, position - 1, 'to', sent_to, sent_to, contact_id, '{"first_name": "Ann"}', drop_reason,
       case when drop_reason is null then 'delivered' else 'sent' end, now(), case when drop_reason is null then now() end
     from unnest($4::uuid[], $5::text[], $6::text[]) with ordinality as r (contact_id, sent_to, drop_reason, position)`,
    [
      organizationId,
      messageId,
      newId(),
      recipients.map(({ contactId }) => contactId),
      recipients.map(({ sentTo }) => sentTo),
      recipients.map(({ dropReason }) => dropReason ?? null),
    ],
  );
  return messageId;
}

async function insertContact(organizationId: string, id: string, email: string): Promise<void> {
  await run(
    `insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
     values ($1, $2, $3, $3, now(), now())`,
    [organizationId, id, email],
  );
}

/** Says what is readable of recipients and copies: whose, and where it was sent to. */
async function readable(organizationId: string): Promise<{ recipients: unknown[]; copies: unknown[] }> {
  const recipients = await run(
    `select contact_id, address from recipients
     where organization_id = $1 and (address <> '' or variables is not null or address_key = $2)
     order by address, contact_id`,
    [organizationId, address],
  );
  const copies = await run(
    'select message_id, recipient from sandbox_messages where organization_id = $1 order by recipient, message_id',
    [organizationId],
  );
  return { recipients, copies };
}

/** As if the time of the erasure, and of looking at it for the last time, were now. Returns when it is looked for again. */
async function eraseUntil(at: Date, tools: Partial<ErasureTools> = {}): Promise<(Date | undefined)[]> {
  const all = { ...erasingTools(createManualClock()), recipientsMax: 2, ...tools };
  for (let round = 0; await eraseNext(all, at); round += 1) expect(round).toBeLessThan(20);
  const rows = await run<{ due_at: Date }>('select due_at from contact_erasures order by due_at');
  return rows.map(({ due_at }) => due_at);
}

const minutesLater = (minutes: number) => dateOf(systemClock.nowMs() + minutes * 60_000);

describe('of a contact whose address was another one', () => {
  let [organizationId, other, ann, bob] = ['', '', '', ''];
  beforeEach(async () => {
    [organizationId, other, ann, bob] = [newId(), newId(), newId(), newId()];
    await insertContact(organizationId, ann, 'ann@new.example');
    await insertContact(organizationId, bob, address);
    await insertContact(other, ann, 'ann@new.example');
  });
  const remove = () =>
    run('delete from contacts where organization_id = $1 and id = $2', [organizationId, ann]);

  test('what five campaigns sent is erased two at a time, and nothing of whoever has the address now', async () => {
    const tools = erasingTools(createManualClock());
    const toAnn = { contactId: ann, sentTo: address };
    for (let count = 0; count < 5; count += 1) {
      await insertCampaign(organizationId, [toAnn]);
      await insertCampaign(other, [toAnn]);
    }
    const toBob = { contactId: bob, sentTo: address };
    const both = await insertCampaign(organizationId, [{ ...toAnn, dropReason: 'duplicate' }, toBob]);
    await insertCampaign(organizationId, [{ contactId: ann, sentTo: '', dropReason: 'no_address' }]);
    await insertMessages(organizationId, 1);
    const before = await readable(other);
    await addSuppressions(
      database,
      tools,
      'email',
      [address, 'ann@old.example'].map((suppressed) => ({
        organizationId,
        address: suppressed,
        reason: 'complaint',
      })),
    );
    await insertCampaign(organizationId, [{ contactId: ann, sentTo: 'ann@old.example' }]);

    await remove();
    expect(await eraseUntil(minutesLater(2))).toEqual([]);
    expect(await readable(organizationId)).toEqual({
      recipients: [
        { contact_id: bob, address },
        { contact_id: null, address },
      ],
      copies: [{ message_id: both, recipient: address }],
    });
    expect(await readable(other)).toEqual(before);
    expect(
      await run('select address from suppressions where organization_id = $1 order by 1', [organizationId]),
    ).toEqual([{ address }, { address: null }]);
    expect(
      await run(
        'select distinct address_key from recipients where organization_id = $1 and contact_id = $2 order by 1',
        [organizationId, ann],
      ),
    ).toEqual(
      ['', ...[address, 'ann@old.example'].map((old) => toErasedKey(tools, { organizationId, address: old }))]
        .toSorted()
        .map((address_key) => ({ address_key })),
    );
  });

  test('what waits for its delivery is erased an hour later, and what was committed late by the last look', async () => {
    const waiting = await insertCampaign(organizationId, [{ contactId: ann, sentTo: address }]);
    const job = `insert into delivery_queue
      (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
      values ($1, $2, 0, 'email', 2, now(), now(), 1)`;
    await run(job, [organizationId, waiting]);
    for (let count = 0; count < 3; count += 1)
      await insertCampaign(organizationId, [{ contactId: ann, sentTo: address }]);
    await remove();
    const at = dateOf(systemClock.nowMs() + 1_000);
    expect(await eraseUntil(at)).toEqual([dateOf(at.getTime() + 60 * 60_000)]);
    expect((await readable(organizationId)).recipients).toEqual([{ contact_id: ann, address }]);

    await run('delete from delivery_queue where organization_id = $1', [organizationId]);
    await run('update contact_erasures set due_at = $1', [at]);
    const [again] = await eraseUntil(at);
    expect(again!.getTime()).toBeGreaterThan(at.getTime());
    await insertCampaign(organizationId, [{ contactId: ann, sentTo: address }]);
    expect(await eraseUntil(minutesLater(2))).toEqual([]);
    expect(await readable(organizationId)).toEqual({ recipients: [], copies: [] });
  });

  test('one that cannot be erased is put off, and keeps nobody else from their turn', async () => {
    await insertCampaign(organizationId, [{ contactId: ann, sentTo: address }]);
    await insertCampaign(other, [{ contactId: ann, sentTo: address }]);
    await remove();
    await run('delete from contacts where organization_id = $1', [other]);
    const repair = await breakRecipientsOf(organizationId);
    const logged: object[] = [];
    const log = { ...silentLog, error: (fields: object) => void logged.push(fields) };
    const at = minutesLater(2);
    const [again, ...rest] = await eraseUntil(at, { log });
    expect(again!.getTime() - at.getTime()).toBeGreaterThanOrEqual(60_000);
    expect(rest).toEqual([]);
    expect(logged).toMatchObject([{ organization_id: organizationId }]);
    expect((await readable(other)).recipients).toEqual([]);
    await repair();
    expect(await eraseUntil(again!)).toEqual([]);
    expect((await readable(organizationId)).recipients).toEqual([]);
  });

  test('segments hear of whoever has the address now', async () => {
    await run(
      `insert into contact_sets (organization_id, id, kind, name, name_key, reads_messages, created_at, updated_at)
       values ($1, $2, 'segment', 'Reached', 'reached', true, now(), now())`,
      [organizationId, newId()],
    );
    await insertCampaign(organizationId, [{ contactId: ann, sentTo: address }]);
    await remove();
    await eraseUntil(minutesLater(2));
    expect(
      await run('select contact_ids from contact_changes where organization_id = $1', [organizationId]),
    ).toEqual([{ contact_ids: [bob] }]);
  });
});
