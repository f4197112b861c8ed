import { EventEmitter, once } from 'node:events';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { addSuppressions } from '../../src/audience/audience.ts';
import type { EmailProvider } from '../../src/channels/email/email.ts';
import type { SendOutcome } from '../../src/channels/outcome.ts';
import { applyReports, type Delivery, startDelivery, stopMessage } from '../../src/messages/messages.ts';
import { createDeliverability, createEmailDelivery } from '../../src/email/email.ts';
import type { EmailRecord } from '../../src/email/schema.ts';
import {
  type Connection,
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  type Statement,
} from '../../src/platform/postgres/database.ts';
import { createEmailProvider } from '../../src/roles/providers/email.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import {
  addresses,
  createShiftedClock,
  eventually,
  type QueuedJob,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { signHere } from '../support/sign-here.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { clientConfigOf, useTestDatabase } from '../support/test-database.ts';
import { emailChannel } from '../../src/email/email.ts';
import { messageChannels } from '../support/channels.ts';
import type { Failure } from '../../src/messages/recipients/store.ts';

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const simulator = (name: string) => `${name}@simulator.postillion.test`;

let server: TestServer;
let databaseAddress: DatabaseAddress;
let clock: ShiftedClock;
let sandbox: EmailProvider;
const deliveries: Delivery[] = [];

useTestDatabase({ hasNeighbour: true }, ({ address }) => {
  databaseAddress = address;
});
beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ clock, database: databaseAddress });
  sandbox = await createEmailProvider(server.installation);
});
afterAll(() => server.stop());
afterEach(async () => {
  await Promise.all(deliveries.splice(0).map((delivery) => delivery.stop()));
  await rowsOf(server, 'truncate delivery_queue, hand_offs');
});

/** A worker; `random` in the middle, so that pauses have their plain length. */
function deliver(
  more: { emailProvider?: EmailProvider; database?: Database; contentBytesMax?: number } = {},
): Delivery {
  const tools = { ...server.installation, ...more };
  const delivery = startDelivery({
    ...tools,
    random: () => 0.5,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    channels: messageChannels,
    deliveries: [
      createEmailDelivery({
        ...tools,
        emailProvider: more.emailProvider ?? sandbox,
        deliverability: createDeliverability({ ...server.installation, areDomainsLookedUp: false }),
        signText: signHere,
        areBouncesRead: false,
        publicUrl: 'http://127.0.0.1:8025',
      }),
    ],
  });
  deliveries.push(delivery);
  return delivery;
}

/** Something that a test lets happen. */
function createGate(): { passed: Promise<void>; open: () => void } {
  let pass: () => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    pass = resolve;
  });
  return { passed, open: () => pass() };
}

async function sourcesTo(recipient: string): Promise<Buffer[]> {
  const rows = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where recipient = $1 order by id',
    [recipient],
  );
  return rows.map(({ source }) => source);
}

async function untilQueueIsEmpty(messageId: string): Promise<void> {
  await eventually(
    () => queueOf(server, messageId),
    (jobs) => jobs.length === 0,
  );
}

async function turnIntoCampaignCopy(messageId: string): Promise<void> {
  await rowsOf(server, "update messages set class = 'campaign' where id = $1", [messageId]);
  await rowsOf(server, 'update delivery_queue set lane = 1 where message_id = $1', [messageId]);
}

/** The sandbox, but no address at `gone.example` exists. */
function createRefusing(): EmailProvider {
  return {
    ...sandbox,
    handOff: async (handOff) => {
      if (!handOff.recipient.endsWith('@gone.example')) return sandbox.handOff(handOff);
      await handOff.confirm();
      refused.push(handOff.recipient);
      const reply = {
        code: 550,
        enhancedCode: '5.1.1',
        diagnostic: 'No such user',
        remote: 'mx.gone.example',
      };
      return { kind: 'rejected', reason: 'mailbox_not_found', reply };
    },
  };
}

const refused: string[] = [];
const timesRefused = (address: string) => refused.filter((recipient) => recipient === address).length;

describe('in the sandbox', () => {
  beforeEach(() => {
    deliver({ emailProvider: createRefusing() });
  });

  const settle = async (more: Record<string, unknown>) => settled(server, await send(server, more));

  test('an address is delivered to, and the message can be looked at', async () => {
    const record = await settle({ to: ['delivered+look@simulator.postillion.test'], subject: 'Look at me' });
    expect(record).toMatchObject({
      status: 'delivered',
      to: [{ status: 'delivered', bounce: null, uncertain: false }],
    });
    const [source, ...others] = await sourcesTo('delivered+look@simulator.postillion.test');
    expect(source!.toString()).toContain('Subject: Look at me\r\n');
    expect(others).toEqual([]);
  });

  test('a hard bounce suppresses the address: the next email to it is dropped, at the status it had', async () => {
    const address = 'suppressed@gone.example';
    const first = await settle({ to: [address] });
    expect(first).toMatchObject({
      status: 'failed',
      to: [{ status: 'bounced', dropped: false, bounce: { type: 'hard', class: 'mailbox_not_found' } }],
    });
    const second = await settle({ to: ['ann@example.com'], cc: [address.toUpperCase()] });
    expect(second.status).toBe('partially_delivered');
    expect(second.cc).toMatchObject([
      { status: 'sent', dropped: true, drop_reason: 'suppressed', bounce: null, uncertain: false },
    ]);
    expect(timesRefused(address)).toBe(1);
  });

  test('an email whose recipients are all dropped has failed, and nothing was sent', async () => {
    const address = 'all@gone.example';
    await settle({ to: [address] });
    expect(await settle({ to: [address] })).toMatchObject({ status: 'failed', to: [{ status: 'sent' }] });
    expect(timesRefused(address)).toBe(1);
  });

  test("one organization's suppression is not another's", async () => {
    const address = 'own@gone.example';
    await settle({ to: [address] });
    const other = await createSender(server.installation, 'unrelated.example');
    const id = await send(server, { from: 'a@unrelated.example', to: [address] }, other);
    expect((await settled(server, id, other)).to).toMatchObject([{ status: 'bounced', dropped: false }]);
  });

  test('a soft bounce ends the attempt and leaves the address as it is', async () => {
    const address = simulator('softbounce');
    for (let attempt = 1; attempt <= 2; attempt += 1) {
      expect(await settle({ to: [address] })).toMatchObject({
        status: 'failed',
        to: [{ status: 'bounced', dropped: false, bounce: { type: 'soft', class: 'mailbox_full' } }],
      });
    }
  });

  test('a complaint stands above the delivery and suppresses the address', async () => {
    const address = 'complains@example.com';
    const id = await send(server, { to: [address] });
    await settled(server, id);
    await applyReports(
      {
        ...server.installation,
        random: Math.random,
        onCampaignProgress: () => undefined,
        onContactsChanged: () => undefined,
      },
      emailChannel,
      [
        {
          job: { organizationId: server.organizationId, messageId: id, ordinal: 0 },
          status: 'complained',
          failure: null,
        },
      ],
    );
    expect(await read(server, id)).toMatchObject({
      status: 'delivered',
      to: [{ status: 'complained', bounce: null }],
    });
    expect((await settle({ to: [address] })).to).toMatchObject([
      { status: 'sent', drop_reason: 'suppressed' },
    ]);
  });

  test.each([
    ['delivered', { status: 'delivered', dropped: false }],
    ['bounced', { status: 'bounced', dropped: false, bounce: { type: 'hard', class: 'mailbox_not_found' } }],
    ['softbounce', { status: 'bounced', dropped: false, bounce: { type: 'soft', class: 'mailbox_full' } }],
    ['complained', { status: 'complained', dropped: false, bounce: null }],
    ['suppressed', { status: 'sent', dropped: true, drop_reason: 'suppressed' }],
  ])('%s@ of the simulator has the same outcome every time, and no lasting effect', async (name, outcome) => {
    const lasting = () =>
      rowsOf(
        server,
        `select (select count(*) from suppressions where organization_id = $1) as suppressed,
           (select jsonb_agg(c order by hour, shard) from reputation_counts c where organization_id = $1) as counted`,
        [server.organizationId],
      );
    const before = await lasting();
    // Other addresses are suppressed at the fifth soft bounce in a row.
    for (let time = 1; time <= 6; time += 1) {
      const record = await settle({ to: [simulator(name), simulator(`${name}+${time % 2}`).toUpperCase()] });
      expect(record.to).toMatchObject([outcome, outcome]);
    }
    expect(await lasting()).toEqual(before);
  });

  const delayed = (id: string, attempts: number): Promise<EmailRecord> =>
    eventually(
      () => queueOf(server, id),
      ([job]) => job?.attempts === attempts && job.claimed_by === null,
    ).then(() => read(server, id));

  test('what is put off is delayed, and tried again when it is due, and not before', async () => {
    const id = await send(server, { to: [simulator('deferred')] });
    const record = await delayed(id, 1);
    expect(record).toMatchObject({
      status: 'queued',
      to: [{ status: 'delayed', bounce: { type: 'soft', class: 'rate_limited', smtp_code: 451 } }],
    });
    const [job] = await queueOf(server, id);
    const pauseMs = job!.due_at.getTime() - Date.parse(record.to[0]!.status_at);
    // It counts from the answer, which came a moment before it was written.
    expect(pauseMs).toBeLessThanOrEqual(minuteMs);
    expect(pauseMs).toBeGreaterThan(minuteMs / 2);

    clock.putForward(minuteMs / 2);
    await settle({ to: ['witness@example.com'] });
    expect(await queueOf(server, id)).toMatchObject([{ attempts: 1 }]);
    clock.putForward(minuteMs / 2);
    await delayed(id, 2);
  });

  test('it has failed once the 72 hours are over, and the address is not suppressed', async () => {
    const address = simulator('deferred+long');
    const id = await send(server, { to: [address] });
    for (let attempts = 1; attempts <= 40; attempts += 1) {
      const jobs = await eventually(
        () => queueOf(server, id),
        ([job]) => job === undefined || (job.attempts === attempts && job.claimed_by === null),
      );
      if (jobs.length === 0) break;
      clock.putForward(Math.max(0, jobs[0]!.due_at.getTime() - clock.nowMs()) + 1);
    }
    const record = await read(server, id);
    expect(record).toMatchObject({
      status: 'failed',
      to: [{ status: 'failed', dropped: false, bounce: { type: 'soft', class: 'rate_limited' } }],
    });
    const agedMs = Date.parse(record.to[0]!.status_at) - Date.parse(record.created_at);
    expect(agedMs).toBeGreaterThan(66 * hourMs);
    expect(agedMs).toBeLessThanOrEqual(72 * hourMs);
    await delayed(await send(server, { to: [address] }), 1);
  });

  test('an address that is suppressed while it is delayed is not tried again, and holds nothing up', async () => {
    const address = simulator('deferred+suppressed');
    const id = await send(server, { to: [address] });
    await delayed(id, 1);
    const { organizationId, installation } = server;
    await addSuppressions(installation.database, installation, 'email', [
      { organizationId, address, reason: 'operator' },
    ]);
    clock.putForward(2 * minuteMs);
    expect(await settled(server, id)).toMatchObject({
      status: 'failed',
      to: [{ status: 'failed', dropped: false, bounce: { type: 'soft', class: 'policy' } }],
    });
  });

  test('attachments are sealed in the database, kept for recipients that still wait, and gone after the last', async () => {
    const content = Buffer.from('nobody may read this in the database');
    const id = await send(server, {
      to: ['ann@example.com', simulator('deferred+file')],
      attachments: [{ filename: 'a.txt', content: content.toString('base64') }],
    });
    const sealed = () =>
      rowsOf<{ sealed: Buffer }>(server, 'select sealed from attachment_contents where message_id = $1', [
        id,
      ]);
    await eventually(
      () => read(server, id),
      ({ to }) => to[0]!.status === 'delivered' && to[1]!.status === 'delayed',
    );
    const [kept, ...others] = await sealed();
    expect(others).toEqual([]);
    expect(kept!.sealed.includes(content)).toBe(false);
    expect(kept!.sealed.includes(content.toString('base64'))).toBe(false);

    clock.putForward(73 * hourMs);
    expect((await settled(server, id)).to.map(({ status }) => status)).toEqual(['delivered', 'failed']);
    expect(await sealed()).toEqual([]);
    expect((await read(server, id)).attachments).toMatchObject([{ filename: 'a.txt', size: content.length }]);
  });

  test('fifty recipients of one email are fifty outcomes', async () => {
    const to = Array.from({ length: 50 }, (_, index) =>
      simulator(`${['delivered', 'bounced', 'softbounce', 'complained'][index % 4]!}+${index}`),
    );
    const record = await settle({ to });
    expect(record.status).toBe('partially_delivered');
    const expected = ['delivered', 'bounced', 'bounced', 'complained'];
    expect(record.to.map(({ email, status }) => [email, status])).toEqual(
      to.map((email, index) => [email, expected[index % 4]]),
    );
  });
});

test('large emails wait for the memory of those before them, and get it', async () => {
  const text = 'x'.repeat(300_000);
  const ids: string[] = [];
  for (const to of ['one', 'two', 'three', 'four', 'five'])
    ids.push(await send(server, { to: [`${to}@large.example`], text }));
  let largest = 0;
  let underWay = 0;
  // Of all five there is room for two; one that is larger than all of the room is sent alone.
  deliver({
    contentBytesMax: 700_000,
    emailProvider: {
      ...sandbox,
      handOff: async (handOff) => {
        underWay += 1;
        largest = Math.max(largest, underWay);
        const outcome = await sandbox.handOff(handOff);
        underWay -= 1;
        return outcome;
      },
    },
  });
  for (const id of ids) expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
  expect(largest).toBeLessThanOrEqual(2);
  const larger = await send(server, { text: text.repeat(3) });
  expect(await settled(server, larger)).toMatchObject({ status: 'delivered' });
});

test('the memory that a large email took is given back, delivered or not', async () => {
  const text = 'x'.repeat(300_000);
  const delivery = deliver({
    emailProvider: {
      ...sandbox,
      handOff: async (handOff) => {
        if (handOff.recipient === 'broken@large.example') throw new Error('nothing was announced');
        return sandbox.handOff(handOff);
      },
    },
  });
  await settled(server, await send(server, { to: ['whole@large.example'], text }));
  const broken = await send(server, { to: ['broken@large.example'], text });
  await eventually(
    () => queueOf(server, broken),
    ([job]) => job!.crashes > 0,
  );
  expect(delivery.heldBytes()).toBe(0);
});

function dateIn(source: Buffer): Date {
  return new Date(/\r\nDate: (.*)\r\n/.exec(source.toString('latin1'))?.[1] ?? '');
}

function toSecond(at: Date): Date {
  return new Date(Math.floor(at.getTime() / 1_000) * 1_000);
}

describe('when a worker dies', () => {
  let epochs = 1_000_000;

  /** What the queue looks like after a worker was killed that had claimed these jobs. */
  async function dieWith(
    ids: readonly string[],
    more: { isAnnounced?: boolean; announcedAt?: Date; crashes?: number } = {},
  ) {
    epochs += 1;
    await rowsOf(
      server,
      `update delivery_queue
       set claimed_by = $2, claim_number = 2, crashes = $3
       where message_id = any ($1::uuid[])`,
      [ids, epochs, more.crashes ?? 0],
    );
    // The first claim was settled; its marker still stands, and says nothing of the second.
    for (const claimNumber of more.isAnnounced ? [1, 2] : [1]) {
      await rowsOf(
        server,
        `insert into hand_offs
           (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers, handed_off_at)
         select $2, $3, array_agg(organization_id), array_agg(message_id), array_agg(ordinal), array_agg($3::bigint),
           array_agg($4::timestamptz)
         from delivery_queue
         where message_id = any ($1::uuid[])`,
        [ids, epochs, claimNumber, more.announcedAt],
      );
    }
    await rowsOf(server, "insert into workers (epoch, host, pid, started_at) values ($1, 'gone', 1, now())", [
      epochs,
    ]);
  }

  test('what it was not about to hand off is delivered by another, once, and is not uncertain', async () => {
    const to = ['crashed@example.com'];
    const id = await send(server, { to });
    await dieWith([id]);
    deliver();
    expect((await settled(server, id)).to).toMatchObject([{ status: 'delivered', uncertain: false }]);
    expect(await sourcesTo(to[0]!)).toHaveLength(1);
    const [recipient] = await rowsOf(server, 'select ambiguities from recipients where message_id = $1', [
      id,
    ]);
    expect(recipient).toEqual({ ambiguities: 0 });
  });

  test('what it was about to hand off is uncertain, and repeated after a minute', async () => {
    const to = ['confirmed@example.com'];
    const id = await send(server, { to });
    const announcedAt = new Date(clock.nowMs() - 10 * minuteMs);
    await dieWith([id], { isAnnounced: true, announcedAt });
    deliver();
    // The status of the message follows a moment later.
    const record = await eventually(
      () => read(server, id),
      ({ status, to: [recipient] }) => status !== 'queued' && recipient!.uncertain,
    );
    expect(record).toMatchObject({ status: 'sent', to: [{ status: 'sent', uncertain: true, bounce: null }] });
    expect(await queueOf(server, id)).toMatchObject([{ ambiguities: 1, attempts: 1, claimed_by: null }]);
    expect(await sourcesTo(to[0]!)).toEqual([]);
    clock.putForward(minuteMs);
    expect((await settled(server, id)).to).toMatchObject([{ status: 'delivered', uncertain: false }]);
    // As the first copy, if there was one.
    const [source] = await sourcesTo(to[0]!);
    expect(dateIn(source!)).toEqual(toSecond(announcedAt));
  });

  test("a campaign's hand-off that was cut off is never repeated", async () => {
    const id = await send(server, { to: ['campaign@example.com'] });
    await turnIntoCampaignCopy(id);
    await dieWith([id], { isAnnounced: true });
    deliver();
    await untilQueueIsEmpty(id);
    const recipients = await rowsOf(
      server,
      'select status, uncertain, ambiguities from recipients where message_id = $1',
      [id],
    );
    expect(recipients).toEqual([{ status: 'sent', uncertain: true, ambiguities: 1 }]);
    expect(await sourcesTo('campaign@example.com')).toEqual([]);
  });

  test('what a report said of it before its worker died stays', async () => {
    const id = await send(server, { to: ['reported@example.com'] });
    await turnIntoCampaignCopy(id);
    await rowsOf(
      server,
      `update recipients set status = 'failed', failure_type = 'soft', failure_class = 'policy', diagnostic = 'No'
       where message_id = $1`,
      [id],
    );
    await dieWith([id], { isAnnounced: true });
    deliver();
    await untilQueueIsEmpty(id);
    const recipients = await rowsOf(
      server,
      'select status, uncertain, failure_class, diagnostic from recipients where message_id = $1',
      [id],
    );
    expect(recipients).toEqual([
      { status: 'failed', uncertain: false, failure_class: 'policy', diagnostic: 'No' },
    ]);
  });

  test('a job that took three workers down is set aside, and what lay beside it is delivered', async () => {
    const [poison, neighbour] = [await send(server), await send(server)];
    await dieWith([neighbour]);
    await dieWith([poison], { crashes: 2 });
    deliver();
    await settled(server, neighbour);
    await eventually(
      () => queueOf(server, poison),
      ([job]) => job!.set_aside_at !== null,
    );
    expect(await queueOf(server, poison)).toMatchObject([{ crashes: 3, claimed_by: null }]);
    expect(await read(server, poison)).toMatchObject({ status: 'queued', to: [{ status: 'sent' }] });
  });

  test('a job that took two down is tried once more, alone', async () => {
    const [suspect, ...others] = [await send(server), await send(server), await send(server)];
    await rowsOf(server, 'update delivery_queue set crashes = 2 where message_id = $1', [suspect]);
    const underWay = new Set<string>();
    const besides: number[] = [];
    deliver({
      emailProvider: {
        ...sandbox,
        handOff: async (handOff) => {
          const { messageId } = handOff.reference;
          underWay.add(messageId);
          if (messageId === suspect) besides.push(underWay.size - 1);
          try {
            return await sandbox.handOff(handOff);
          } finally {
            underWay.delete(messageId);
          }
        },
      },
    });
    for (const id of [suspect, ...others]) expect((await settled(server, id)).status).toBe('delivered');
    expect(besides).toEqual([0]);
  });
});

describe('a job of a campaign that waits in the memory of a worker', () => {
  /** The second recipient waits for the first, until something has happened and time has passed. */
  async function deliverBoth(between: (contactIds: string[], messageId: string) => Promise<unknown>) {
    let hasHappened = false;
    const { organizationId, installation } = server;
    const contacts = await Promise.all(
      ['first', 'second'].map(async (name) => {
        const email = `${name}-${installation.newId()}@example.com`;
        const { body } = await server.request<{ id: string }>('POST', '/v1/contacts', { email });
        return { id: body.id, email };
      }),
    );
    const { messageId } = await insertSentCampaign(installation, { organizationId, contacts });
    await rowsOf(
      server,
      `update recipients set status = 'sent', handed_off_at = null where message_id = $1`,
      [messageId],
    );
    await rowsOf(
      server,
      `insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at,
         content_bytes)
       select organization_id, message_id, ordinal, 'email', 1, $2, $2, 100 from recipients where message_id = $1`,
      [messageId, new Date(clock.nowMs())],
    );
    const sandbox = await createEmailProvider(installation);
    const handedOff: string[] = [];
    deliver({
      emailProvider: {
        ...sandbox,
        concurrency: 1,
        handOff: async (handOff) => {
          if (handedOff.length === 0) {
            await between(
              contacts.map(({ id }) => id),
              messageId,
            );
            hasHappened = true;
            clock.putForward(3_000);
          }
          const outcome = await sandbox.handOff(handOff);
          handedOff.push(handOff.recipient.split('-')[0]!);
          return outcome;
        },
      },
    });
    const hasLetGo = (jobs: QueuedJob[]) =>
      hasHappened && jobs.every(({ claimed_by: claimedBy }) => claimedBy === null);
    return { messageId, handedOff, hasLetGo };
  }
  const unsubscribe = (contactId: string) =>
    server.request('PATCH', `/v1/contacts/${contactId}`, { consent: { email: 'unsubscribed' } });
  const suspend = (channels: string) =>
    rowsOf(server, 'update organizations set suspended_channels = $2 where id = $1', [
      server.organizationId,
      channels,
    ]);

  test('leaves after a password mail that came later', async () => {
    const { messageId, handedOff } = await deliverBoth(async () => {
      // Jobs are claimed one turn after the other: once the second is, the first waits for its hand-off.
      for (const name of ['password', 'later']) {
        const id = await send(server, { to: [`${name}-${server.installation.newId()}@example.com`] });
        await eventually(
          () => queueOf(server, id),
          (jobs) => jobs.every(({ claimed_by: claimedBy }) => claimedBy !== null),
        );
      }
    });
    await eventually(
      () => queueOf(server, messageId),
      (jobs) => jobs.length === 0,
    );
    expect(handedOff.slice(0, 2)).toEqual(['first', 'password']);
  });

  test('is not handed off if its recipient has unsubscribed meanwhile', async () => {
    const { messageId, handedOff } = await deliverBoth(([_first, second]) => unsubscribe(second!));
    await eventually(
      () => queueOf(server, messageId),
      (jobs) => jobs.length === 0,
    );
    expect(handedOff).toEqual(['first']);
  });

  test('is not handed off if its recipient unsubscribes right before', async () => {
    const { messageId, handedOff } = await deliverBoth(([first]) => unsubscribe(first!));
    await eventually(
      () => queueOf(server, messageId),
      (jobs) => jobs.length === 0,
    );
    expect(handedOff).toEqual(['second']);
  });

  test('goes back to the queue once the organization is suspended', async () => {
    const { messageId, handedOff, hasLetGo } = await deliverBoth(() => suspend('{email}'));
    const jobs = await eventually(() => queueOf(server, messageId), hasLetGo);
    await suspend('{}');
    expect(handedOff).toEqual([]);
    expect(jobs).toMatchObject([{ attempts: 0 }, { attempts: 0 }]);
  });

  test('is not handed off once the campaign is cancelled, and its recipient stays as it was', async () => {
    const { messageId, handedOff, hasLetGo } = await deliverBoth((_contacts, stoppedId) =>
      server.installation.database.asOrganizations([server.organizationId], (transaction) =>
        stopMessage(transaction, { organizationId: server.organizationId, messageId: stoppedId }),
      ),
    );
    expect(await eventually(() => queueOf(server, messageId), hasLetGo)).toEqual([]);
    expect(handedOff).toEqual([]);
    const recipients = await rowsOf(
      server,
      'select status, drop_reason, handed_off_at, uncertain from recipients where message_id = $1',
      [messageId],
    );
    const untouched = { status: 'sent', drop_reason: null, handed_off_at: null, uncertain: false };
    expect(recipients).toEqual([untouched, untouched]);
  });
});

describe('what happens to the sending domain', () => {
  const deleteDomain = (name: string) => rowsOf(server, 'delete from domains where name = $1', [name]);

  test('once it is deleted, mail that waits for another attempt fails, and so does mail that waits for its first', async () => {
    const sender = await createSender(server.installation, 'deleted.example');
    deliver();
    const first = await send(
      server,
      { from: 'a@deleted.example', to: [simulator('deferred'), simulator('delivered')] },
      sender,
    );
    await eventually(
      () => queueOf(server, first),
      ([job]) => job?.attempts === 1,
    );
    const second = await send(server, { from: 'a@deleted.example', to: [simulator('deferred')] }, sender);
    await eventually(
      () => queueOf(server, second),
      ([job]) => job?.attempts === 1,
    );
    await deleteDomain('deleted.example');
    clock.putForward(2 * minuteMs);
    for (const id of [first, second]) {
      const [recipient] = (await settled(server, id, sender)).to;
      expect(recipient).toMatchObject({
        status: 'failed',
        bounce: { class: 'policy', diagnostic: expect.stringContaining('deleted') },
      });
    }
  });

  test('a key that cannot be read delays the mail that it would sign, and no other', async () => {
    const sender = await createSender(server.installation, 'unreadable.example');
    await rowsOf(
      server,
      "update domains set dkim_private_key_sealed = 'nonsense' where name = 'unreadable.example'",
    );
    const broken = await send(server, { from: 'a@unreadable.example' }, sender);
    const whole = await send(server);
    deliver();
    expect((await settled(server, whole)).status).toBe('delivered');
    await eventually(
      () => queueOf(server, broken),
      ([job]) => job?.attempts === 1,
    );
    expect((await read(server, broken, sender)).to).toMatchObject([
      { status: 'delayed', bounce: { class: 'auth_failure', diagnostic: expect.stringContaining('SECRET') } },
    ]);
  });
});

test('a job that took workers down is not handed off either once its address is suppressed', async () => {
  const address = 'suspect@example.com';
  const id = await send(server, { to: [address] });
  await rowsOf(server, 'update delivery_queue set crashes = 2 where message_id = $1', [id]);
  await addSuppressions(server.installation.database, server.installation, 'email', [
    { organizationId: server.organizationId, address, reason: 'operator' },
  ]);
  deliver();
  expect((await settled(server, id)).to).toMatchObject([{ status: 'sent', drop_reason: 'suppressed' }]);
  expect(await sourcesTo(address)).toEqual([]);
});

test('an outcome that comes after a report leaves what the report said', async () => {
  const id = await send(server);
  const job = { organizationId: server.organizationId, messageId: id, ordinal: 0 };
  const failure: Failure = {
    type: 'soft',
    class: 'spam',
    smtpCode: 554,
    enhancedCode: '5.7.1',
    diagnostic: 'Looks like spam',
    remote: 'mx.example.com',
  };
  await applyReports(
    {
      ...server.installation,
      random: Math.random,
      onCampaignProgress: () => undefined,
      onContactsChanged: () => undefined,
    },
    emailChannel,
    [{ job, status: 'failed', failure }],
  );
  deliver();
  expect((await settled(server, id)).to).toMatchObject([
    { status: 'failed', bounce: { class: 'spam', smtp_code: 554, remote_mta: 'mx.example.com' } },
  ]);
});

describe('when the database fails in between', () => {
  /** The installation's database, with failures for named statements. */
  function createFailing(failures: Map<string, number>): Database {
    const fail = (name: string | undefined) => {
      const left = name === undefined ? 0 : (failures.get(name) ?? 0);
      if (name === undefined || left === 0) return;
      failures.set(name, left - 1);
      throw new DatabaseUnavailableError('made to fail');
    };
    const guard = <Guarded extends Connection>(connection: Guarded): Guarded => ({
      ...connection,
      rows: async <Row>(statement: Statement<Row>, values?: readonly unknown[]) => {
        fail(statement.name);
        return connection.rows(statement, values);
      },
    });
    const { database } = server.installation;
    return {
      ...guard(database),
      transaction: (work) => database.transaction((transaction) => work(guard(transaction))),
      transactionByIndex: (work) => database.transactionByIndex((transaction) => work(guard(transaction))),
      together: async (organizationIds, statements) => {
        for (const { statement } of statements) fail(statement.name);
        return database.together(organizationIds, statements);
      },
    };
  }

  test.each([
    ['the look-up of suppressions', 'audience_select_suppressed'],
    ['the loading of messages', 'messages_select_deliverable'],
    ['the announcement of hand-offs', 'hand_offs_announce'],
    ['the writing of outcomes', 'queue_settle'],
  ])('%s: nothing stays claimed, nothing is set aside, everyone gets one copy', async (_step, name) => {
    const to = Array.from({ length: 5 }, (_, index) => `${name}${index}@example.com`);
    const ids = [await send(server, { to: to.slice(0, 2) }), await send(server, { to: to.slice(2) })];
    const failures = new Map([[name, 3]]);
    deliver({ database: createFailing(failures) });
    for (const id of ids) {
      expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
    }
    for (const address of to) expect(await sourcesTo(address)).toHaveLength(1);
    const counted = await rowsOf(
      server,
      'select sum(ambiguities)::integer as ambiguities from recipients where message_id = any ($1::uuid[])',
      [ids],
    );
    expect(counted).toEqual([{ ambiguities: 0 }]);
    expect(failures.get(name)).toBe(0);
  });

  test('a job that a worker gives back because a step of its own failed does not count as a crash', async () => {
    const id = await send(server);
    const name = 'audience_select_suppressed';
    const failures = new Map([[name, 1_000]]);
    deliver({ database: createFailing(failures) });
    const jobs = await eventually(
      () => queueOf(server, id),
      ([job]) => failures.get(name)! < 1_000 && job?.claimed_by === null,
    );
    expect(jobs).toMatchObject([{ crashes: 0, attempts: 0 }]);
    failures.clear();
    expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
  });

  /** A provider that ignores signals, and holds its first hand-off before it is announced. */
  function createHolding() {
    const gate = createGate();
    const events = new EventEmitter();
    let isFirst = true;
    const emailProvider: EmailProvider = {
      ...sandbox,
      handOff: async (handOff) => {
        if (!isFirst) return sandbox.handOff(handOff);
        isFirst = false;
        events.emit('begun', handOff);
        await gate.passed;
        let ending = 'refused';
        try {
          const outcome = await sandbox.handOff(handOff);
          ending = 'left';
          return outcome;
        } finally {
          events.emit('over', ending);
        }
      },
    };
    const whenever = async <Value>(name: string) => {
      const [value] = (await once(events, name)) as [Value];
      return value;
    };
    return {
      emailProvider,
      begun: whenever<Parameters<EmailProvider['handOff']>[0]>('begun'),
      goOn: gate.open,
      over: whenever<'refused' | 'left'>('over'),
    };
  }

  test('a hand-off that was under way when its worker gave the claims back does not leave, even before the burial', async () => {
    const to = ['given-back@example.com'];
    const id = await send(server, { to });
    const failures = new Map<string, number>();
    const { emailProvider, begun, goOn, over } = createHolding();
    deliver({ database: createFailing(failures), emailProvider });
    await begun;
    const [job] = await queueOf(server, id);
    // Holds the worker at the point where it has given back its claims, and not yet its lease.
    const inTheWay = new pg.Client(clientConfigOf(databaseAddress));
    await inTheWay.connect();
    await inTheWay.query(
      `insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
       values ($1, 999, '{}', '{}', '{}', '{}')`,
      [job!.claimed_by],
    );
    await inTheWay.query('begin');
    await inTheWay.query('select from hand_offs where batch = 999 for update');
    failures.set('queue_claim_due', 1);
    await send(server, { to: ['another@example.com'] });
    await eventually(
      () => failures.get('queue_claim_due'),
      (left) => left === 0,
    );
    await eventually(
      () => {
        // The worker waits this long for hand-offs that are under way, once it has come to wait.
        clock.putForward(minuteMs + 1);
        return queueOf(server, id);
      },
      ([queued]) => queued!.claimed_by === null,
    );
    goOn();
    await over;
    const sources = await sourcesTo(to[0]!);
    await inTheWay.query('commit');
    await inTheWay.end();
    expect(sources).toEqual([]);
    expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
    expect(await sourcesTo(to[0]!)).toHaveLength(1);
  });

  test('a hand-off that is being announced while its worker loses the lease does not leave under that lease', async () => {
    const id = await send(server, { to: ['announced-late@example.com'] });
    const { emailProvider, begun, goOn, over } = createHolding();
    deliver({ emailProvider });
    const { signal } = await begun;
    const [job] = await queueOf(server, id);
    const inTheWay = new pg.Client(clientConfigOf(databaseAddress));
    await inTheWay.connect();
    await inTheWay.query('begin');
    await inTheWay.query('select from workers where epoch = $1 for update', [job!.claimed_by]);
    goOn();
    await eventually(
      () =>
        rowsOf(
          server,
          `select from pg_stat_activity
           where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into hand_offs%'`,
        ),
      (waiting) => waiting.length > 0,
    );
    const isLost = once(signal, 'abort');
    await rowsOf(
      server,
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and application_name = 'postillion-worker'`,
    );
    await isLost;
    await inTheWay.query('commit');
    await inTheWay.end();
    expect(await over).toBe('refused');
    expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
    expect(await sourcesTo('announced-late@example.com')).toHaveLength(1);
  });

  test('a hand-off of a worker that was buried without noticing it does not leave', async () => {
    const to = ['buried@example.com'];
    const id = await send(server, { to });
    const { emailProvider, begun, goOn, over } = createHolding();
    deliver({ emailProvider });
    await begun;
    const [job] = await queueOf(server, id);
    await rowsOf(server, 'delete from workers where epoch = $1', [job!.claimed_by]);
    await rowsOf(
      server,
      'update delivery_queue set claimed_by = null, claim_number = null where message_id = $1',
      [id],
    );
    goOn();
    await over;
    expect(await sourcesTo(to[0]!)).toEqual([]);
    deliver();
    expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
    expect(await sourcesTo(to[0]!)).toHaveLength(1);
  });

  test('a hand-off that breaks after it was announced is uncertain, and not repeated at once', async () => {
    const to = ['broken@example.com'];
    const id = await send(server, { to });
    deliver({
      emailProvider: {
        ...sandbox,
        handOff: async (handOff) => {
          await sandbox.handOff(handOff);
          throw new Error('an answer that nobody understands');
        },
      },
    });
    const [job] = await eventually(
      () => queueOf(server, id),
      ([queued]) => queued!.attempts === 1 || queued!.crashes > 0,
    );
    expect(job).toMatchObject({ ambiguities: 1, crashes: 0, claimed_by: null });
    expect((await read(server, id)).to).toMatchObject([{ status: 'sent', uncertain: true }]);
    expect(await sourcesTo(to[0]!)).toHaveLength(1);
  });

  test('a probe that a failing database keeps from its hand-off does not keep the breaker open', async () => {
    const failures = new Map<string, number>();
    let isDown = true;
    const unavailable: SendOutcome = {
      kind: 'deferred',
      reason: 'provider_unavailable',
      reply: { code: null, enhancedCode: null, diagnostic: 'Not there', remote: null },
    };
    let refusals = 0;
    deliver({
      database: createFailing(failures),
      emailProvider: {
        ...sandbox,
        handOff: async (handOff) => {
          if (!isDown) return sandbox.handOff(handOff);
          refusals += 1;
          return unavailable;
        },
      },
    });
    const ids: string[] = [];
    for (let sending = 1; sending <= 6; sending += 1) ids.push(await send(server));
    await eventually(
      () => refusals,
      (count) => count >= 5,
    );
    // Twice: with the outcomes that wait, and by itself.
    failures.set('hand_offs_announce', 2);
    isDown = false;
    clock.putForward(30_000);
    for (const id of ids) {
      const jobs = await queueOf(server, id);
      expect(jobs.every(({ attempts }) => attempts === 0)).toBe(true);
      expect((await settled(server, id)).status).toBe('delivered');
    }
    expect(failures.get('hand_offs_announce')).toBe(0);
  });

  test('while one email of a batch cannot be built, the others are delivered', async () => {
    const [broken, whole] = [await send(server), await send(server)];
    await rowsOf(server, "update messages set details = '{}' where id = $1", [broken]);
    deliver();
    expect((await settled(server, whole)).status).toBe('delivered');
    await eventually(
      () => queueOf(server, broken),
      ([job]) => job!.set_aside_at !== null,
    );
  });

  test('an email whose content is gone has failed and says so', async () => {
    const id = await send(server);
    await rowsOf(server, 'delete from message_contents where message_id = $1', [id]);
    deliver();
    expect((await settled(server, id)).to).toMatchObject([
      {
        status: 'failed',
        bounce: { class: 'other', diagnostic: expect.stringContaining('no longer stored') },
      },
    ]);
  });
});

test('the status of an email is what its recipients say, after every outcome', async () => {
  deliver();
  const id = await send(server, { to: ['ann@example.com'], cc: [simulator('deferred+mixed')] });
  const record = await eventually(
    () => read(server, id),
    // The message is read before its recipients, of whom both may have become known in between.
    (email) => email.status !== 'queued' && addresses(email).every(({ status }) => status !== 'sent'),
  );
  expect([record.status, ...addresses(record).map(({ status }) => status)]).toEqual([
    'sent',
    'delivered',
    'delayed',
  ]);
});
