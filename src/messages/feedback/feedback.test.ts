import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { findSuppressed } from '../../audience/audience.ts';
import { systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { silentLog } from '../../platform/log.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { applyReports, type FeedbackTools, type Report } from './feedback.ts';
import { type DropReason, recipientStatuses, type RecipientStatus } from '../schema.ts';
import { chatAppChannel } from '../../chatapp/channel.ts';
import { emailChannel } from '../../email/channel.ts';
import type { RecipientKey } from '../keys.ts';

let database: Database;
let tools: FeedbackTools;
const newId = createIds(systemClock);
const organizationId = newId();

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  tools = {
    database,
    clock: systemClock,
    newId,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    log: silentLog,
    random: () => 0.5,
  };
});

/** Nobody reports what was never sent. */
const reported = recipientStatuses.filter((status) => status !== 'cancelled');

type Reported = (typeof reported)[number];

/** Each status, and what may take its place. */
const replacements: Record<Reported, Reported[]> = {
  sent: ['delayed', 'delivered', 'opened', 'clicked', 'bounced', 'failed', 'complained', 'unsubscribed'],
  delayed: ['delivered', 'opened', 'clicked', 'bounced', 'failed', 'complained', 'unsubscribed'],
  delivered: ['opened', 'clicked', 'bounced', 'failed', 'complained', 'unsubscribed'],
  bounced: ['opened', 'clicked', 'complained', 'unsubscribed'],
  failed: ['opened', 'clicked', 'complained', 'unsubscribed'],
  opened: ['clicked', 'complained', 'unsubscribed'],
  clicked: ['complained', 'unsubscribed'],
  unsubscribed: ['complained'],
  complained: [],
};

async function insertRecipient(
  more: {
    organizationId?: string;
    status?: RecipientStatus;
    dropReason?: DropReason;
    address?: string;
    uncertain?: boolean;
  } = {},
): Promise<RecipientKey> {
  const messageId = newId();
  await database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', 'transactional', 'a@postillion.test', '{}', 1, $3, $3)
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status, status_at, drop_reason, uncertain)
       values ($1, $2, 0, 'to', $4, $4, $5, $3, $6, $7)`,
    ),
    [
      more.organizationId ?? organizationId,
      messageId,
      new Date(0),
      more.address ?? 'ann@example.com',
      more.status ?? 'sent',
      more.dropReason ?? null,
      more.uncertain ?? false,
    ],
  );
  return { organizationId: more.organizationId ?? organizationId, messageId, ordinal: 0 };
}

type Row = {
  status: RecipientStatus;
  status_at: Date;
  uncertain: boolean;
  opened_at: Date | null;
  clicked_at: Date | null;
  failure_type: string | null;
  message_status: string;
};

async function readRecipient({ messageId }: RecipientKey): Promise<Row> {
  const [row] = await database.rows(
    unpreparedStatement<Row>(
      `select r.*, m.status as message_status
       from recipients r
       join messages m on m.organization_id = r.organization_id and m.id = r.message_id
       where r.message_id = $1`,
    ),
    [messageId],
  );
  return row!;
}

async function isSuppressed(address: string): Promise<boolean[]> {
  const found = await findSuppressed(database, tools, 'email', [{ organizationId, address }]);
  return [found.has(0)];
}

const report = (job: RecipientKey, status: RecipientStatus, type: 'hard' | 'soft' | null = null): Report => ({
  job,
  status,
  failure:
    type === null
      ? null
      : {
          type,
          class: 'mailbox_not_found',
          smtpCode: 550,
          enhancedCode: '5.1.1',
          diagnostic: 'No',
          remote: null,
        },
});

test('in whatever order reports come, a status is replaced only by those that stand above it', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.constantFrom(...reported), { minLength: 1, maxLength: 8 }),
      async (statuses) => {
        const job = await insertRecipient();
        let expected: Reported = 'sent';
        for (const status of statuses) {
          await applyReports(tools, emailChannel, [report(job, status)]);
          if (replacements[expected].includes(status)) expected = status;
        }
        expect((await readRecipient(job)).status).toBe(expected);
      },
    ),
    { numRuns: 60 },
  );
});

test('of reports that come together the highest counts, whatever their order', async () => {
  for (const statuses of [
    ['delivered', 'complained', 'opened'],
    ['complained', 'opened', 'delivered'],
    ['opened', 'delivered', 'complained'],
  ] as const) {
    const job = await insertRecipient();
    await applyReports(
      tools,
      emailChannel,
      statuses.map((status) => report(job, status)),
    );
    expect((await readRecipient(job)).status).toBe('complained');
  }
});

test('a dropped recipient gets no events', async () => {
  const job = await insertRecipient({ dropReason: 'suppressed' });
  for (const status of recipientStatuses) await applyReports(tools, emailChannel, [report(job, status)]);
  expect(await readRecipient(job)).toMatchObject({
    status: 'sent',
    status_at: new Date(0),
    opened_at: null,
    clicked_at: null,
  });
});

test('a report settles what was uncertain, and brings the message up to date', async () => {
  const job = await insertRecipient({ uncertain: true });
  await applyReports(tools, emailChannel, [report(job, 'delivered')]);
  expect(await readRecipient(job)).toMatchObject({
    status: 'delivered',
    uncertain: false,
    message_status: 'delivered',
  });
});

test('a report of a delay leaves uncertain what was, and certain what was not', async () => {
  const [uncertain, certain] = [await insertRecipient({ uncertain: true }), await insertRecipient()];
  await applyReports(tools, emailChannel, [report(uncertain, 'delayed'), report(certain, 'delayed')]);
  expect(await readRecipient(uncertain)).toMatchObject({ status: 'delayed', uncertain: true });
  expect(await readRecipient(certain)).toMatchObject({ status: 'delayed', uncertain: false });
  await applyReports(tools, emailChannel, [report(uncertain, 'delivered')]);
  expect(await readRecipient(uncertain)).toMatchObject({ status: 'delivered', uncertain: false });
});

test('a click opens as well, and neither time is moved by a repetition', async () => {
  const job = await insertRecipient({ status: 'delivered' });
  await applyReports(tools, emailChannel, [report(job, 'clicked')]);
  const first = await readRecipient(job);
  expect([first.opened_at, first.clicked_at]).toEqual([expect.any(Date), expect.any(Date)]);
  await applyReports(tools, emailChannel, [report(job, 'clicked'), report(job, 'opened')]);
  expect(await readRecipient(job)).toEqual(first);
});

test('complaints and hard bounces suppress the address, soft bounces and openings do not', async () => {
  const cases = [
    ['complained', null, true],
    ['bounced', 'hard', true],
    ['bounced', 'soft', false],
    ['opened', null, false],
  ] as const;
  for (const [status, type, expected] of cases) {
    const address = `${status}-${type}@example.com`;
    const job = await insertRecipient({ address, status: 'delivered' });
    await applyReports(tools, emailChannel, [report(job, status, type)]);
    expect([address, ...(await isSuppressed(address))]).toEqual([address, expected]);
  }
});

test('the fifth soft bounce in a row suppresses the address; a delivery in between begins the run anew', async () => {
  const bounce = async (address: string) => {
    await applyReports(tools, emailChannel, [report(await insertRecipient({ address }), 'bounced', 'soft')]);
  };
  for (let time = 1; time <= 4; time += 1) await bounce('full@example.com');
  expect(await isSuppressed('full@example.com')).toEqual([false]);
  await bounce('full@example.com');
  expect(await isSuppressed('full@example.com')).toEqual([true]);

  for (let time = 1; time <= 4; time += 1) await bounce('recovered@example.com');
  // What has not ended says nothing, and neither does a message that was refused for what it is.
  await insertRecipient({ address: 'full2@example.com', status: 'delayed' });
  for (let time = 1; time <= 5; time += 1) {
    await bounce('full2@example.com');
    await insertRecipient({ address: 'full2@example.com', status: 'sent' });
  }
  expect(await isSuppressed('full2@example.com')).toEqual([true]);
  await insertRecipient({ address: 'recovered@example.com', status: 'delivered' });
  for (let time = 1; time <= 4; time += 1) await bounce('recovered@example.com');
  expect(await isSuppressed('recovered@example.com')).toEqual([false]);
});

describe('a run of soft bounces', () => {
  type Message = 'full' | 'given up' | 'spam' | 'delivered at last' | "a neighbour's";

  /**
   * Messages to one address, the oldest first; each ends before the next one is there. Reports of a neighbour are
   * applied in the same transactions, which see the rows of both.
   */
  async function end(address: string, messages: readonly Message[]): Promise<boolean> {
    const neighbourId = newId();
    for (const message of messages) {
      const isOwn = message !== "a neighbour's";
      const job = await insertRecipient({ address, organizationId: isOwn ? organizationId : neighbourId });
      const failure = { ...report(job, 'bounced', 'soft').failure!, class: 'mailbox_full' };
      const apply = async (own: Omit<Report, 'job'>) => {
        const other = await insertRecipient({ organizationId: isOwn ? neighbourId : organizationId });
        await applyReports(tools, emailChannel, [{ job, ...own }, report(other, 'delivered')]);
      };
      switch (message) {
        case 'full':
        case "a neighbour's":
          await apply({ status: 'bounced', failure });
          break;
        case 'given up':
          await apply({ status: 'failed', failure });
          break;
        case 'spam':
          await apply({ status: 'failed', failure: { ...failure, class: 'spam' } });
          break;
        case 'delivered at last':
          await apply({ status: 'delayed', failure });
          await apply({ status: 'delivered', failure: null });
          break;
      }
    }
    return (await isSuppressed(address))[0]!;
  }

  test.each<[string, boolean, Message[]]>([
    ['has five', true, ['full', 'full', 'full', 'full', 'full']],
    ['has no fewer', false, ['full', 'full', 'full', 'full']],
    [
      'has those that were put off until they were given up',
      true,
      ['given up', 'given up', 'given up', 'given up', 'given up'],
    ],
    [
      'goes on past a message that was refused for what it is',
      true,
      ['full', 'full', 'spam', 'full', 'full', 'full'],
    ],
    [
      'is ended by a message that was put off and delivered',
      false,
      ['full', 'full', 'full', 'delivered at last', 'full'],
    ],
    [
      "has none of another organization's",
      false,
      ["a neighbour's", "a neighbour's", "a neighbour's", "a neighbour's", 'full'],
    ],
    [
      'is judged by its last five, however many were delivered before',
      true,
      ['delivered at last', 'full', 'full', 'full', 'full', 'full'],
    ],
    [
      'is judged by its last five, however many were full before',
      false,
      ['full', 'full', 'full', 'full', 'delivered at last', 'full'],
    ],
  ])('%s', async (name, isLong, messages) => {
    expect(await end(`${name.replaceAll(/[^a-z]/g, '-')}@example.com`, messages)).toBe(isLong);
  });
});

test('what is reported counts once towards a suspension, and as no hand-off', async () => {
  const [ownId, neighbourId] = [newId(), newId()];
  const insert = (id: string) => insertRecipient({ organizationId: id, address: `${id}@example.com` });
  const bounced = await insert(ownId);
  const [complained, deferred, other] = [await insert(ownId), await insert(ownId), await insert(neighbourId)];
  const reports = [
    report(bounced, 'bounced', 'hard'),
    report(complained, 'complained'),
    report(deferred, 'bounced', 'soft'),
    report(other, 'delivered'),
  ];
  for (let time = 1; time <= 3; time += 1) await applyReports(tools, emailChannel, reports);
  const counts = await database.rows(
    unpreparedStatement<{ organization_id: string; sent: number; bounced: number; complained: number }>(
      'select organization_id, sent, bounced, complained from reputation_counts where organization_id = any ($1)',
    ),
    [[ownId, neighbourId]],
  );
  expect(counts).toEqual([{ organization_id: ownId, sent: 0, bounced: 1, complained: 1 }]);
});

test('a message that is refused for what it is never suppresses an address, however often', async () => {
  const address = 'strict@example.com';
  for (let time = 1; time <= 7; time += 1) {
    const job = await insertRecipient({ address });
    const { failure } = report(job, 'failed', 'soft');
    await applyReports(tools, emailChannel, [
      { job, status: 'failed', failure: { ...failure!, class: 'spam' } },
    ]);
  }
  expect(await isSuppressed(address)).toEqual([false]);
});

test('a report counts once towards the reputation, as what it says and never as a hand-off', async () => {
  const job = await insertRecipient({ organizationId: newId(), status: 'delivered' });
  const bounce = report(job, 'bounced', 'hard');
  await applyReports(tools, emailChannel, [bounce]);
  await applyReports(tools, emailChannel, [bounce]);
  await applyReports(tools, emailChannel, [report(job, 'complained')]);
  const counts = await database.rows(
    unpreparedStatement(
      `select sum(sent) as sent, sum(bounced) as bounced, sum(complained) as complained
       from reputation_counts where organization_id = $1`,
    ),
    [job.organizationId],
  );
  expect(counts).toEqual([{ sent: 0, bounced: 1, complained: 1 }]);
});

test('what is reported of a campaign’s recipient is to be counted, and whoever counts is told', async () => {
  const job = await insertRecipient();
  for (const change of [
    "update messages set class = 'campaign' where id = $1",
    'update recipients set contact_id = message_id where message_id = $1',
  ])
    await database.rows(unpreparedStatement(change), [job.messageId]);
  let told = 0;
  await applyReports({ ...tools, onCampaignProgress: () => (told += 1) }, emailChannel, [
    report(job, 'delivered'),
  ]);
  const changes = await database.rows(
    unpreparedStatement('select slices from recipient_changes where message_id = $1'),
    [job.messageId],
  );
  expect([changes, told]).toEqual([[{ slices: [0] }], 1]);
});

describe('a message whose reply was lost, and that is to be sent once more', () => {
  /** Waits for its second attempt, or for whatever `more` says. With an attachment, as two recipients of a message. */
  async function insertWaiting(more: { ambiguities?: number; claimedBy?: number } = {}) {
    const job = await insertRecipient({ uncertain: true });
    const { ambiguities = 1, claimedBy = null } = more;
    await run(
      `with attachment as (
         insert into attachment_contents (organization_id, message_id, ordinal, sealed) values ($1, $2, 0, 'sealed')
       )
       insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, attempts,
           ambiguities, claimed_by, claim_number)
       values ($1, $2, 0, 'email', 0, now(), now(), 100, 1, $3, $4, $4)`,
      [job.organizationId, job.messageId, ambiguities, claimedBy],
    );
    return job;
  }

  const leftOf = async ({ messageId }: RecipientKey) => [
    (await run('select from delivery_queue where message_id = $1', [messageId])).length,
    (await run('select from attachment_contents where message_id = $1', [messageId])).length,
  ];

  test('is not sent again once a report says that it was handed off', async () => {
    const [reported, untold] = [await insertWaiting(), await insertWaiting()];
    await applyReports(tools, emailChannel, [report(reported, 'delivered')]);
    expect([await leftOf(reported), await leftOf(untold)]).toEqual([
      [0, 0],
      [1, 1],
    ]);
  });

  test('is sent again where a report says nothing of that, and for its other recipients', async () => {
    const [delayed, deferred, claimed, shared] = [
      await insertWaiting(),
      await insertWaiting({ ambiguities: 0 }),
      await insertWaiting({ claimedBy: 7 }),
      await insertWaiting(),
    ];
    await run(
      `insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, ambiguities)
       values ($1, $2, 1, 'email', 0, now(), now(), 100, 1)`,
      [shared.organizationId, shared.messageId],
    );
    await applyReports(tools, emailChannel, [
      report(delayed, 'delayed', 'soft'),
      ...[deferred, claimed, shared].map((job) => report(job, 'delivered')),
    ]);
    for (const job of [delayed, deferred, claimed, shared]) expect(await leftOf(job)).toEqual([1, 1]);
  });
});

function run(text: string, values: readonly unknown[]): Promise<unknown[]> {
  return database.rows(unpreparedStatement(text), values);
}

test('the times of a first report stay, whatever is reported later', async () => {
  const job = await insertRecipient();
  const times = async () =>
    run('select handed_off_at, delivered_at from recipients where message_id = $1', [job.messageId]);
  await applyReports({ ...tools, clock: createManualClock(1_000_000) }, emailChannel, [
    report(job, 'delivered'),
  ]);
  const first = await times();
  expect(first).toEqual([{ handed_off_at: new Date(1_000_000), delivered_at: new Date(1_000_000) }]);
  await applyReports({ ...tools, clock: createManualClock(2_000_000) }, emailChannel, [
    report(job, 'opened'),
  ]);
  expect(await times()).toEqual(first);
});

test('what a server says of an address that was erased is not stored', async () => {
  const job = await insertRecipient({ status: 'delivered' });
  await run("update recipients set address = '' where message_id = $1", [job.messageId]);
  await applyReports(tools, emailChannel, [report(job, 'bounced', 'hard')]);
  expect(
    await run('select status, diagnostic from recipients where message_id = $1', [job.messageId]),
  ).toEqual([{ status: 'bounced', diagnostic: null }]);
});

test('addresses of the simulator are never suppressed', async () => {
  const address = 'bounce@simulator.postillion.test';
  expect(emailChannel.judgement?.isSimulated(address)).toBe(true);
  const job = await insertRecipient({ address });
  await applyReports(tools, emailChannel, [report(job, 'bounced', 'hard')]);
  expect(await isSuppressed(address)).toEqual([false]);
});

test.each([
  [['delivered', 'failed'], 'delivered'],
  [['failed', 'delivered'], 'delivered'],
  [['opened', 'failed'], 'opened'],
] as const)('on a chat app %j is %s, together and one after the other', async (statuses, expected) => {
  const job = await insertRecipient();
  for (const status of statuses) await applyReports(tools, chatAppChannel, [report(job, status, null)]);
  expect((await readRecipient(job)).status).toBe(expected);
  const together = await insertRecipient();
  await applyReports(
    tools,
    chatAppChannel,
    statuses.map((status) => report(together, status)),
  );
  expect((await readRecipient(together)).status).toBe(expected);
});
