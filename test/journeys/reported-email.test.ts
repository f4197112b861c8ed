/** Email by a provider over HTTP that reports under its own ids, as it would be added: a folder and a line. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { describeEmailProvider } from '../support/email-provider-conformance.ts';
import { type Sender, eventually, queueOf, read, rowsOf, send, settled } from '../support/email-journey.ts';
import { createManualClock } from '../support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { signEvents, type SkylarkEvent } from '../support/skylark/callbacks.ts';
import { type SkylarkPeer, startSkylarkPeer } from '../support/skylark/peer.ts';
import { registerSkylark, settingsOfSkylark } from '../support/skylark/registered.ts';
import { createSkylarkProvider } from '../support/skylark/skylark.ts';

describeEmailProvider('Skylark', async () => {
  const peer = await startSkylarkPeer();
  const clock = createManualClock();
  const silent = 'silent@example.com';
  return {
    provider: createSkylarkProvider({ url: peer.url, clock, writeToken: () => 'token' }),
    recipients: {
      accepted: 'ann@example.com',
      rejected: 'gone@example.com',
      deferred: 'later@example.com',
    },
    recipientOfLostAnswer: 'lost@example.com',
    silence: { recipient: silent, whenTaken: () => peer.whenTaken(silent), passTime: clock.advance },
    delivered: () =>
      Promise.resolve(
        peer.taken.map(({ from, to, source }) => ({ envelopeFrom: from, recipient: to, content: source })),
      ),
    dispose: peer.stop,
  };
});

let registration: ReturnType<typeof registerSkylark>;
beforeAll(() => {
  registration = registerSkylark();
});
afterAll(() => {
  registration.unregister();
});

describe('an email', () => {
  let peer: SkylarkPeer;
  let server: TestServer;
  let other: { organizationId: string; key: string };

  beforeAll(async () => {
    peer = await startSkylarkPeer();
    server = await startTestServer({ worker: true, ...settingsOfSkylark(peer.url) });
    other = await createSender(server.installation, 'other.example');
  });
  afterAll(async () => {
    await server.stop();
    await peer.stop();
  });

  async function post(body: string, headers: Readonly<Record<string, string>>): Promise<number> {
    const response = await fetch(`${server.url}/callbacks/skylark/events`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body,
    });
    await response.text();
    return response.status;
  }

  function postSigned(body: string): Promise<number> {
    return post(body, { 'skylark-signature': signEvents(peer.key, body) });
  }

  async function report(...events: readonly SkylarkEvent[]): Promise<void> {
    expect(await postSigned(JSON.stringify({ events }))).toBe(204);
  }

  /** Everything that was reported has been applied. */
  async function allApplied(): Promise<void> {
    await eventually(
      () => rowsOf(server, 'select from provider_events'),
      (events) => events.length === 0,
    );
  }

  /** Returns the id here and the id there. */
  async function sendTo(to: string, sender?: Sender): Promise<{ id: string; providerId: string }> {
    const taken = peer.whenTaken(to);
    const from = sender === undefined ? 'hello@postillion.test' : 'hello@other.example';
    const id = await send(server, { from, to: [to] }, sender);
    const { id: providerId } = await taken;
    await settled(server, id, sender);
    return { id, providerId };
  }

  async function recipientOf(id: string, sender?: Sender) {
    return (await read(server, id, sender)).to[0]!;
  }

  async function statusesOf(...messages: readonly { id: string; sender?: Sender }[]): Promise<string[]> {
    const recipients = await Promise.all(messages.map(({ id, sender }) => recipientOf(id, sender)));
    return recipients.map(({ status }) => status);
  }

  const countOf = async (organizationId: string) => {
    const [row] = await rowsOf<{ bounced: number; complained: number }>(
      server,
      `select coalesce(sum(bounced), 0)::integer as bounced, coalesce(sum(complained), 0)::integer as complained
       from reputation_counts where organization_id = $1`,
      [organizationId],
    );
    return row!;
  };

  test('to an address that is reported to be invalid has bounced, and its organization writes to it no more', async () => {
    const to = 'ivy@example.com';
    const [mine, theirs] = [await sendTo(to), await sendTo(to, other)];
    const before = await countOf(server.organizationId);
    const event = { event: 'bounced', id: mine.providerId, to: 'Ivy@EXAMPLE.com', reason: 'invalid' };
    await report({ ...event, detail: '550 5.1.1 unknown\u202euser' });
    await allApplied();
    expect(await recipientOf(mine.id)).toMatchObject({
      status: 'bounced',
      bounce: { type: 'hard', class: 'mailbox_not_found', diagnostic: '550 5.1.1 unknown user' },
    });
    const bounced = await read(server, mine.id);
    expect(await statusesOf({ id: theirs.id, sender: other })).toEqual(['delivered']);

    // Reported again, and that it was delivered as well.
    await report(event, { event: 'delivered', id: mine.providerId }, event);
    await allApplied();
    expect(await read(server, mine.id)).toEqual(bounced);
    expect(await countOf(server.organizationId)).toEqual({ ...before, bounced: before.bounced + 1 });
    expect(await countOf(other.organizationId)).toEqual({ bounced: 0, complained: 0 });

    const again = await send(server, { to: [to] });
    expect((await settled(server, again)).to).toMatchObject([{ dropped: true, drop_reason: 'suppressed' }]);
    await sendTo(to, other);
  });

  test('that bounced for now, or was taken for spam, is shown as such, and its address is not suppressed', async () => {
    const [full, spam] = [await sendTo('full@example.com'), await sendTo('spam@example.com')];
    await report(
      { event: 'bounced', id: full.providerId, reason: 'full' },
      { event: 'bounced', id: spam.providerId, reason: 'spam' },
    );
    await allApplied();
    expect(await recipientOf(full.id)).toMatchObject({
      status: 'bounced',
      bounce: { type: 'soft', class: 'mailbox_full' },
    });
    expect(await recipientOf(spam.id)).toMatchObject({
      status: 'failed',
      bounce: { type: 'soft', class: 'spam' },
    });
    await sendTo('full@example.com');
    await sendTo('spam@example.com');
  });

  test('that is complained about has that status, and its address is suppressed', async () => {
    const { id, providerId } = await sendTo('cross@example.com');
    const before = await countOf(server.organizationId);
    await report({ event: 'opened', id: providerId }, { event: 'complained', id: providerId });
    await allApplied();
    expect(await statusesOf({ id })).toEqual(['complained']);
    expect(await countOf(server.organizationId)).toEqual({ ...before, complained: before.complained + 1 });
    const again = await send(server, { to: ['cross@example.com'] });
    expect((await settled(server, again)).to).toMatchObject([{ dropped: true, drop_reason: 'suppressed' }]);
  });

  test('is reported on under its own id together with its own address only', async () => {
    const to = 'twin@example.com';
    const [mine, theirs] = [await sendTo(to), await sendTo(to, other)];
    await report(
      { event: 'bounced', id: theirs.providerId, to, reason: 'invalid' },
      { event: 'bounced', id: mine.providerId, to: 'nobody@example.com', reason: 'invalid' },
      { event: 'bounced', id: 'sky-unknown', to, reason: 'invalid' },
    );
    const waiting = () =>
      rowsOf<{ id: string; attempts: number }>(
        server,
        `select report ->> 'providerMessageId' as id, attempts from provider_events order by 1`,
      );
    await eventually(
      waiting,
      (events) => events.length === 2 && events.every(({ attempts }) => attempts > 0),
    );
    expect((await waiting()).map(({ id }) => id)).toEqual([mine.providerId, 'sky-unknown'].toSorted());
    await rowsOf(server, 'delete from provider_events');
    expect(await statusesOf({ id: mine.id }, { id: theirs.id, sender: other })).toEqual([
      'delivered',
      'bounced',
    ]);
  });

  test('that is reported on before the provider has answered has what was reported, by id or by token', async () => {
    for (const [to, how] of [
      ['held+1@example.com', 'id'],
      ['held+2@example.com', 'token'],
    ] as const) {
      const taken = peer.whenTaken(to);
      const id = await send(server, { to: [to] });
      const email = await taken;
      await report({ event: 'bounced', [how]: email[how], reason: 'invalid' });
      if (how === 'token') await allApplied();
      else
        await eventually(
          () => rowsOf<{ attempts: number }>(server, 'select attempts from provider_events'),
          ([event]) => (event?.attempts ?? 0) > 0,
        );
      peer.release();
      await settled(server, id);
      await allApplied();
      expect([how, await recipientOf(id)]).toMatchObject([
        how,
        { status: 'bounced', bounce: { class: 'mailbox_not_found' } },
      ]);
    }
  });

  test('whose answer was lost is uncertain until the provider reports with its token, and is not sent again', async () => {
    const taken = peer.whenTaken('lost@example.com');
    const id = await send(server, { to: ['lost@example.com'] });
    const { token } = await taken;
    await eventually(
      () => queueOf(server, id),
      ([job]) => (job?.ambiguities ?? 0) > 0,
    );
    expect(await recipientOf(id)).toMatchObject({ uncertain: true });
    await report({ event: 'delivered', token });
    await allApplied();
    expect(await recipientOf(id)).toMatchObject({ status: 'delivered', uncertain: false });
    // It would have been tried once more.
    expect(await queueOf(server, id)).toEqual([]);
    expect(peer.taken.filter((email) => email.to === 'lost@example.com')).toHaveLength(1);
  });

  test('is reported on by the provider alone, in words that can be read, and of a size that is expected', async () => {
    const [mine, theirs] = [await sendTo('fay@example.com'), await sendTo('fay@example.com', other)];
    const body = JSON.stringify({ events: [{ event: 'bounced', id: mine.providerId, reason: 'invalid' }] });
    const signature = signEvents(peer.key, body);
    const forgeries: [string, string, Record<string, string>][] = [
      ['without a signature', body, {}],
      ['with an empty signature', body, { 'skylark-signature': '' }],
      ['under another key', body, { 'skylark-signature': signEvents('another', body) }],
      [
        'with another id',
        body.replace(mine.providerId, theirs.providerId),
        { 'skylark-signature': signature },
      ],
      ['written in another way', `${body} `, { 'skylark-signature': signature }],
      ['unreadable and not signed', 'not JSON', {}],
    ];
    for (const [how, forged, headers] of forgeries)
      expect([how, await post(forged, headers)]).toEqual([how, 403]);
    expect(await postSigned('not JSON')).toBe(400);
    expect(await postSigned('{"events": 7}')).toBe(400);
    expect(await postSigned('')).toBe(400);
    expect(await postSigned(' '.repeat(1_048_577)).catch(() => 413)).toBe(413);
    expect(await rowsOf(server, 'select from provider_events')).toEqual([]);
    expect(await statusesOf({ id: mine.id }, { id: theirs.id, sender: other })).toEqual([
      'delivered',
      'delivered',
    ]);
    // Only what was said was wrong with them.
    expect(await postSigned(body)).toBe(204);
    await allApplied();
    expect(await statusesOf({ id: mine.id })).toEqual(['bounced']);
  });

  test('and hundreds of others are reported on in one body, each once', async () => {
    const { id, providerId } = await sendTo('many@example.com');
    const messageId = server.installation.newId();
    const recipients = 1_200;
    await rowsOf(
      server,
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', 'campaign', 'a@postillion.test', '{}', $3, now(), now())
       ), known as (
         insert into provider_ids (channel, provider_message_id, organization_id, message_id, ordinal, created_at)
         select 'email', 'of a campaign ' || ordinal, $1, $2, ordinal, now()
         from generate_series(0, $3::integer - 1) ordinal
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, contact_id, status_at, handed_off_at)
       select $1, $2, ordinal, 'to', ordinal || '@example.com', ordinal || '@example.com', gen_random_uuid(), now(),
         now()
       from generate_series(0, $3::integer - 1) ordinal`,
      [server.organizationId, messageId, recipients],
    );
    const events = Array.from({ length: recipients }, (_, ordinal) => ({
      event: 'delivered',
      id: `of a campaign ${ordinal}`,
      detail: 'x'.repeat(400),
    }));
    // More than what is read without asking for room.
    await report(...events, { event: 'opened', id: providerId });
    await allApplied();
    const counted = await rowsOf(
      server,
      'select status, count(*) from recipients where message_id = $1 group by 1',
      [messageId],
    );
    expect(counted).toEqual([{ status: 'delivered', count: recipients }]);
    expect(await statusesOf({ id })).toEqual(['opened']);
  });
});

test('a body with more reports than may wait at once is taken as a whole', async () => {
  const peer = await startSkylarkPeer();
  const server = await startTestServer(settingsOfSkylark(peer.url));
  try {
    const reports = 10_500;
    const events = Array.from({ length: reports }, (_, number) => ({ event: 'opened', id: `sky-${number}` }));
    const body = JSON.stringify({ events });
    const response = await fetch(`${server.url}/callbacks/skylark/events`, {
      method: 'POST',
      headers: { 'skylark-signature': signEvents(peer.key, body) },
      body,
    });
    expect([response.status, await response.text()]).toEqual([204, '']);
    expect(await rowsOf(server, 'select count(*) from provider_events')).toEqual([{ count: reports }]);
  } finally {
    await server.stop();
    await peer.stop();
  }
});

test('a body holds its room until it is stored, and one for which there is none is refused and taken later', async () => {
  const peer = await startSkylarkPeer();
  // Room is taken in steps as a body arrives: two for one of this size, which leaves none for a second.
  const bodyBytes = 200_000;
  const heldBytes = 2 * 131_072;
  const server = await startTestServer({
    ...settingsOfSkylark(peer.url),
    limits: { callbackBytesMax: 3 * 131_072 },
  });
  try {
    const post = async () => {
      const body = JSON.stringify({ events: [{ event: 'delivered', id: 'sky-1' }] }).padEnd(bodyBytes);
      const response = await fetch(`${server.url}/callbacks/skylark/events`, {
        method: 'POST',
        headers: { 'skylark-signature': signEvents(peer.key, body) },
        body,
      });
      await response.text();
      return response.status;
    };
    const posts: Promise<number>[] = [];
    await server.installation.database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement('lock table provider_events in share mode'));
      posts.push(post());
      await eventually(
        () =>
          rowsOf(server, `select from pg_locks where not granted and relation = 'provider_events'::regclass`),
        (waiting) => waiting.length === 1,
      );
      expect(server.held()).toMatchObject({ callbacksBytes: heldBytes, routesBytes: 0 });
      expect(await post()).toBe(503);
    });
    expect(await Promise.all(posts)).toEqual([204]);
    expect(await post()).toBe(204);
    expect(await rowsOf(server, 'select channel, provider from provider_events')).toEqual(
      [1, 2].map(() => ({ channel: 'email', provider: 'skylark' })),
    );
  } finally {
    await server.stop();
    await peer.stop();
  }
});
