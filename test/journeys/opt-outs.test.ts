import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  hasOptedInSince,
  hearOptOut,
  optIn,
  optOut,
  optOutContact,
  readSuppressions,
  toErasedKey,
} from '../../src/audience/audience.ts';
import { channels } from '../../src/channels/channel.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { eventually } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

/**
 * What a person has said holds for the address, whoever gets it next and however: each way of opting out, times each way
 * in which the address comes back, times each channel.
 */

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
  // More than a plan allows in a minute, where all of them fit into one.
  await server.installation.database.rows(
    unpreparedStatement('update organizations set requests_per_window = 10000 where id = $1'),
    [server.organizationId],
  );
  const event = await server.request('POST', '/v1/events', { name: 'came_back', schema: { fields: [] } });
  expect(event.status).toBe(201);
});
afterAll(() => server.stop());

let made = 0;
const newPerson = () => {
  made += 1;
  return { email: `Person-${made}@Example.com`, phone_number: `+4930${1_000_000 + made}` };
};
type Person = ReturnType<typeof newPerson>;
type Channel = (typeof channels)[number];
type Contact = { id: string; consent: Record<Channel, string> };

async function call<Body>(method: string, path: string, body?: object): Promise<Body> {
  const response = await server.request<Body>(method, `/v1${path}`, body);
  expect([path, response.status >= 200 && response.status < 300, response.body]).toEqual([
    path,
    true,
    response.body,
  ]);
  return response.body;
}

const read = (id: string) => call<Contact>('GET', `/contacts/${id}`);

async function find(filter: Record<string, string>): Promise<Contact> {
  const query = new URLSearchParams(filter).toString();
  const { data } = await call<{ data: Contact[] }>('GET', `/contacts?${query}`);
  expect(data).toHaveLength(1);
  return data[0]!;
}

const within = <Result>(work: (transaction: Parameters<typeof optOut>[0]) => Promise<Result>) =>
  server.installation.database.asOrganizations([server.organizationId], work);

const addressOf = (channel: Exclude<Channel, 'push'>, { email, phone_number }: Person) => ({
  organizationId: server.organizationId,
  address: channel === 'email' ? email.toLowerCase() : phone_number,
});

const source = { type: 'reply', id: null } as const;

const run = <Row>(text: string, values: readonly unknown[] = []) =>
  server.installation.database.rows(unpreparedStatement<Row>(text), values);

/** The channels that the row itself says to be unsubscribed from, which campaigns go by. */
async function stored(id: string): Promise<string[]> {
  const [row] = await run<{ unsubscribed_channels: string[] }>(
    'select unsubscribed_channels from contacts where organization_id = $1 and id = $2',
    [server.organizationId, id],
  );
  return row!.unsubscribed_channels;
}

type Settling<Result> = { promise: Promise<Result>; isOver: () => boolean };

function settling<Result>(promise: Promise<Result>): Settling<Result> {
  let isOver = false;
  const end = () => (isOver = true);
  promise.then(end, end);
  return { promise, isOver: () => isOver };
}

/** Resolves once so many transactions wait for a lock, or at the end of what was to wait and did not. */
async function whenWaiting(count: number, until?: Settling<unknown>): Promise<void> {
  await eventually(
    () => run(`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`),
    (waiting) => waiting.length >= count || until?.isOver() === true,
  );
}

type Way = (channel: Channel, person: Person, contact: Contact) => Promise<void>;

const waysOut: Record<string, Way> = {
  'by the API': async (channel, _person, { id }) => {
    await call('PATCH', `/contacts/${id}`, { consent: { [channel]: 'unsubscribed' } });
  },
  'by their own word': async (channel, person, { id }) => {
    if (channel === 'push') {
      await call('PATCH', `/contacts/${id}`, { consent: { push: 'unsubscribed' } });
      return;
    }
    const scope = channel === 'email' ? 'marketing' : 'all';
    await within((transaction) =>
      optOut(transaction, server.installation, channel, addressOf(channel, person), { scope, source }),
    );
  },
  'after the contact was deleted': async (channel, person, { id }) => {
    if (channel === 'push') await call('PATCH', `/contacts/${id}`, { consent: { push: 'unsubscribed' } });
    await call('DELETE', `/contacts/${id}`);
    if (channel === 'push') return;
    await within((transaction) =>
      optOut(transaction, server.installation, channel, addressOf(channel, person), {
        scope: 'marketing',
        source,
      }),
    );
  },
};

type ComesBack = (channel: Channel, person: Person) => Promise<string>;

const waysBack: Record<string, ComesBack> = {
  'by a creation that says otherwise': async (channel, person) =>
    (await call<Contact>('POST', '/contacts', { ...person, consent: { [channel]: 'subscribed' } })).id,
  'by an event': async (_channel, person) => {
    await call('POST', '/events/send', { event: 'came_back', ...person });
    return (await find({ phone_number: person.phone_number })).id;
  },
  'by a change of another contact': async (_channel, person) => {
    const { id } = await call<Contact>('POST', '/contacts', { external_id: `other of ${person.email}` });
    await call('PATCH', `/contacts/${id}`, person);
    return id;
  },
  'by an event that fills a contact': async (_channel, person) => {
    const externalId = `filled of ${person.email}`;
    const { id } = await call<Contact>('POST', '/contacts', { external_id: externalId });
    await call('POST', '/events/send', { event: 'came_back', external_id: externalId, ...person });
    expect((await find({ phone_number: person.phone_number })).id).toBe(id);
    return id;
  },
};

describe.each(channels)('on %s', (channel) => {
  describe.each(Object.keys(waysOut))('who has opted out %s', (out) => {
    test.each(Object.keys(waysBack))('stays so when the address comes back %s', async (back) => {
      const person = newPerson();
      const first = await call<Contact>('POST', '/contacts', person);
      expect(first.consent[channel]).toBe('subscribed');
      await waysOut[out]!(channel, person, first);
      await server.request('DELETE', `/v1/contacts/${first.id}`);

      const id = await waysBack[back]!(channel, person);
      expect((await read(id)).consent[channel]).toBe('unsubscribed');
      // Once more, since the first return could have used it up.
      await call('DELETE', `/contacts/${id}`);
      const again = await call<Contact>('POST', '/contacts', person);
      expect(again.consent[channel]).toBe('unsubscribed');

      await call('PATCH', `/contacts/${again.id}`, {
        first_name: 'Ann',
        consent: { [channel]: 'subscribed' },
      });
      expect((await read(again.id)).consent[channel]).toBe('subscribed');
      await call('DELETE', `/contacts/${again.id}`);
      expect((await call<Contact>('POST', '/contacts', person)).consent[channel]).toBe('subscribed');
    });
  });
});

test.each(['email', 'sms', 'chatapp'] as const)(
  'what is said on %s of an address that was erased shows with whoever has it, and stays with the next change',
  async (channel) => {
    const person = newPerson();
    const neighbour = newPerson();
    const { id } = await call<Contact>('POST', '/contacts', person);
    const { id: otherId } = await call<Contact>('POST', '/contacts', neighbour);
    const address = addressOf(channel, person);
    const erased = { ...address, address: toErasedKey(server.installation, address) };
    await within((transaction) =>
      optOut(transaction, server.installation, channel, erased, { scope: 'marketing', source }),
    );
    const shown = async () => {
      const { data } = await call<{ data: Contact[] }>('GET', '/contacts?limit=2');
      expect(data.map((contact) => contact.id)).toEqual([otherId, id]);
      const records = [...data, await read(otherId), await read(id)];
      return records.map(
        ({ consent }) => Object.values(consent).filter((each) => each === 'unsubscribed').length,
      );
    };
    expect(await shown()).toEqual([0, 1, 0, 1]);
    expect((await read(id)).consent[channel]).toBe('unsubscribed');
    const changed = await call<Contact>('PATCH', `/contacts/${id}`, { first_name: 'Ann' });
    expect(changed.consent[channel]).toBe('unsubscribed');
    expect(await shown()).toEqual([0, 1, 0, 1]);
    await call('PATCH', `/contacts/${id}`, { consent: { [channel]: 'subscribed' } });
    expect(await shown()).toEqual([0, 0, 0, 0]);
  },
);

test('a stranger with the address in another organization is asked about nothing', async () => {
  const person = newPerson();
  const { id } = await call<Contact>('POST', '/contacts', person);
  await call('PATCH', `/contacts/${id}`, { consent: { email: 'unsubscribed' } });
  const rows = await server.installation.database.rows(
    unpreparedStatement<{ channel: string; scope: string; reason: string }>(
      'select channel, scope, reason from suppressions where organization_id = $1 and address = $2',
    ),
    [server.organizationId, person.email.toLowerCase()],
  );
  expect(rows).toEqual([{ channel: 'email', scope: 'marketing', reason: 'unsubscribe' }]);
});

test('a contact that opts out by the API keeps campaigns alone from it, and everything from its devices', async () => {
  const person = newPerson();
  const consent = Object.fromEntries(channels.map((channel) => [channel, 'unsubscribed']));
  await call('POST', '/contacts', { ...person, consent });
  const scopes = await within((transaction) =>
    Promise.all(
      channels.map(async (channel) => {
        const address = addressOf(channel === 'push' ? 'email' : channel, person);
        return [
          channel,
          (await readSuppressions(transaction, server.installation, channel, address))[0]?.scope,
        ] as const;
      }),
    ),
  );
  expect(Object.fromEntries(scopes)).toEqual({
    email: 'marketing',
    sms: 'marketing',
    chatapp: 'marketing',
    push: 'all',
  });
});

test.each(['external_id', 'email', 'phone_number'] as const)(
  'an opt-out from push holds for whoever has the %s of the contact next',
  async (field) => {
    const person = { external_id: `push ${field}`, ...newPerson() };
    const { id } = await call<Contact>('POST', '/contacts', { ...person, consent: { push: 'unsubscribed' } });
    await call('DELETE', `/contacts/${id}`);
    const next = await call<Contact>('POST', '/contacts', { [field]: person[field] });
    expect(next.consent.push).toBe('unsubscribed');
  },
);

test('a consent that was given at a time counts from then on, and not from when it is heard of', async () => {
  const address = addressOf('chatapp', newPerson());
  const saidUntil = new Date(Date.now() - 60_000);
  const since = [saidUntil, new Date(saidUntil.getTime() + 1)];
  const known = await within(async (transaction) => {
    await optIn(transaction, server.installation, 'chatapp', address, { saidUntil });
    return Promise.all(
      since.map((at) => hasOptedInSince(transaction, server.installation, 'chatapp', address, at)),
    );
  });
  expect(known).toEqual([true, false]);
});

test('START takes back what the API has said, and the consent of the contact follows', async () => {
  const person = newPerson();
  const { id } = await call<Contact>('POST', '/contacts', { ...person, consent: { sms: 'unsubscribed' } });
  const outcome = await within((transaction) =>
    optIn(transaction, server.installation, 'sms', addressOf('sms', person)),
  );
  expect(outcome).toEqual({ contact: 'changed', hadOptedOut: true });
  expect((await read(id)).consent.sms).toBe('subscribed');
});

test('START that was said before the last STOP leaves the contact as it is stored', async () => {
  const person = newPerson();
  const { id } = await call<Contact>('POST', '/contacts', person);
  const [saidUntil, at] = [new Date(Date.now() - 60_000), new Date(Date.now() - 30_000)];
  const address = addressOf('sms', person);
  await within((transaction) =>
    optOut(transaction, server.installation, 'sms', address, { scope: 'all', source, at }),
  );
  const outcome = await within((transaction) =>
    optIn(transaction, server.installation, 'sms', address, { saidUntil }),
  );
  expect(outcome).toEqual({ contact: 'not_found', hadOptedOut: false });
  expect(await stored(id)).toEqual(['sms']);
});

test('an opt-out that a provider knew of when it was given a text is older than a START that followed', async () => {
  const person = newPerson();
  const { id } = await call<Contact>('POST', '/contacts', person);
  const [sentAt, saidUntil] = [new Date(Date.now() - 60_000), new Date(Date.now() - 30_000)];
  const address = addressOf('sms', person);
  const heard = { scope: 'all' as const, sentAt, messageId: server.installation.newId() };
  expect(
    await within((transaction) => hearOptOut(transaction, server.installation, 'sms', address, heard)),
  ).toBe('changed');
  const outcome = await within((transaction) =>
    optIn(transaction, server.installation, 'sms', address, { saidUntil }),
  );
  expect(outcome).toEqual({ contact: 'changed', hadOptedOut: true });
  expect((await read(id)).consent.sms).toBe('subscribed');
});

test.each(['email', 'sms', 'chatapp'] as const)(
  'what a contact says on %s, whatever its address is, holds for whoever has that next',
  async (channel) => {
    const person = newPerson();
    const { id } = await call<Contact>('POST', '/contacts', person);
    const contact = { organizationId: server.organizationId, id };
    const outcome = await within((transaction) =>
      optOutContact(transaction, server.installation, channel, contact),
    );
    expect(outcome).toBe('changed');
    await call('DELETE', `/contacts/${id}`);
    const { consent } = await call<Contact>('POST', '/contacts', person);
    expect(channels.filter((each) => consent[each] === 'unsubscribed')).toEqual([channel]);
  },
);

describe('an address', () => {
  test('whose owner opts out while a contact with it is written is unsubscribed in that contact', async () => {
    const person = newPerson();
    await run(
      `create function hold_contact() returns trigger language plpgsql as $$
       begin perform pg_advisory_xact_lock_shared(hashtext('hold contact')); return new; end $$`,
    );
    await run(
      'create trigger hold_contact before insert on contacts for each row execute function hold_contact()',
    );
    const { creating, said } = await server.installation.database.transaction(async (holder) => {
      await holder.rows(unpreparedStatement("select pg_advisory_xact_lock(hashtext('hold contact'))"));
      const contact = call<Contact>('POST', '/contacts', person);
      await whenWaiting(1);
      const word = settling(
        within((transaction) =>
          optOut(transaction, server.installation, 'email', addressOf('email', person), {
            scope: 'marketing',
            source,
          }),
        ),
      );
      await whenWaiting(2, word);
      return { creating: contact, said: word };
    });
    const { id } = await creating;
    await run('drop function hold_contact cascade');
    expect(await said.promise).toBe('changed');
    expect(await stored(id)).toEqual(['email']);
  });

  test('that a contact gives up while its owner opts out says nothing of that contact', async () => {
    const [person, next] = [newPerson(), newPerson()];
    const { id } = await call<Contact>('POST', '/contacts', person);
    const said = await server.installation.database.transaction(async (mover) => {
      await mover.rows(
        unpreparedStatement(
          'update contacts set email = $3, email_key = lower($3) where organization_id = $1 and id = $2',
        ),
        [server.organizationId, id, next.email],
      );
      const word = settling(
        within((transaction) =>
          optOut(transaction, server.installation, 'email', addressOf('email', person), {
            scope: 'marketing',
            source,
          }),
        ),
      );
      await whenWaiting(1, word);
      return word;
    });
    expect(await said.promise).toBe('not_found');
    expect(await stored(id)).toEqual([]);
    expect((await read(id)).consent.email).toBe('subscribed');
  });
});

describe('identifiers of an event', () => {
  const subscribedExcept = (out: Channel) =>
    Object.fromEntries(channels.map((channel) => [channel, channel === out ? 'unsubscribed' : 'subscribed']));
  const send = (reference: Record<string, string>) =>
    call('POST', '/events/send', { event: 'came_back', ...reference });

  test('that nobody has fill the contact that is found, so that one person stays one', async () => {
    const { email } = newPerson();
    const { id } = await call<Contact>('POST', '/contacts', { email });
    await send({ external_id: `x of ${email}`, email });
    await send({ external_id: `x of ${email}` });
    expect((await find({ external_id: `x of ${email}` })).id).toBe(id);
  });

  test.each(channels)(
    'that fill somebody who has opted out from %s are opted out, whoever has them next',
    async (channel) => {
      const { external_id: externalId, ...person } = { external_id: `out of ${channel}`, ...newPerson() };
      const consent = { [channel]: 'unsubscribed' };
      // On most channels there is no address yet that the opt-out could be kept of.
      const { id } = await call<Contact>('POST', '/contacts', { external_id: externalId, consent });
      await send({ external_id: externalId, ...person });
      expect(await read(id)).toMatchObject({ email: person.email, consent });
      await call('DELETE', `/contacts/${id}`);
      const next = await call<Contact>('POST', '/contacts', person);
      expect(next.consent).toEqual(subscribedExcept(channel));
    },
  );

  test('that another contact has change nothing', async () => {
    const [one, other] = [newPerson(), newPerson()];
    const { id } = await call<Contact>('POST', '/contacts', { email: one.email });
    const { id: otherId } = await call<Contact>('POST', '/contacts', { phone_number: other.phone_number });
    await send({ email: one.email, phone_number: other.phone_number });
    expect((await find({ phone_number: other.phone_number })).id).toBe(otherId);
    expect(await read(id)).toMatchObject({ email: one.email, phone_number: null });
  });
});

test('a creation with an identifier in use says whose it is', async () => {
  const person = newPerson();
  const { id } = await call<Contact>('POST', '/contacts', person);
  const { status, body } = await server.request<{ message: string }>('POST', '/v1/contacts', {
    email: person.email.toUpperCase(),
  });
  expect([status, body.message]).toEqual([409, `email is in use by the contact ${id}.`]);
});

test('a contact that is changed has not opted out again: a later START is still the last word', async () => {
  const person = newPerson();
  const { id } = await call<Contact>('POST', '/contacts', person);
  const at = new Date('2026-01-02T03:04:05.678Z');
  for (const channel of ['email', 'sms'] as const)
    await within((transaction) =>
      optOut(transaction, server.installation, channel, addressOf(channel, person), {
        scope: 'marketing',
        source,
        at,
      }),
    );
  await call('PATCH', `/contacts/${id}`, { first_name: 'Ann' });
  for (const channel of ['email', 'sms'] as const) {
    const [suppression] = await within((transaction) =>
      readSuppressions(transaction, server.installation, channel, addressOf(channel, person)),
    );
    expect(suppression).toMatchObject({ reason: 'unsubscribe', optedOutAt: at });
  }
});
