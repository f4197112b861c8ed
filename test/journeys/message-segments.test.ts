/** Segments that ask what became of messages follow it at once, and are not computed again for it. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { recordEngagements } from '../../src/email/tracking/engagement.ts';
import { applyReports, type Report } from '../../src/messages/feedback/feedback.ts';
import { writeRecipientTokens } from '../../src/messages/recipients/token.ts';
import { choose } from '../../src/email/tracking/unsubscribing.ts';
import type { RecipientStatus } from '../../src/messages/schema.ts';
import { computeNext, followChanges } from '../../src/segments/membership.ts';
import type { SegmentRecord } from '../../src/segments/schema.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  send,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { addApprovedSender, sendSms } from '../support/sms-journey.ts';
import { emailChannel } from '../../src/email/email.ts';

type Page<Item> = { data: Item[] };

async function create<Body = { id: string }>(
  server: TestServer,
  path: string,
  body: object,
  sender?: Sender,
): Promise<Body> {
  const response = await server.request<Body>('POST', `/v1${path}`, body, authorize(sender));
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body;
}

let made = 0;
const addSegment = (server: TestServer, conditions: object, sender?: Sender) =>
  create<SegmentRecord>(server, '/segments', { name: `Segment ${(made += 1)}`, conditions }, sender);

const no = (condition: object) => ({ type: 'group', match: 'none', conditions: [condition] });
const ask = (action: string, more: object = {}) => ({ type: 'message', channel: 'email', action, ...more });

/** So many contacts of a list, as an import would have written them. */
async function insertContacts(
  server: TestServer,
  organizationId: string,
  { count, listId }: { count: number; listId?: string },
): Promise<{ id: string; email: string }[]> {
  return rowsOf(
    server,
    `with added as (
       insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
       select $1, gen_random_uuid(), 'Reader' || n || '@example.com', 'reader' || n || '@example.com', now(), now()
       from generate_series(1, $2::integer) n
       returning id, email
     ), listed as (
       insert into memberships (organization_id, set_id, contact_id)
       select $1, $3, id from added where $3::uuid is not null
     )
     select id, email from added order by length(email), email`,
    [organizationId, count, listId ?? null],
  );
}

describe('with a worker', () => {
  let server: TestServer;
  let clock: ShiftedClock;

  beforeAll(async () => {
    clock = createShiftedClock();
    server = await startTestServer({ worker: true, clock, newId: createShuffledIds(clock) });
    await rowsOf(server, 'update domains set click_tracking = true, open_tracking = true');
  });
  afterAll(() => server.stop());

  type Computed = { id: string; computed_at: Date };
  const computedAts = () =>
    rowsOf<Computed>(server, 'select id, computed_at from segments where organization_id = $1 order by id', [
      server.organizationId,
    ]);

  /** Waits for their second computation: the next is a day later, except for segments with conditions on time. */
  async function ready(): Promise<void> {
    const isOver = (open: string) =>
      eventually(
        () => rowsOf(server, `select from segments where ${open}`),
        (rows) => rows.length === 0,
      );
    await isOver(`status <> 'ready'`);
    clock.putForward(61_000);
    await rowsOf(server, `select pg_notify('postillion_segments', '')`);
    const later = new Date(clock.nowMs() + 3_600_000).toISOString();
    await isOver(`status <> 'ready' or (conditions::text not like '%within%' and compute_at < '${later}')`);
  }

  const countOf = (id: string, count: number) =>
    eventually(
      () => server.request<SegmentRecord>('GET', `/v1/segments/${id}`),
      ({ body }) => body.contact_count === count,
    );

  async function has(id: string, members: string[]): Promise<void> {
    await eventually(
      () => server.request<Page<{ id: string }>>('GET', `/v1/contacts?segment_id=${id}&limit=100`),
      ({ body }) => JSON.stringify(body.data.map((contact) => contact.id)) === JSON.stringify(members),
    );
  }

  test('450 recipients of a campaign come and go with their delivery, bounce, open and click', async () => {
    const listId = (await create(server, '/lists', { name: 'Readers' })).id;
    const readers = await insertContacts(server, server.organizationId, { count: 450, listId });
    const bounced = await create(server, '/contacts', {
      email: 'bounced@simulator.postillion.test',
      list_ids: [listId],
    });
    const campaign = await create(server, '/email/campaigns', {
      ...{ name: 'News', from: 'hello@postillion.test', from_name: 'Postillion', subject: 'News' },
      ...{ html: '<p><a href="https://shop.example/">News</a></p>', list_ids: [listId] },
    });
    const delivered = await addSegment(server, ask('delivered'));
    const undelivered = await addSegment(server, no(ask('delivered')));
    const bouncing = await addSegment(server, ask('bounced'));
    const lately = await addSegment(server, ask('opened', { within: { value: 1, unit: 'day' } }));
    await ready();
    await countOf(undelivered.id, 451);
    await server.request('POST', `/v1/email/campaigns/${campaign.id}/send`, {});
    await countOf(delivered.id, 450);
    await has(bouncing.id, [bounced.id]);
    await has(undelivered.id, [bounced.id]);

    const of = { campaign_id: campaign.id };
    const opened = await addSegment(server, ask('opened', of));
    const unopened = await addSegment(server, no(ask('opened', of)));
    const clicked = await addSegment(server, ask('clicked', of));
    await ready();
    const before = await computedAts();
    const [recipient] = await rowsOf<{ message_id: string; ordinal: number }>(
      server,
      'select message_id, ordinal from recipients where contact_id = $1',
      [readers[7]!.id],
    );
    const { tracking } = writeRecipientTokens(server.installation.secrets, {
      organizationId: server.organizationId,
      messageId: recipient!.message_id,
      ordinal: recipient!.ordinal,
    });
    const visit = (path: string) =>
      fetch(`${server.url}${path}`, {
        redirect: 'manual',
        headers: { 'user-agent': 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0' },
      });
    expect((await visit(`/o/${tracking}`)).status).toBe(200);
    await has(opened.id, [readers[7]!.id]);
    await countOf(unopened.id, 450);
    expect((await visit(`/c/${tracking}/0`)).status).toBe(302);
    await has(clicked.id, [readers[7]!.id]);
    await has(lately.id, [readers[7]!.id]);
    // But for the one that looks back in time.
    const unbound = (rows: Computed[]) => rows.filter(({ id }) => id !== lately.id);
    expect(unbound(await computedAts())).toEqual(unbound(before));
  });

  test('texts, and mail that belongs to no campaign, count for the contact that has the address', async () => {
    await addApprovedSender(server, 'Acme');
    const [got, undelivered, reader] = [
      await create(server, '/contacts', { phone_number: '+15005550006' }),
      await create(server, '/contacts', { phone_number: '+15005550010' }),
      await create(server, '/contacts', { email: 'transactional@example.com' }),
    ];
    const only = (...conditions: object[]) => ({
      type: 'group',
      match: 'all',
      conditions: [{ type: 'field', field: 'created_at', operator: 'is_set' }, ...conditions],
    });
    const mail = { type: 'field', field: 'email', operator: 'eq', value: 'transactional@example.com' };
    const texts = await addSegment(server, only({ ...ask('delivered'), channel: 'sms' }));
    const lost = await addSegment(server, only({ ...ask('bounced'), channel: 'sms' }));
    const mails = await addSegment(server, only(ask('delivered'), mail));
    await ready();
    const times = async () => {
      const ids = [texts.id, lost.id, mails.id];
      return (await computedAts()).filter(({ id }) => ids.includes(id));
    };
    const before = await times();
    await sendSms(server, { to: '+15005550006' });
    await sendSms(server, { to: '+15005550010' });
    await send(server, { to: ['Transactional@Example.com'] });
    await has(texts.id, [got.id]);
    await has(lost.id, [undelivered.id]);
    await has(mails.id, [reader.id]);
    expect(await times()).toEqual(before);
  });
});

describe('without a worker', () => {
  let server: TestServer;
  let clock: ShiftedClock;
  let other: Awaited<ReturnType<typeof createSender>>;

  beforeAll(async () => {
    clock = createShiftedClock();
    server = await startTestServer({ clock, newId: createShuffledIds(clock) });
    other = await createSender(server.installation, 'other.example');
  });
  afterAll(() => server.stop());

  const changesOf = (organizationId: string) =>
    rowsOf<{ contact_ids: string[] }>(
      server,
      'select contact_ids from contact_changes where organization_id = $1 order by id',
      [organizationId],
    );
  const forgetChanges = () => rowsOf(server, 'delete from contact_changes');

  async function compute(): Promise<void> {
    while (await computeNext(server.installation, server.organizationId, new AbortController().signal)) {
      // Until none is due.
    }
  }

  const told: string[] = [];
  const report = (reports: readonly Report[]) =>
    applyReports(
      {
        ...server.installation,
        random: Math.random,
        onCampaignProgress: () => undefined,
        onContactsChanged: () => told.push('contacts'),
      },
      emailChannel,
      reports,
    );
  const reportsOf = (
    organizationId: string,
    messageId: string,
    { count, status }: { count: number; status: RecipientStatus },
  ): Report[] =>
    Array.from({ length: count }, (_, ordinal) => ({
      job: { organizationId, messageId, ordinal },
      status,
      failure: null,
    }));

  async function arrange(organizationId: string, count: number) {
    await rowsOf(server, 'delete from contacts where organization_id = $1', [organizationId]);
    // Rows that a test deletes by hand need no erasure.
    await rowsOf(server, 'delete from tests.erased_contacts where organization_id = $1', [organizationId]);
    const contacts = await insertContacts(server, organizationId, { count });
    const { messageId } = await insertSentCampaign(server.installation, { organizationId, contacts });
    await forgetChanges();
    return { contacts, messageId };
  }

  test('a batch leaves one row, of the contacts of its organization, and a repetition none', async () => {
    const [mine, theirs] = [
      await arrange(server.organizationId, 450),
      await arrange(other.organizationId, 450),
    ];
    const segment = await addSegment(server, ask('bounced'));
    const both = (status: RecipientStatus) => [
      ...reportsOf(server.organizationId, mine.messageId, { count: 450, status }),
      ...reportsOf(other.organizationId, theirs.messageId, { count: 450, status }),
    ];
    await compute();
    await report(both('bounced'));
    const changes = await changesOf(server.organizationId);
    expect(changes.map(({ contact_ids }) => contact_ids.toSorted())).toEqual([
      mine.contacts.map(({ id }) => id).toSorted(),
    ]);
    // It has no such segment.
    expect(await changesOf(other.organizationId)).toEqual([]);
    expect(told.splice(0)).toEqual(['contacts']);
    await forgetChanges();
    await report(both('bounced'));
    expect(await changesOf(server.organizationId)).toEqual([]);
    expect(told).toEqual([]);
    await server.request('DELETE', `/v1/segments/${segment.id}`);
    await report(both('complained'));
    expect(await changesOf(server.organizationId)).toEqual([]);
  });

  test('what was written by a transaction that had not seen the segment yet is seen a minute later', async () => {
    const { contacts, messageId } = await arrange(server.organizationId, 1);
    const segment = await addSegment(server, ask('bounced'));
    const members = async () =>
      (
        await rowsOf<{ id: string }>(server, 'select contact_id as id from memberships where set_id = $1', [
          segment.id,
        ])
      ).map(({ id }) => id);
    // It is marked by its computation only, and nothing tells of what is written before.
    await report(reportsOf(server.organizationId, messageId, { count: 1, status: 'bounced' }));
    expect(await changesOf(server.organizationId)).toEqual([]);
    await compute();
    await rowsOf(server, 'delete from memberships where set_id = $1', [segment.id]);
    clock.putForward(61_000);
    await compute();
    expect(await members()).toEqual([contacts[0]!.id]);
    // From then on the segment follows changes, and is not computed again.
    await rowsOf(server, 'delete from memberships where set_id = $1', [segment.id]);
    clock.putForward(49 * 3_600_000);
    await compute();
    expect(await members()).toEqual([]);
    await server.request('DELETE', `/v1/segments/${segment.id}`);
  });

  test('an open or unsubscribe by a person is a change of the contact, and one by a machine is not', async () => {
    const { contacts, messageId } = await arrange(server.organizationId, 2);
    const { organizationId } = server;
    const segment = await addSegment(server, ask('opened'));
    await compute();
    const open = (ordinal: number, isMachine: boolean) =>
      recordEngagements({ ...server.installation, channel: emailChannel }, [
        { recipient: { organizationId, messageId, ordinal }, action: 'opened', isMachine, at: new Date() },
      ]);
    expect(await open(0, true)).toBe(false);
    expect(await changesOf(organizationId)).toEqual([]);
    expect(await open(0, false)).toBe(true);
    expect(await changesOf(organizationId)).toEqual([{ contact_ids: [contacts[0]!.id] }]);
    expect(await open(0, false)).toBe(false);
    await followChanges(server.installation, organizationId);
    expect(
      await rowsOf(server, 'select contact_id as id from memberships where set_id = $1', [segment.id]),
    ).toEqual([{ id: contacts[0]!.id }]);
    // Of the address and of the consent.
    await choose(
      server.installation,
      { recipient: { organizationId, messageId, ordinal: 1 }, contactId: null },
      { kind: 'unsubscribe' },
    );
    expect(await changesOf(organizationId)).toEqual([
      { contact_ids: [contacts[1]!.id] },
      { contact_ids: [contacts[1]!.id] },
    ]);
    await server.request('DELETE', `/v1/segments/${segment.id}`);
  });

  test('a report changes the contact that a campaign was for, and the one that has the address now', async () => {
    const { contacts, messageId } = await arrange(server.organizationId, 1);
    const { organizationId } = server;
    const segment = await addSegment(server, ask('opened'));
    await compute();
    await server.request('PATCH', `/v1/contacts/${contacts[0]!.id}`, { email: 'moved@example.com' });
    const heir = await create(server, '/contacts', { email: contacts[0]!.email });
    await forgetChanges();
    await report(reportsOf(organizationId, messageId, { count: 1, status: 'bounced' }));
    const [change] = await changesOf(organizationId);
    expect(change?.contact_ids.toSorted()).toEqual([contacts[0]!.id, heir.id].toSorted());
    await server.request('DELETE', `/v1/segments/${segment.id}`);
  });
});
