import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '../../test/support/email-journey.ts';
import { createShuffledIds } from '../../test/support/shuffled-ids.ts';
import { spreadSlices } from '../../test/support/delivery-slices.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { countChangedRecipients, stopMessage } from '../messages/messages.ts';
import { emailChannel } from '../email/email.ts';
import { pushCampaigns, pushChannel } from '../push/push.ts';
import { smsChannel } from '../sms/sms.ts';
import type { CampaignChannel } from './channel.ts';
import { createSecrets } from '../platform/secrets.ts';
import { createPauses } from '../platform/queue/pauses.ts';
import { advanceCampaign, freezeCampaign, type RunningTools, type StepResult } from './running.ts';

let database: Database;
let tools: RunningTools;
let admissions = 0;
const newId = createShuffledIds(systemClock);
let organizationId: string;
let obstacle: string | null = null;

let hours = 0;
const anHourLater = () => (hours += 1) * 3_600_000;

/** Of the contract only what the engine asks for. */
const email = {
  messages: emailChannel,
  deliveredPerSecondMax: 8_000,
  reach: { kind: 'address', columns: { address: 'email', key: 'email_key' } },
  openMeter: null,
  findObstacle: () => Promise.resolve(obstacle),
} as unknown as CampaignChannel;

/** Its copies take as many of the quota as their first name says. */
const sms = {
  ...email,
  messages: smsChannel,
  reach: { kind: 'address', columns: { address: 'phone_number', key: 'phone_number' } },
  openMeter: () => (values: Record<string, unknown>) => Number(values.first_name),
} as unknown as CampaignChannel;

/** As its room says it. */
const push = {
  ...email,
  messages: pushChannel,
  reach: pushCampaigns.reach,
};

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  tools = {
    database,
    clock: systemClock,
    newId,
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    channels: { email, sms, push, chatapp: null },
    admissionPauses: createPauses({ ...systemClock, monotonicMs: anHourLater }),
    progressPauses: createPauses(systemClock),
    onAdmitted: () => {
      admissions += 1;
    },
  };
});
beforeEach(async () => {
  organizationId = newId();
  admissions = 0;
  obstacle = null;
  await run('insert into organizations (id, name, created_at, updated_at) values ($1, $2, now(), now())', [
    organizationId,
    'Test',
  ]);
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

async function makeSet(kind: 'list' | 'tag' | 'segment', more: { isReady?: boolean } = {}): Promise<string> {
  const id = newId();
  await run(
    `insert into contact_sets (organization_id, id, kind, name, name_key, is_ready, created_at, updated_at)
     values ($1, $2, $3, $5, $5, $4, now(), now())`,
    [organizationId, id, kind, more.isReady ?? true, id],
  );
  return id;
}

type Contact = { email?: string | null; firstName?: string; isUnsubscribed?: boolean };

async function makeContact(contact: Contact, setIds: readonly string[]): Promise<string> {
  const id = newId();
  const address = contact.email === undefined ? `c${id}@example.com` : contact.email;
  await run(
    `insert into contacts (organization_id, id, external_id, email, email_key, first_name, unsubscribed_channels,
       created_at, updated_at)
     values ($1, $2, $6, $3::text, lower($3), $4, $5, now() - interval '2 hours', now() - interval '2 hours')`,
    [organizationId, id, address, contact.firstName ?? null, contact.isUnsubscribed ? ['email'] : [], id],
  );
  await join(id, setIds);
  return id;
}

async function join(contactId: string, setIds: readonly string[]): Promise<void> {
  await run(
    `insert into memberships (organization_id, set_id, contact_id) select $1, set_id, $2 from unnest($3::uuid[]) set_id`,
    [organizationId, contactId, setIds],
  );
}

async function makeContacts(count: number, setId: string): Promise<void> {
  await run(
    `with made as (
       insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
       select $1, gen_random_uuid(), n || '@many.example', n || '@many.example', now() - interval '2 hours',
         now() - interval '2 hours'
       from generate_series(1, $2) n
       returning id
     )
     insert into memberships (organization_id, set_id, contact_id) select $1, $3, id from made`,
    [organizationId, count, setId],
  );
}

type Key = { organizationId: string; id: string; messageId: string };

async function queueCampaign(sets: {
  lists?: string[];
  tags?: string[];
  segments?: string[];
  excludedLists?: string[];
  excludedSegments?: string[];
  variableNames?: string[];
}): Promise<Key> {
  const key = { organizationId, id: newId(), messageId: newId() };
  await run(
    `insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
     values ($1, $2, 'email', 'campaign', 'hello@postillion.test', '{}', 0, now(), now())`,
    [organizationId, key.messageId],
  );
  await run(`insert into message_contents values ($1, $2, '{"html": "Hello"}')`, [
    organizationId,
    key.messageId,
  ]);
  await run(
    `insert into campaigns (organization_id, id, channel, name, name_key, status, content, list_ids, tag_ids,
       segment_ids, exclude_list_ids, queued_at, message_id, variable_names, exclude_segment_ids, created_at,
       updated_at)
     values ($1, $2, 'email', 'News', 'news', 'queued', '{}', $3, $4, $5, $6, now(), $7, $8, $9, now(), now())`,
    [
      organizationId,
      key.id,
      sets.lists ?? [],
      sets.tags ?? [],
      sets.segments ?? [],
      sets.excludedLists ?? [],
      key.messageId,
      sets.variableNames ?? [],
      sets.excludedSegments ?? [],
    ],
  );
  return key;
}

/** As `queueing.ts` does it. */
async function holdSets(campaign: Key, kind: 'list' | 'segment', setIds: readonly string[]): Promise<void> {
  await run(
    `insert into holds (organization_id, held_kind, held_id, holder_kind, holder_id)
     select $1, $2, held_id, 'campaign', $3 from unnest($4::uuid[]) held_id`,
    [organizationId, kind, campaign.id, setIds],
  );
}

function holdsOf(campaign: Key): Promise<unknown[]> {
  return run('select held_id from holds where holder_id = $1', [campaign.id]);
}

type Campaign = {
  status: string;
  pause_reason: string | null;
  failure_reason: string | null;
  started_at: Date | null;
  frozen_at: Date | null;
  candidates: number;
  audience: number;
  excluded_unsubscribed: number;
  excluded_suppressed: number;
  excluded_no_address: number;
  excluded_duplicate: number;
  expanded: number;
  admitted: number;
};

async function read(campaign: Key): Promise<Campaign> {
  const [row] = await run<Campaign>('select * from campaigns where organization_id = $1 and id = $2', [
    campaign.organizationId,
    campaign.id,
  ]);
  if (row === undefined) throw new Error('the campaign is not there');
  return row;
}

type Recipient = {
  ordinal: number;
  contact_id: string;
  address_key: string;
  variables: unknown;
  drop_reason: string | null;
};

function recipientsOf(campaign: Key): Promise<Recipient[]> {
  return run(
    `select ordinal, contact_id, address_key, variables, drop_reason
     from recipients where organization_id = $1 and message_id = $2 order by ordinal`,
    [campaign.organizationId, campaign.messageId],
  );
}

/** By themselves, and in slices. */
function queueOf(campaign: Key): Promise<{ ordinal: number; lane: number }[]> {
  return run(
    `select ordinal, lane from delivery_queue where organization_id = $1 and message_id = $2
     union all
     select r.ordinal, s.lane
     from delivery_slices s
     join recipients r on r.organization_id = s.organization_id and r.message_id = s.message_id
       and r.ordinal between s.first_ordinal and s.last_ordinal and r.drop_reason is null and r.address <> ''
     where s.organization_id = $1 and s.message_id = $2
     order by ordinal`,
    [campaign.organizationId, campaign.messageId],
  );
}

/** As the chore does, until there is nothing more to do. */
async function advanceFully(campaign: Key, used = tools): Promise<StepResult> {
  for (;;) {
    const steps = [await freezeCampaign(used, campaign), await advanceCampaign(used, campaign)];
    if (!steps.includes('advanced')) return steps.find((step) => step !== 'waits') ?? 'waits';
  }
}

/** What workers do, in short. */
async function handOffAll(campaign: Key): Promise<void> {
  await spreadSlices(database);
  await database.transactionByIndex((transaction) =>
    transaction.rows(
      unpreparedStatement(
        `with gone as (
           delete from delivery_queue where organization_id = $1 and message_id = $2 returning *
         ), noted as (
           insert into recipient_changes (organization_id, id, message_id, slices)
           select $1, gen_random_uuid(), $2, array_agg(distinct ordinal / 1000) from gone having count(*) > 0
         )
         update recipients r set status = 'delivered', handed_off_at = now()
         from gone
         where r.organization_id = gone.organization_id and r.message_id = gone.message_id
           and r.ordinal = gone.ordinal`,
      ),
      [campaign.organizationId, campaign.messageId],
    ),
  );
  await countChangedRecipients(tools);
}

test('a small campaign that is delivered and counted within one step has a start all the same', async () => {
  const list = await makeSet('list');
  await makeContacts(3, list);
  const campaign = await queueCampaign({ lists: [list] });
  await advanceFully(campaign);

  let isDelivered = false;
  const asOrganizations: Database['asOrganizations'] = (ids, work) =>
    database.asOrganizations(ids, (within) =>
      work({
        ...within,
        rows: async (statement, values) => {
          const rows = await within.rows(statement, values);
          if (!isDelivered && statement.name === 'recipient_counts_select_handed_off') {
            isDelivered = true;
            await handOffAll(campaign);
          }
          return rows;
        },
      }),
    );
  await advanceCampaign({ ...tools, database: { ...database, asOrganizations } }, campaign);
  expect(isDelivered).toBe(true);
  expect(await read(campaign)).toMatchObject({ status: 'sent', started_at: expect.any(Date) as Date });
});

test('a campaign that fails right after its first mail has begun', async () => {
  const list = await makeSet('list');
  await makeContacts(3, list);
  const campaign = await queueCampaign({ lists: [list] });
  await advanceFully(campaign);
  await handOffAll(campaign);
  obstacle = 'The sending domain was deleted.';
  await advanceCampaign(tools, campaign);
  expect(await read(campaign)).toMatchObject({ status: 'failed', started_at: expect.any(Date) as Date });
});

test('a campaign goes to everybody in its sets and not in the excluded ones, each once, and says why not', async () => {
  const [news, vip, blocked] = [await makeSet('list'), await makeSet('tag'), await makeSet('list')];
  const muted = await makeSet('list');
  const both = await makeContact({ email: 'Ann@example.com', firstName: 'Ann' }, [news, vip]);
  const tagged = await makeContact({ email: 'bob@example.com' }, [vip]);
  await makeContact({}, [news, blocked]);
  await makeContact({}, [news, muted]);
  await makeContact({ isUnsubscribed: true }, [news]);
  await makeContact({ email: null }, [news]);
  await makeContact({ email: 'gone@example.com' }, [news]);
  // Of several reasons the first is told: no address, no consent, a suppression.
  await makeContact({ email: null, isUnsubscribed: true }, [news]);
  await makeContact({ email: 'left@example.com', isUnsubscribed: true }, [news]);
  await makeContact({}, []);
  await run(
    `insert into suppressions
       (organization_id, id, channel, address_hash, address, reason, source_type, created_at)
     select $1, gen_random_uuid(), 'email', sha256(name::bytea), name || '@example.com', 'complaint', 'message', now()
     from unnest(array['gone', 'left']) as name`,
    [organizationId],
  );

  // Somebody else's word on the same address.
  await run(
    `insert into suppressions
       (organization_id, id, channel, address_hash, address, reason, source_type, created_at)
     values ($1, gen_random_uuid(), 'email', sha256('bob'), 'bob@example.com', 'complaint', 'message', now())`,
    [newId()],
  );

  const campaign = await queueCampaign({ lists: [news], tags: [vip], excludedLists: [blocked, muted] });
  await advanceFully(campaign);

  expect(await read(campaign)).toMatchObject({
    candidates: 7,
    audience: 2,
    excluded_unsubscribed: 2,
    excluded_suppressed: 1,
    excluded_no_address: 2,
    excluded_duplicate: 0,
  });
  const recipients = await recipientsOf(campaign);
  expect(recipients.map(({ contact_id }) => contact_id)).toEqual([both, tagged].sort());
  expect(await queueOf(campaign)).toEqual([
    { ordinal: 0, lane: 1 },
    { ordinal: 1, lane: 1 },
  ]);
  expect(admissions).toBeGreaterThan(0);
});

test('who joins or leaves after the freezing changes nothing', async () => {
  const news = await makeSet('list');
  const early = await makeContact({}, [news]);
  const campaign = await queueCampaign({ lists: [news] });
  expect(await freezeCampaign(tools, campaign)).toBe('advanced');

  await makeContact({}, [news]);
  await run('delete from memberships where organization_id = $1 and contact_id = $2', [
    organizationId,
    early,
  ]);
  await advanceFully(campaign);

  expect((await recipientsOf(campaign)).map(({ contact_id }) => contact_id)).toEqual([early]);
});

describe('between the freezing and the row of its own, a contact', () => {
  async function freezeTwo() {
    const news = await makeSet('list');
    const changed = await makeContact({ email: 'first@example.com' }, [news]);
    const other = await makeContact({ email: 'other@example.com' }, [news]);
    const campaign = await queueCampaign({ lists: [news] });
    await freezeCampaign(tools, campaign);
    return { campaign, changed, other };
  }

  test.each([
    ['that was deleted is dropped', 'delete from contacts where id = $1', 'contact_deleted'],
    [
      'that lost its address is dropped',
      'update contacts set email = null, email_key = null where id = $1',
      'no_address',
    ],
    [
      'that unsubscribed is dropped',
      `update contacts set unsubscribed_channels = '{email}' where id = $1`,
      'unsubscribed',
    ],
  ])('%s', async (_case, change, reason) => {
    const { campaign, changed, other } = await freezeTwo();
    await run(change, [changed]);
    await advanceFully(campaign);

    const reasons = new Map(
      (await recipientsOf(campaign)).map((row) => [row.contact_id, row.drop_reason] as const),
    );
    expect(reasons).toEqual(
      new Map([
        [changed, reason],
        [other, null],
      ]),
    );
    expect(await queueOf(campaign)).toHaveLength(1);
    await countChangedRecipients(tools);
    const counts = await run('select dropped from recipient_counts where message_id = $1', [
      campaign.messageId,
    ]);
    expect(counts).toEqual([{ dropped: 1 }]);
  });

  test('that takes over an address which was written to already is dropped as a duplicate, hours later too', async () => {
    const { campaign, changed, other } = await freezeTwo();
    await run(`update campaigns set frozen_at = now() - interval '3 hours' where id = $1`, [campaign.id]);
    // The row of the other one is there already, under an address that then moves.
    await run(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at, contact_id)
       values ($1, $2, 1000, 'to', 'moving@example.com', 'moving@example.com', now(), $3)`,
      [organizationId, campaign.messageId, newId()],
    );
    await run(
      `update contacts
       set email = 'moving@example.com', email_key = 'moving@example.com', updated_at = now() - interval '2 hours'
       where id = $1`,
      [changed],
    );
    await advanceCampaign(tools, campaign);

    const recipients = await recipientsOf(campaign);
    expect(recipients.find(({ contact_id }) => contact_id === changed)?.drop_reason).toBe('duplicate');
    expect(recipients.find(({ contact_id }) => contact_id === other)?.drop_reason).toBeNull();
  });
});

test('placeholders are filled with fields and properties, and what a contact has not is left out', async () => {
  const news = await makeSet('list');
  await run(
    `insert into contact_properties (organization_id, id, number, key, name, name_key, type, created_at, updated_at)
     values ($1, $2, 7, 'plan', 'Plan', 'plan', 'string', now(), now())`,
    [organizationId, newId()],
  );
  const ann = await makeContact({ email: 'ann@example.com', firstName: 'Ann' }, [news]);
  await run(`update contacts set properties = '{"7": "gold", "8": "nobody asks"}' where id = $1`, [ann]);
  const bob = await makeContact({ email: 'bob@example.com' }, [news]);
  const campaign = await queueCampaign({
    lists: [news],
    variableNames: ['first_name', 'plan', 'email', 'unknown', "x'; drop table contacts; --"],
  });
  await advanceFully(campaign);

  const recipients = await recipientsOf(campaign);
  expect(new Map(recipients.map(({ contact_id, variables }) => [contact_id, variables]))).toEqual(
    new Map([
      [ann, { email: 'ann@example.com', first_name: 'Ann', plan: 'gold' }],
      [bob, { email: 'bob@example.com' }],
    ]),
  );
});

test('how much of a campaign is in the queue follows the rate of its channel', async () => {
  const slow = { ...tools, channels: { ...tools.channels, email: { ...email, deliveredPerSecondMax: 160 } } };
  const news = await makeSet('list');
  await makeContacts(400, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign, slow);
  expect(await read(campaign)).toMatchObject({ audience: 400, expanded: 400, admitted: 160 });
  await spreadSlices(database);
  const leave = (count: number) =>
    run(
      `delete from delivery_queue where (message_id, ordinal) in
         (select message_id, ordinal from delivery_queue where organization_id = $1 limit $2)`,
      [organizationId, count],
    );
  // A few free places are not worth a transaction.
  await leave(9);
  await advanceFully(campaign, slow);
  expect(await read(campaign)).toMatchObject({ admitted: 160 });
  await leave(1);
  await advanceFully(campaign, slow);
  expect(await read(campaign)).toMatchObject({ admitted: 170 });
});

test('a large campaign is let into the queue a window at a time, everybody once', async () => {
  const news = await makeSet('list');
  await makeContacts(9_300, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);

  expect(await read(campaign)).toMatchObject({ audience: 9_300, expanded: 9_300, admitted: 8_000 });
  expect(await queueOf(campaign)).toHaveLength(8_000);
  await handOffAll(campaign);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sending', admitted: 9_300 });
  expect(await queueOf(campaign)).toHaveLength(1_300);
  await handOffAll(campaign);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sent' });

  const contacts = (await recipientsOf(campaign)).map(({ contact_id }) => contact_id);
  expect(new Set(contacts).size).toBe(9_300);
  const [{ left }] = (await run<{ left: number }>(
    'select count(*) as left from campaign_slices where organization_id = $1',
    [organizationId],
  )) as [{ left: number }];
  expect(left).toBe(0);
});

test('the first slice of a large audience is sent to before the rest is frozen, and everybody is counted once', async () => {
  const [large, blocked] = [await makeSet('list'), await makeSet('list')];
  await makeContacts(3_400, large);
  await run(
    `update contacts set unsubscribed_channels = '{email}' where organization_id = $1 and email like '%7@many.example'`,
    [organizationId],
  );
  await run(
    `insert into memberships (organization_id, set_id, contact_id)
     select $1, $2, id from contacts where organization_id = $1 and email like '%3@many.example'`,
    [organizationId, blocked],
  );
  await run(
    `update contacts set external_id = email, email = null, email_key = null
     where organization_id = $1 and email like '%11@many.example'`,
    [organizationId],
  );
  await run(
    `insert into suppressions
       (organization_id, id, channel, address_hash, address, reason, source_type, created_at)
     select $1, gen_random_uuid(), 'email', sha256(email::bytea), email, 'complaint', 'message', now()
     from contacts where organization_id = $1 and email like '%22@many.example'`,
    [organizationId],
  );
  const campaign = await queueCampaign({ lists: [large], excludedLists: [blocked] });

  expect(await freezeCampaign(tools, campaign)).toBe('advanced');
  const { candidates, ...first } = await read(campaign);
  const excluded = [first.excluded_unsubscribed, first.excluded_suppressed, first.excluded_no_address];
  expect(excluded.every((count) => count > 0)).toBe(true);
  expect(first.audience).toBe(1_000);
  expect(candidates).toBe(1_000 + excluded.reduce((sum, count) => sum + count));
  expect(candidates).toBeLessThan(2_000);
  await advanceCampaign(tools, campaign);
  await advanceCampaign(tools, campaign);
  await handOffAll(campaign);
  await advanceCampaign(tools, campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sending', expanded: 1_000, admitted: 1_000 });

  // Whoever holds the campaign for a moment does not undo what was counted.
  let onHeld: () => void = () => undefined;
  const isHeld = new Promise<void>((resolve) => {
    onHeld = resolve;
  });
  const holding = database.transactionByIndex(async (transaction) => {
    await transaction.rows(unpreparedStatement('select from campaigns where id = $1 for update'), [
      campaign.id,
    ]);
    onHeld();
    await transaction.rows(unpreparedStatement('select pg_sleep(0.2)'));
  });
  await isHeld;
  expect(await freezeCampaign(tools, campaign)).toBe('advanced');
  await holding;
  expect(await freezeCampaign(tools, campaign)).toBe('waits');
  await advanceFully(campaign);
  await handOffAll(campaign);
  await advanceFully(campaign);

  expect(await read(campaign)).toMatchObject({
    status: 'sent',
    candidates: 3_060,
    audience: 2_652,
    excluded_unsubscribed: 340,
    excluded_suppressed: 34,
    excluded_no_address: 34,
  });
  const contacts = (await recipientsOf(campaign)).map(({ contact_id }) => contact_id);
  expect(new Set(contacts).size).toBe(2_652);
  expect(contacts).toEqual(contacts.toSorted());
  // Of whom it was decided when.
  expect(await read(campaign)).toMatchObject({ first_frozen_through: contacts[999], frozen_through: null });
  const [later] = await run<{ is_later: boolean }>(
    'select rest_frozen_at > frozen_at as is_later from campaigns where id = $1',
    [campaign.id],
  );
  expect(later).toEqual({ is_later: true });
});

test('a large audience of whose rest nobody is left is sent to, and leaves no slices', async () => {
  const large = await makeSet('list');
  await makeContacts(2_000, large);
  await run(
    `update contacts set unsubscribed_channels = '{email}'
     where id in (select id from contacts where organization_id = $1 order by id desc limit 1000)`,
    [organizationId],
  );
  const campaign = await queueCampaign({ lists: [large] });
  await advanceFully(campaign);
  await handOffAll(campaign);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sent', candidates: 2_000, audience: 1_000 });
  expect(await run('select from campaign_slices where organization_id = $1', [organizationId])).toEqual([]);
});

test('an audience that fills one slice leaves no other', async () => {
  const news = await makeSet('list');
  await makeContacts(1_000, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  expect(await recipientsOf(campaign)).toHaveLength(1_000);
  expect(await run('select from campaign_slices where organization_id = $1', [organizationId])).toEqual([]);
});

test('a campaign that nobody is in has failed and says so', async () => {
  const campaign = await queueCampaign({ lists: [await makeSet('list')] });
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({
    status: 'failed',
    failure_reason: 'There are no contacts to send to.',
  });
});

test('one segment of several that is still being computed is waited for', async () => {
  const segment = await makeSet('segment', { isReady: false });
  const campaign = await queueCampaign({ segments: [await makeSet('segment'), segment] });
  expect(await freezeCampaign(tools, campaign)).toBe('waits_briefly');
  await makeContact({}, [segment]);
  await run('update contact_sets set is_ready = true where id = $1', [segment]);
  await advanceFully(campaign);
  expect(await queueOf(campaign)).toHaveLength(1);
});

test('an excluded segment that is still being computed is waited for, and nobody in it is written to', async () => {
  const news = await makeSet('list');
  const segment = await makeSet('segment', { isReady: false });
  await makeContact({}, [news]);
  const campaign = await queueCampaign({ lists: [news], excludedSegments: [segment] });
  expect(await freezeCampaign(tools, campaign)).toBe('waits_briefly');
  await makeContact({}, [news, segment]);
  await run('update contact_sets set is_ready = true where id = $1', [segment]);
  await advanceFully(campaign);
  expect(await queueOf(campaign)).toHaveLength(1);
});

test.each<[string, 'segments' | 'excludedSegments']>([
  ['goes to', 'segments'],
  ['excludes', 'excludedSegments'],
])(
  'a campaign that %s a segment that failed, beside one that is ready, has failed, says so, and lets go of its sets',
  async (_case, place) => {
    const [news, segment] = [await makeSet('list'), await makeSet('segment', { isReady: false })];
    const ready = await makeSet('segment');
    await run(
      `insert into segments (organization_id, id, conditions, conditions_at, status)
       values ($1, $2, '{}', now(), 'failed'), ($1, $3, '{}', now(), 'ready')`,
      [organizationId, segment, ready],
    );
    await makeContact({}, [news]);
    const campaign = await queueCampaign({ lists: [news], [place]: [ready, segment] });
    await holdSets(campaign, 'segment', [segment]);
    await advanceFully(campaign);
    expect(await read(campaign)).toMatchObject({
      status: 'failed',
      failure_reason: 'The members of one of its segments could not be computed.',
    });
    expect([await recipientsOf(campaign), await holdsOf(campaign)]).toEqual([[], []]);
  },
);

async function changeContact(contactId: string, owner = organizationId): Promise<void> {
  await run('insert into contact_changes (organization_id, id, contact_ids) values ($1, $2, $3)', [
    owner,
    newId(),
    [contactId],
  ]);
}

test('changes of contacts from after the queueing are not waited for', async () => {
  const segment = await makeSet('segment');
  const contact = await makeContact({}, [segment]);
  const campaign = await queueCampaign({ segments: [segment] });
  await run(`update campaigns set queued_at = now() - interval '1 minute' where id = $1`, [campaign.id]);
  await changeContact(contact);
  expect(await freezeCampaign(tools, campaign)).toBe('advanced');
});

test.each(['with a segment', 'without one'])(
  'a campaign %s does not wait for changes that are none of its segments',
  async (which) => {
    const [news, segment] = [await makeSet('list'), await makeSet('segment')];
    const contact = await makeContact({}, [news, segment]);
    const hasSegment = which === 'with a segment';
    const campaign = await queueCampaign(hasSegment ? { segments: [segment] } : { lists: [news] });
    await run(`update campaigns set queued_at = now() + interval '1 second' where id = $1`, [campaign.id]);
    await changeContact(contact, hasSegment ? newId() : organizationId);
    expect(await freezeCampaign(tools, campaign)).toBe('advanced');
  },
);

test('a campaign that was sent holds nothing any more', async () => {
  const news = await makeSet('list');
  await makeContact({}, [news]);
  const campaign = await queueCampaign({ lists: [news] });
  await holdSets(campaign, 'list', [news]);
  await advanceFully(campaign);
  expect(await holdsOf(campaign)).toHaveLength(1);
  await handOffAll(campaign);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sent' });
  expect(await holdsOf(campaign)).toEqual([]);
});

test('a campaign that missed its time is left to a person', async () => {
  const news = await makeSet('list');
  await makeContact({}, [news]);
  const campaign = await queueCampaign({ lists: [news] });
  await run(`update campaigns set status = 'paused', pause_reason = 'schedule_missed' where id = $1`, [
    campaign.id,
  ]);
  expect(await advanceFully(campaign)).toBe('waits');
  expect(await read(campaign)).toMatchObject({ status: 'paused', audience: null });
});

test('a campaign is not sent while mail of it is put off, nor before everybody was counted', async () => {
  const news = await makeSet('list');
  await makeContacts(2, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  await spreadSlices(database);
  await run(
    `update delivery_queue set due_at = now() + interval '6 hours' where message_id = $1 and ordinal = 0`,
    [campaign.messageId],
  );
  await run('delete from delivery_queue where message_id = $1 and ordinal = 1', [campaign.messageId]);
  await advanceFully(campaign);
  expect(await read(campaign)).not.toMatchObject({ status: 'sent' });

  await run('delete from delivery_queue where message_id = $1', [campaign.messageId]);
  await run(
    'insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $3, $4)',
    [organizationId, newId(), campaign.messageId, [0]],
  );
  await advanceFully(campaign);
  expect(await read(campaign)).not.toMatchObject({ status: 'sent' });
  await countChangedRecipients(tools);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sent' });
});

test('what was counted of a campaign is told once a minute where that is wanted, and only if it has changed', async () => {
  const news = await makeSet('list');
  await makeContacts(3, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  const told = async () =>
    (
      await run(`select from webhook_outbox where organization_id = $1 and type = 'campaign.progress'`, [
        organizationId,
      ])
    ).length;
  /** A minute after the campaign was frozen, or told of. */
  const passMinute = () =>
    run(
      `update campaigns
       set frozen_at = frozen_at - interval '1 minute', progress_told_at = progress_told_at - interval '1 minute'
       where id = $1`,
      [campaign.id],
    );
  const count = async (handedOff: number) => {
    await run(
      `insert into recipient_counts (organization_id, message_id, slice, handed_off) values ($1, $2, 0, $3)
       on conflict (organization_id, message_id, slice) do update set handed_off = excluded.handed_off`,
      [organizationId, campaign.messageId, handedOff],
    );
  };
  await count(1);
  await passMinute();
  await advanceFully(campaign);
  expect(await told()).toBe(0);
  await run(
    `insert into webhook_interests (organization_id, of_campaigns, type_pattern) values ($1, true, 'campaign.progress')`,
    [organizationId],
  );
  await advanceFully(campaign);
  await count(2);
  await advanceFully(campaign);
  expect(await told()).toBe(1);
  await passMinute();
  await advanceFully(campaign);
  await advanceFully(campaign);
  expect(await told()).toBe(2);
  await passMinute();
  await advanceFully(campaign);
  expect(await told()).toBe(2);
});

test('a segment that has changes to follow, from before the campaign was queued, is waited for', async () => {
  const segment = await makeSet('segment');
  const contact = await makeContact({}, [segment]);
  await changeContact(contact);
  const campaign = await queueCampaign({ segments: [segment] });
  await run(`update campaigns set queued_at = now() + interval '1 second' where id = $1`, [campaign.id]);
  expect(await freezeCampaign(tools, campaign)).toBe('waits_briefly');
  await run('delete from contact_changes where organization_id = $1', [organizationId]);
  expect(await freezeCampaign(tools, campaign)).toBe('advanced');
});

test('suspension takes what waits out of the queue, and its end puts it back', async () => {
  const news = await makeSet('list');
  await makeContact({}, [news]);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  await run(`update organizations set suspended_channels = '{email}' where id = $1`, [organizationId]);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'paused', pause_reason: 'sending_suspended' });
  expect(await queueOf(campaign)).toEqual([{ ordinal: 0, lane: 2 }]);

  await run(`update organizations set suspended_channels = '{}' where id = $1`, [organizationId]);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'queued', pause_reason: null });
  expect(await queueOf(campaign)).toEqual([{ ordinal: 0, lane: 1 }]);
});

test('a quota is used up to its last message, and the rest waits until there is more', async () => {
  const news = await makeSet('list');
  await makeContacts(10, news);
  await run('update organizations set email_quota = 4 where id = $1', [organizationId]);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({
    status: 'paused',
    pause_reason: 'quota_exceeded',
    admitted: 4,
  });
  await handOffAll(campaign);
  expect(await advanceFully(campaign)).toBe('waits');

  await run('update organizations set email_quota = 10 where id = $1', [organizationId]);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sending', admitted: 10 });
  await handOffAll(campaign);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'sent' });
  const [usage] = await run<{ used: number }>(
    'select sum(used) as used from quota_usage where organization_id = $1',
    [organizationId],
  );
  expect(usage?.used).toBe(10);
});

test('places for new people are taken in the queue, for all campaigns together, and a part of them must be free again', async () => {
  let places = 4;
  const openBudget: CampaignChannel['openBudget'] = async (_tools, _transaction, { countInHand }) => ({
    pauseReason: 'messaging_limit',
    left: places - (await countInHand(1_000)),
    step: 3,
    findFree: () => Promise.resolve(new Set()),
  });
  const limited = { ...tools, channels: { ...tools.channels, email: { ...email, openBudget } } };
  const [news, others] = [await makeSet('list'), await makeSet('list')];
  await makeContacts(10, news);
  await makeContact({}, [others]);
  const [campaign, second] = [
    await queueCampaign({ lists: [news] }),
    await queueCampaign({ lists: [others] }),
  ];
  await advanceFully(campaign, limited);
  await advanceFully(second, limited);
  const waiting = { status: 'paused', pause_reason: 'messaging_limit' };
  expect(await read(campaign)).toMatchObject({ ...waiting, admitted: 4 });
  expect(await read(second)).toMatchObject({ ...waiting, admitted: 0 });
  // Their places are theirs: they leave all the same.
  expect((await queueOf(campaign)).map(({ lane }) => lane)).toEqual([1, 1, 1, 1]);
  await handOffAll(campaign);
  places = 2;
  await advanceFully(campaign, limited);
  expect(await read(campaign)).toMatchObject({ ...waiting, admitted: 4 });
  // It needs one alone.
  await advanceFully(second, limited);
  expect(await read(second)).toMatchObject({ admitted: 1 });
  places = 4;
  await advanceFully(campaign, limited);
  expect(await read(campaign)).toMatchObject({ ...waiting, admitted: 7 });
});

test('a campaign of which nothing is left to be handed off is over, although campaigns are held back', async () => {
  const findPauseReason: CampaignChannel['findPauseReason'] = () => Promise.resolve('messaging_limit');
  const held = { ...tools, channels: { ...tools.channels, email: { ...email, findPauseReason } } };
  const news = await makeSet('list');
  await makeContacts(3, news);
  const [campaign, waiting] = [
    await queueCampaign({ lists: [news] }),
    await queueCampaign({ lists: [news] }),
  ];
  await advanceFully(campaign);
  await handOffAll(campaign);
  await advanceFully(campaign, held);
  expect(await read(campaign)).toMatchObject({ status: 'sent' });
  await advanceFully(waiting, held);
  expect(await read(waiting)).toMatchObject({
    status: 'paused',
    pause_reason: 'messaging_limit',
    admitted: 0,
  });
});

test('whoever takes no place is let into the queue where none is left, up to the first who does', async () => {
  const findFree = (keys: readonly string[]) =>
    Promise.resolve(new Set(keys.filter((key) => key.startsWith('known'))));
  const openBudget: CampaignChannel['openBudget'] = () =>
    Promise.resolve({ pauseReason: 'messaging_limit', left: -1, step: 1, findFree });
  const limited = { ...tools, channels: { ...tools.channels, email: { ...email, openBudget } } };
  const news = await makeSet('list');
  const addresses = ['known1', 'known2', 'known3', 'new', 'known4'];
  for (const name of addresses) await makeContact({ email: `${name}@places.example` }, [news]);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign, limited);
  const order = (await recipientsOf(campaign)).map(({ address_key: key }) => key);
  const admitted = order.findIndex((key) => key.startsWith('new'));
  expect(await read(campaign)).toMatchObject({ status: 'paused', admitted });
});

test('where copies take different amounts of the quota, it is used as far as the next one fits', async () => {
  const list = await makeSet('list');
  const takes = ['2', '3', '1', '4'];
  const ids: string[] = [];
  while (ids.length < takes.length) ids.push(await makeContact({}, [list]));
  for (const [index, id] of ids.toSorted().entries()) {
    await run('update contacts set first_name = $2, phone_number = $3 where id = $1', [
      id,
      takes[index],
      `+4915112345${index}`,
    ]);
  }
  const campaign = await queueCampaign({ lists: [list], variableNames: ['first_name'] });
  await run(`update campaigns set channel = 'sms' where id = $1`, [campaign.id]);
  const setQuota = (quota: number) =>
    run('update organizations set sms_quota = $2 where id = $1', [organizationId, quota]);
  const used = async () =>
    (
      await run<{ used: string }>(
        `select coalesce(sum(used), 0) as used from quota_usage where organization_id = $1 and channel = 'sms'`,
        [organizationId],
      )
    ).map((row) => Number(row.used));

  await setQuota(4);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({
    status: 'paused',
    pause_reason: 'quota_exceeded',
    admitted: 1,
  });
  expect(await used()).toEqual([2]);
  // Two are left, and the next takes three: it is not worth going on, and pausing anew.
  expect(await advanceCampaign(tools, campaign)).toBe('waits');
  expect(await read(campaign)).toMatchObject({ status: 'paused', admitted: 1 });
  await setQuota(9);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'paused', admitted: 3 });
  expect(await used()).toEqual([6]);
  await setQuota(10);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'queued', pause_reason: null, admitted: 4 });
  expect(await used()).toEqual([10]);
});

test('recipients that are put off for hours keep nobody else waiting', async () => {
  const news = await makeSet('list');
  await makeContacts(9_300, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  await spreadSlices(database);
  await run(`update delivery_queue set due_at = now() + interval '6 hours' where message_id = $1`, [
    campaign.messageId,
  ]);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ admitted: 9_300 });
});

test('a campaign whose sender is gone has failed, and nobody more is written to', async () => {
  const news = await makeSet('list');
  await makeContacts(3, news);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  obstacle = 'The sending domain postillion.test was deleted.';
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'failed', failure_reason: obstacle });
  expect(await queueOf(campaign)).toEqual([]);
});

test('suspension also stops what a used up quota has let through', async () => {
  const news = await makeSet('list');
  await makeContacts(10, news);
  await run('update organizations set email_quota = 4 where id = $1', [organizationId]);
  const campaign = await queueCampaign({ lists: [news] });
  await advanceFully(campaign);
  await run(`update organizations set suspended_channels = '{email}' where id = $1`, [organizationId]);
  await advanceFully(campaign);
  expect(await read(campaign)).toMatchObject({ status: 'paused', pause_reason: 'sending_suspended' });
  expect((await queueOf(campaign)).map(({ lane }) => lane)).toEqual([2, 2, 2, 2]);
});

test.each(['delivery_queue', 'delivery_slices'])(
  'what a worker has in %s of a campaign that is stopped while it is paused comes back into sight',
  async (table) => {
    const news = await makeSet('list');
    await makeContact({}, [news]);
    const campaign = await queueCampaign({ lists: [news] });
    await advanceFully(campaign);
    if (table === 'delivery_queue') await spreadSlices(database);
    await run(`update ${table} set claimed_by = 1, claim_number = 1 where message_id = $1`, [
      campaign.messageId,
    ]);
    await run(`update organizations set suspended_channels = '{email}' where id = $1`, [organizationId]);
    await advanceFully(campaign);
    await database.transaction((transaction) => stopMessage(transaction, campaign));
    expect(await queueOf(campaign)).toEqual([{ ordinal: 0, lane: 1 }]);
  },
);

/** Of others that wait for a lock, until it is over; by then whoever was to wait does. */
async function untilSomebodyWaits(count = 1): Promise<'had to wait'> {
  await eventually(
    // Other tests wait for locks in other databases.
    () =>
      run(
        'select from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0',
      ),
    (waiting) => waiting.length >= count,
  ).catch(() => undefined);
  return 'had to wait';
}

/** A transaction of somebody else, who has the campaign's row for as long as the work takes. */
function whileHeld(campaign: Key, statement: string, work: () => Promise<unknown>): Promise<void> {
  return database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement(statement), [campaign.id]);
    await work();
  });
}

test('a campaign that another node has is left to it', async () => {
  const news = await makeSet('list');
  await makeContacts(2, news);
  const campaign = await queueCampaign({ lists: [news] });
  await freezeCampaign(tools, campaign);
  let advancing: Promise<StepResult> = Promise.resolve('waits');
  let first: StepResult | 'had to wait' = 'had to wait';
  await whileHeld(campaign, 'select from campaigns where id = $1 for update', async () => {
    advancing = advanceCampaign(tools, campaign);
    first = await Promise.race([advancing, untilSomebodyWaits()]);
  });
  await advancing;
  expect(first).toBe('waits');
  expect(await recipientsOf(campaign)).toEqual([]);
});

test('a campaign that is cancelled while its audience is counted gets none', async () => {
  const news = await makeSet('list');
  await makeContacts(2, news);
  const campaign = await queueCampaign({ lists: [news] });
  let freezing: Promise<StepResult> = Promise.resolve('waits');
  await whileHeld(campaign, `update campaigns set status = 'cancelled' where id = $1`, async () => {
    freezing = freezeCampaign(tools, campaign);
    await untilSomebodyWaits();
  });
  expect(await freezing).toBe('waits_briefly');
  expect(await read(campaign)).toMatchObject({ status: 'cancelled', frozen_at: null, audience: null });
  expect(await run('select from campaign_slices where campaign_id = $1', [campaign.id])).toEqual([]);
});

test('a campaign that is cancelled while its segment fails stays cancelled', async () => {
  const segment = await makeSet('segment', { isReady: false });
  await run(
    `insert into segments (organization_id, id, conditions, conditions_at, status)
     values ($1, $2, '{}', now(), 'failed')`,
    [organizationId, segment],
  );
  const campaign = await queueCampaign({ segments: [segment] });
  let freezing: Promise<StepResult> = Promise.resolve('waits');
  await whileHeld(campaign, `update campaigns set status = 'cancelled' where id = $1`, async () => {
    freezing = freezeCampaign(tools, campaign);
    await untilSomebodyWaits();
  });
  expect(await freezing).toBe('waits_briefly');
  expect(await read(campaign)).toMatchObject({ status: 'cancelled', failure_reason: null });
});

test('one node at a time counts an audience, and the others wait for what comes of it', async () => {
  const news = await makeSet('list');
  await makeContacts(2, news);
  const campaign = await queueCampaign({ lists: [news] });
  let steps: Promise<StepResult>[] = [];
  let second: StepResult | 'had to wait' = 'had to wait';
  await whileHeld(campaign, 'select from campaigns where id = $1 for update', async () => {
    steps = [freezeCampaign(tools, campaign)];
    await untilSomebodyWaits();
    steps.push(freezeCampaign(tools, campaign));
    second = await Promise.race([steps[1]!, untilSomebodyWaits(2)]);
  });
  await Promise.allSettled(steps);
  expect(second).toBe('waits');
  expect(await steps[0]).toBe('advanced');
});

test('two nodes that advance one campaign at once do its work once', async () => {
  const news = await makeSet('list');
  await makeContacts(3_000, news);
  const campaign = await queueCampaign({ lists: [news] });
  await Promise.all([advanceFully(campaign), advanceFully(campaign), advanceFully(campaign)]);
  await advanceFully(campaign);
  expect(await queueOf(campaign)).toHaveLength(3_000);
});

describe('where contacts are reached on devices', () => {
  /** The devices of each contact, in the order of contacts and devices. */
  async function makeDevices(contactIds: readonly string[], count: number): Promise<string[]> {
    const rows = await run<{ id: string }>(
      `insert into devices (organization_id, id, installation_id, contact_id, platform, token, token_sha256, status,
         opted_out, secret_sha256, registered_at, created_at, updated_at)
       select $1, id, id::text, contact_id, 'android', id::text, sha256(id::text::bytea), 'ACTIVE', false,
         sha256(id::text::bytea), now(), now(), now()
       from unnest($2::uuid[]) contact_id
       cross join lateral (select gen_random_uuid() as id from generate_series(1, $3) where contact_id is not null) made
       returning id, contact_id`,
      [organizationId, contactIds, count],
    );
    return rows.map(({ id }) => id);
  }

  async function queuePush(list: string): Promise<Key> {
    const campaign = await queueCampaign({ lists: [list] });
    await run(`update campaigns set channel = 'push' where id = $1`, [campaign.id]);
    return campaign;
  }

  const devicesOf = (campaign: Key) =>
    run<{
      ordinal: number;
      contact_id: string;
      device_id: string;
      address: string;
      drop_reason: string | null;
    }>(
      `select ordinal, contact_id, device_id, address, drop_reason
       from recipients where organization_id = $1 and message_id = $2 order by ordinal`,
      [organizationId, campaign.messageId],
    );

  const setQuota = (quota: number | null) =>
    run('update organizations set push_quota = $2 where id = $1', [organizationId, quota]);

  async function usedOfQuota(): Promise<number> {
    const [row] = await run<{ used: number }>(
      `select coalesce(sum(used), 0)::integer as used from quota_usage where organization_id = $1 and channel = 'push'`,
      [organizationId],
    );
    return row?.used ?? 0;
  }

  async function membersOf(list: string): Promise<string[]> {
    const rows = await run<{ contact_id: string }>('select contact_id from memberships where set_id = $1', [
      list,
    ]);
    return rows.map(({ contact_id: id }) => id);
  }

  test('each device gets it once, also where a slice ends between two of a contact', async () => {
    const list = await makeSet('list');
    await makeContacts(402, list);
    const [mute, reluctant, ...reached] = await membersOf(list);
    const devices = await makeDevices(reached, 3);
    await makeDevices([reluctant!], 2);
    await run(`update contacts set unsubscribed_channels = '{push}' where id = $1`, [reluctant]);
    const campaign = await queuePush(list);
    await advanceFully(campaign);
    expect(await read(campaign)).toMatchObject({
      audience: 1_200,
      expanded: 1_200,
      admitted: 1_200,
      excluded_no_address: 1,
      excluded_unsubscribed: 2,
      candidates: 1_203,
    });
    const rows = await devicesOf(campaign);
    expect(rows.map(({ ordinal }) => ordinal)).toEqual([...Array(1_200).keys()]);
    expect(rows.map((row) => row.device_id).toSorted()).toEqual(devices.toSorted());
    expect(rows.every((row) => row.address === `android ${row.device_id}`)).toBe(true);
    const contactIds = rows.map((row) => row.contact_id);
    expect(contactIds).toEqual(contactIds.toSorted());
    expect(contactIds).not.toContain(mute);
    expect(await queueOf(campaign)).toHaveLength(1_200);
    expect(await usedOfQuota()).toBe(400);
  });

  test('the quota is for contacts, wherever a window of the queue ends', async () => {
    const list = await makeSet('list');
    await makeContacts(5, list);
    await makeDevices(await membersOf(list), 3);
    const narrow = { ...tools, channels: { ...tools.channels, push: { ...push, deliveredPerSecondMax: 4 } } };
    const campaign = await queuePush(list);
    await setQuota(3);
    for (let rounds = 0; rounds < 6; rounds += 1) {
      await advanceFully(campaign, narrow);
      await handOffAll(campaign);
    }
    expect(await read(campaign)).toMatchObject({
      status: 'paused',
      pause_reason: 'quota_exceeded',
      admitted: 9,
    });
    expect(await usedOfQuota()).toBe(3);
    await setQuota(null);
    for (let rounds = 0; rounds < 4; rounds += 1) {
      await advanceFully(campaign, narrow);
      await handOffAll(campaign);
    }
    expect(await read(campaign)).toMatchObject({ admitted: 15 });
    expect(await usedOfQuota()).toBe(5);
  });

  test('a contact is counted once, also if its first device is lost before the next window', async () => {
    const list = await makeSet('list');
    await makeContacts(2, list);
    await makeDevices(await membersOf(list), 3);
    const narrow = { ...tools, channels: { ...tools.channels, push: { ...push, deliveredPerSecondMax: 2 } } };
    const campaign = await queuePush(list);
    await setQuota(2);
    await advanceFully(campaign, narrow);
    expect(await read(campaign)).toMatchObject({ admitted: 2 });
    await handOffAll(campaign);
    await run(
      `update recipients set drop_reason = 'no_address', status = 'sent', handed_off_at = null
       where organization_id = $1 and message_id = $2 and ordinal < 2`,
      [organizationId, campaign.messageId],
    );
    for (let rounds = 0; rounds < 3; rounds += 1) {
      await advanceFully(campaign, narrow);
      await handOffAll(campaign);
    }
    expect(await read(campaign)).toMatchObject({ admitted: 6, pause_reason: null });
    expect(await usedOfQuota()).toBe(2);
  });

  test('a device that is lost between the freezing and its row is dropped, and no other', async () => {
    const list = await makeSet('list');
    await makeContacts(2, list);
    const [one, another] = (await membersOf(list)).toSorted();
    const [revoked, denied, moved, erased, kept] = await makeDevices([one!], 5);
    const [theirs] = await makeDevices([another!], 1);
    const campaign = await queuePush(list);
    await freezeCampaign(tools, campaign);
    const late = await makeDevices([one!], 1);
    await run(`update devices set status = 'EXPIRED' where id = $1`, [revoked]);
    await run(`update devices set enablement_status = 'DENIED' where id = $1`, [denied]);
    await run('update devices set contact_id = $2 where id = $1', [moved, another]);
    await run('delete from devices where id = $1', [erased]);
    await advanceFully(campaign);
    const drops = new Map((await devicesOf(campaign)).map((row) => [row.device_id, row.drop_reason]));
    expect(drops).toEqual(
      new Map([
        ...[revoked, denied, moved, erased].map((id) => [id!, 'no_address'] as const),
        [kept!, null],
        [theirs!, null],
      ]),
    );
    expect(drops.has(late[0]!)).toBe(false);
    expect(await queueOf(campaign)).toHaveLength(2);
  });
});
