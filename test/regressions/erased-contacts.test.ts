/**
 * A contact that was written to in every way there is, and is deleted: no readable trace of it may be left, on either
 * channel, in what was sent to it alone, to it and others, or by a campaign.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { applyReports } from '../../src/messages/messages.ts';
import { emailChannel } from '../../src/email/email.ts';
import { createIntake } from '../../src/roles/providers/sms.ts';
import { createShiftedClock, eventually, rowsOf, send, settled } from '../support/email-journey.ts';
import { findErasedContacts } from '../support/erased-contacts.ts';
import { neighbourId } from '../support/neighbour.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { addApprovedSender, sendSms, smsWithStatus } from '../support/sms-journey.ts';

const clock = createShiftedClock();
let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ worker: true, clock, newId: createShuffledIds(clock) });
  await addApprovedSender(server, '+14155550100');
});
afterAll(() => server.stop());

async function create(path: string, body: object): Promise<string> {
  const response = await server.request<{ id: string }>('POST', `/v1${path}`, body);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

async function sendCampaign(channel: 'email' | 'sms', body: object): Promise<string> {
  const id = await create(`/${channel}/campaigns`, body);
  const path = `/v1/${channel}/campaigns/${id}`;
  const sent = await server.request('POST', `${path}/send`, {});
  expect([sent.status, sent.text]).toEqual([200, expect.any(String)]);
  await eventually(
    async () => (await server.request<{ status: string }>('GET', path)).body.status,
    (status) => status === 'sent',
  );
  const [campaign] = await rowsOf<{ message_id: string }>(
    server,
    'select message_id from campaigns where id = $1',
    [id],
  );
  return campaign!.message_id;
}

test('of a contact who was written to in every way nothing readable is left after the deletion', async () => {
  // The report of this number comes at once, and with a diagnostic.
  const [email, phone] = ['Augusta.King@example.com', '+15005550010'];
  const list = await create('/lists', { name: 'Customers' });
  const augusta = await create('/contacts', {
    email,
    phone_number: phone,
    first_name: 'Augusta',
    last_name: 'Kingsley',
    list_ids: [list],
  });
  await create('/contacts', { email: 'ben@example.com', phone_number: '+15005550006', list_ids: [list] });

  const named = 'Dear Augusta Kingsley';
  const mails = [
    await send(server, { to: [email], subject: named, text: named }),
    await send(server, { to: ['ben@example.com'], cc: [email], subject: 'To both', text: named }),
    await send(server, { to: [email, 'bounced@simulator.postillion.test'], subject: named }),
  ];
  for (const id of mails) await settled(server, id);
  const text = await sendSms(server, { from: '+14155550100', to: phone, body: named });
  await smsWithStatus(server, text, 'undelivered');
  const content = { list_ids: [list], variables: { first_name: 'you' } };
  const campaigns = {
    email: await sendCampaign('email', {
      ...content,
      name: 'News',
      from: 'news@postillion.test',
      subject: 'News for {{first_name}}',
      text: 'Hello {{first_name}} {{last_name}} {{unsubscribe_url}}',
      variables: { first_name: 'you', last_name: '' },
    }),
    sms: await sendCampaign('sms', {
      ...content,
      name: 'Texts',
      from: '+14155550100',
      body: 'Hello {{first_name}}',
    }),
  };
  const [mailed] = await rowsOf<{ message_id: string; ordinal: number }>(
    server,
    `select message_id, ordinal from recipients where message_id = $1 and address_key = lower($2)`,
    [campaigns.email, email],
  );
  await reportBounce({ messageId: campaigns.email, ordinal: mailed!.ordinal });
  // The answer to it is a message of its own.
  await createIntake(server.installation).takeInbound({
    providerMessageId: 'from a phone',
    from: phone,
    senderName: '14155550100',
    text: 'STOP, says Augusta',
  });
  await createIntake(server.installation).takeInbound({
    providerMessageId: 'from a phone, again',
    from: phone,
    senderName: '14155550100',
    text: 'STOP',
  });
  await eventually(
    () =>
      rowsOf(
        server,
        `select from sms_events union all select from provider_events union all select from delivery_queue`,
      ),
    (rows) => rows.length === 0,
  );
  // Each trace is there before, or its absence would prove nothing.
  for (const trace of [email, phone, 'Augusta']) expect(await copiesNaming(trace)).toBeGreaterThan(1);
  const ofNeighbour = await copiesNaming(email, neighbourId);
  expect(ofNeighbour).toBeGreaterThan(1);

  expect((await server.request('DELETE', `/v1/contacts/${augusta}`)).status).toBe(200);
  await eventually(
    () => {
      clock.putForward(61_000);
      return rowsOf(server, 'select from erasures');
    },
    (rows) => rows.length === 0,
  );
  expect(await findErasedContacts(server.installation)).toEqual([]);
  expect(await copiesNaming('ben@example.com')).toBeGreaterThan(1);
  expect(await copiesNaming(email, neighbourId)).toBe(ofNeighbour);
});

test('what campaigns sent to addresses that a contact gave up is erased, and not what others got there since', async () => {
  const old = { email: 'Grace.Hopper@example.com', phone_number: '+15005550012' };
  const list = await create('/lists', { name: 'Sailors' });
  const grace = await create('/contacts', { ...old, first_name: 'Grace', list_ids: [list] });
  await sendToBoth(list, 'First');
  // Nothing says to which contact this email went.
  const mail = await send(server, { to: [old.email], subject: 'To the address' });
  await settled(server, mail);
  const moved = { email: 'grace@new.example', phone_number: '+15005550013', first_name: 'Gracia' };
  expect((await server.request('PATCH', `/v1/contacts/${grace}`, moved)).status).toBe(200);
  await create('/contacts', { ...old, first_name: 'Henry', list_ids: [list] });
  await sendToBoth(list, 'Second');
  expect(await copiesNaming('Grace')).toBeGreaterThan(1);
  const ofNeighbour = await copiesNaming(old.email, neighbourId);

  expect((await server.request('DELETE', `/v1/contacts/${grace}`)).status).toBe(200);
  await eventually(
    () => {
      clock.putForward(61_000);
      return rowsOf(server, 'select from erasures union all select from contact_erasures');
    },
    (rows) => rows.length === 0,
  );
  expect(await findErasedContacts(server.installation)).toEqual([]);
  const left = await rowsOf<{ address: string; variables: { first_name: string } | null }>(
    server,
    `select address, variables from recipients
     where organization_id = $1 and lower(address) = any ($2) and (message_id = $3 or contact_id is not null)
     order by address, contact_id nulls last`,
    [server.organizationId, [old.email.toLowerCase(), old.phone_number], mail],
  );
  expect(left).toEqual([
    { address: old.phone_number, variables: { first_name: 'Henry' } },
    { address: old.email, variables: { first_name: 'Henry' } },
    { address: old.email, variables: null },
  ]);
  const copies = await rowsOf<{ text: string }>(
    server,
    `select encode(source, 'escape') as text from sandbox_messages
     where organization_id = $1 and lower(recipient) = any ($2)`,
    [server.organizationId, [old.email.toLowerCase(), old.phone_number]],
  );
  // The mail, and what Henry got.
  expect(copies.map(({ text }) => text.includes('Henry')).toSorted()).toEqual([false, true, true]);
  expect(await copiesNaming(old.email, neighbourId)).toBe(ofNeighbour);
});

async function sendToBoth(list: string, name: string): Promise<void> {
  const content = { list_ids: [list], name, variables: { first_name: 'you' } };
  await sendCampaign('email', {
    ...content,
    from: 'news@postillion.test',
    subject: 'News',
    text: 'Hello {{first_name}} {{unsubscribe_url}}',
  });
  await sendCampaign('sms', { ...content, from: '+14155550100', body: 'Hello {{first_name}}' });
  await eventually(
    () =>
      rowsOf(
        server,
        `select from sms_events union all select from provider_events union all select from delivery_queue`,
      ),
    (rows) => rows.length === 0,
  );
}

async function copiesNaming(trace: string, organizationId = server.organizationId): Promise<number> {
  const rows = await rowsOf(
    server,
    `select from recipients r where organization_id = $2 and strpos(lower(r::text), lower($1)) > 0`,
    [trace, organizationId],
  );
  return rows.length;
}

/** With a server's words, which hold the address and a name of the person. */
function reportBounce(job: { messageId: string; ordinal: number }): Promise<void> {
  const nothing = () => undefined;
  return applyReports(
    { ...server.installation, random: Math.random, onCampaignProgress: nothing, onContactsChanged: nothing },
    emailChannel,
    [
      {
        job: { organizationId: server.organizationId, ...job },
        status: 'bounced',
        failure: {
          type: 'hard',
          class: 'mailbox_not_found',
          smtpCode: 550,
          enhancedCode: '5.1.1',
          diagnostic: '550 <augusta.king@example.com> Augusta Kingsley is not here any more',
          remote: 'mx.example.com',
        },
      },
    ],
  );
}
