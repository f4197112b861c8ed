/** Messages that the chat app refuses again and again: their template is paused, or their number suppressed. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addSuppressions, readSuppressions } from '../../src/audience/audience.ts';
import { createIntake } from '../../src/roles/providers/chatapp.ts';
import {
  addChatTemplate,
  chatAppWithStatus,
  postChatApp,
  setTemplate,
  written,
} from '../support/chat-app-journey.ts';
import { wakeOnce } from '../../src/platform/queue/wake.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  type Sender,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
const clock = createShiftedClock();
beforeAll(async () => {
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => server.stop());

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const [refusing, refusingLater, good] = ['+15005550019', '+15005550020', '+15005550006'];
const [unreachable, unreachableLater] = ['+15005550001', '+15005550010'];

let made = 0;
const unique = (what: string) => `${what}_${(made += 1)}`;
const aNumber = () => `+4915155${String((made += 1)).padStart(6, '0')}`;
const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

type Template = {
  status: string;
  sendable: boolean;
  sendable_reason: string | null;
  warnings: string[];
  updated_at: string;
};
const readTemplate = async (id: string, sender?: Sender) =>
  (await ask<Template>('GET', `/chatapp/templates/${id}`, undefined, sender)).body;
const templateIs = (id: string, sendable: boolean) =>
  eventually(
    () => readTemplate(id),
    (template) => template.sendable === sendable,
  );
const aTemplate = (more: object = {}) =>
  addChatTemplate(server, { name: unique('notice'), content: written('It is on its way.'), ...more });

async function post(template: string, to: string, sender?: Sender): Promise<string> {
  const { status, body, text } = await postChatApp(server, { to, template_id: template }, authorize(sender));
  expect([status, text]).toEqual([202, expect.any(String)]);
  return body.id;
}

/** One after the other, each once what became of the one before is written. */
async function sendAll(template: string, numbers: readonly string[], status: string): Promise<void> {
  for (const to of numbers) await chatAppWithStatus(server, await post(template, to), status);
}

const times = <Item>(count: number, item: Item): Item[] => Array.from({ length: count }, () => item);

test('five refusals in a row pause a template for an hour, for its organization alone', async () => {
  const { id, name } = await aTemplate();
  const theirs = await addChatTemplate(server, {
    name,
    organizationId: other.organizationId,
    content: written('It is on its way.'),
  });
  await sendAll(id, times(4, refusing), 'failed');
  expect(await readTemplate(id)).toMatchObject({ sendable: true, warnings: [] });
  await sendAll(id, [refusing], 'failed');
  const paused = await templateIs(id, false);
  expect(paused).toMatchObject({ status: 'approved', sendable_reason: 'paused' });
  expect(paused.warnings).toEqual([
    expect.stringMatching(/^The provider refused 5 .*until .*Z.*an edit ends/),
  ]);
  const refused = await postChatApp(server, { to: good, template_id: id });
  expect([refused.status, refused.body.message]).toEqual([400, expect.stringContaining('paused')]);
  // Of the same name and text.
  expect(await readTemplate(theirs.id, other)).toMatchObject({ sendable: true, warnings: [] });
  const message = await post(theirs.id, good, other);
  await eventually(
    () => ask<{ status: string }>('GET', `/chatapp/${message}`, undefined, other),
    ({ body }) => body.status === 'delivered',
  );
  clock.putForward(hourMs + minuteMs);
  await templateIs(id, true);
});

test('what is taken in between begins the count anew', async () => {
  const { id } = await aTemplate();
  await sendAll(id, times(4, refusing), 'failed');
  await sendAll(id, [good], 'delivered');
  await sendAll(id, times(4, refusing), 'failed');
  expect(await readTemplate(id)).toMatchObject({ sendable: true, warnings: [] });
});

test('what is refused after it was taken counts too, until something is delivered', async () => {
  const { id } = await aTemplate();
  await sendAll(id, times(4, refusingLater), 'failed');
  await sendAll(id, [good], 'delivered');
  await sendAll(id, times(4, refusingLater), 'failed');
  expect(await readTemplate(id)).toMatchObject({ sendable: true });
  await sendAll(id, [refusingLater], 'failed');
  await templateIs(id, false);
});

test('after the pause one refusal pauses it again, and one acceptance ends it', async () => {
  const { id } = await aTemplate();
  await sendAll(id, times(5, refusing), 'failed');
  await templateIs(id, false);
  clock.putForward(hourMs + minuteMs);
  expect((await templateIs(id, true)).warnings).toEqual([expect.stringMatching(/tried one by one now/)]);
  await sendAll(id, [refusing], 'failed');
  await templateIs(id, false);
  clock.putForward(hourMs + minuteMs);
  await templateIs(id, true);
  await sendAll(id, [good], 'delivered');
  await eventually(
    () => readTemplate(id),
    ({ warnings }) => warnings.length === 0,
  );
  await sendAll(id, times(4, refusing), 'failed');
  expect(await readTemplate(id)).toMatchObject({ sendable: true });
});

test('a look at the provider leaves the pause, and an edit ends it', async () => {
  const { id } = await aTemplate();
  await sendAll(id, times(5, refusing), 'failed');
  await templateIs(id, false);
  await setTemplate(
    server.installation,
    id,
    `provider_template_id = 'sandbox-1', next_step = 'review', due_at = now()`,
  );
  await wakeOnce(server.installation.database, 'chat_templates');
  await eventually(
    () => rowsOf(server, `select from chat_templates where id = $1 and quality = 'green'`, [id]),
    (looked) => looked.length === 1,
  );
  const patch = { components: [{ type: 'body', text: 'It has left.' }], examples: {} };
  expect(await readTemplate(id)).toMatchObject({ sendable: false, sendable_reason: 'paused' });
  expect((await ask('PATCH', `/chatapp/templates/${id}`, patch)).status).toBe(200);
  await eventually(
    () => readTemplate(id),
    ({ status }) => status === 'pending',
  );
  clock.putForward(2 * minuteMs);
  expect(await templateIs(id, true)).toMatchObject({ status: 'approved', warnings: [] });
});

type Campaign = { status: string; pause_reason: string | null; stats: Record<string, number> };

test('a campaign of a template that the chat app has otherwise is paused, with all but a few of its contacts', async () => {
  const { id: template } = await aTemplate({ name: unique('mismatch'), category: 'marketing' });
  const list = (await ask<{ id: string }>('POST', '/lists', { name: unique('List') })).body.id;
  const contacts = 450;
  for (let count = 0; count < contacts; count += 1)
    expect((await ask('POST', '/contacts', { phone_number: aNumber(), list_ids: [list] })).status).toBe(201);
  const draft = { name: 'Spring', list_ids: [list], template_id: template, parameters: {} };
  const campaign = (await ask<{ id: string }>('POST', '/chatapp/campaigns', draft)).body.id;
  expect((await ask('POST', `/chatapp/campaigns/${campaign}/send`, {})).status).toBe(200);
  const read = async () => (await ask<Campaign>('GET', `/chatapp/campaigns/${campaign}`)).body;
  const paused = await eventually(read, ({ status }) => status === 'paused');
  expect(paused).toMatchObject({ pause_reason: 'template_paused' });
  expect(await readTemplate(template)).toMatchObject({ sendable: false, sendable_reason: 'paused' });
  const failed = async () =>
    (
      await rowsOf(
        server,
        `select from recipients r join campaigns c on c.message_id = r.message_id where c.id = $1 and r.status = 'failed'`,
        [campaign],
      )
    ).length;
  const before = await failed();
  expect(before).toBeGreaterThanOrEqual(5);
  // No more than were on their way: all others wait.
  expect(before).toBeLessThan(contacts / 2);
  clock.putForward(hourMs + minuteMs);
  await eventually(failed, (count) => count > before);
  expect(await eventually(read, ({ status }) => status === 'paused')).toMatchObject({
    pause_reason: 'template_paused',
  });
  expect(await failed()).toBeLessThan(before + 5);
});

type Organization = Sender & { organizationId: string; template: string };

/** Numbers of the simulator are the same for all; what becomes of them is not. */
async function anOrganization(): Promise<Organization> {
  const sender = await createSender(server.installation, `${unique('org').replace('_', '')}.example`);
  const { organizationId } = sender;
  const content = written('It is on its way.');
  const { id } = await addChatTemplate(server, { name: 'notice', organizationId, content });
  return { ...sender, template: id };
}

const suppressionsOf = ({ organizationId }: { organizationId: string }, address: string) =>
  readSuppressions(server.installation.database, server.installation, 'chatapp', { organizationId, address });
const suppressionOf = async (organization: { organizationId: string }, address: string) =>
  (await suppressionsOf(organization, address))[0] ?? null;
const isSuppressed = (organization: Organization, address: string) =>
  eventually(
    () => suppressionOf(organization, address),
    (found) => found !== null,
  );

type Message = {
  id: string;
  status: string;
  sent_at: string | null;
  error: { code: string; message: string };
};

async function sendTo(organization: Organization, to: string, status = 'failed'): Promise<Message> {
  const id = await post(organization.template, to, organization);
  const { body } = await eventually(
    () => ask<Message>('GET', `/chatapp/${id}`, undefined, organization),
    (read) => read.body.status === status,
  );
  return body;
}

const keptFor = async ({ organizationId }: Organization, to: string) =>
  (
    await rowsOf(server, 'select from sandbox_messages where organization_id = $1 and recipient = $2', [
      organizationId,
      to,
    ])
  ).length;

test.each([
  ['at once', unreachable],
  ['later', unreachableLater],
])(
  'a number that is refused %s as unreachable gets nothing more after the third time',
  async (_when, number) => {
    const [own, neighbour] = [await anOrganization(), await anOrganization()];
    for (const organization of [own, neighbour, own]) await sendTo(organization, number);
    expect(await suppressionOf(own, number)).toBeNull();
    await sendTo(own, number);
    expect(await isSuppressed(own, number)).toMatchObject({ reason: 'unreachable', address: number });
    expect(await sendTo(own, number)).toMatchObject({
      sent_at: null,
      error: { code: 'unreachable', message: expect.stringContaining('nothing was sent') as string },
    });
    expect(await keptFor(own, number)).toBe(3);
    expect(await suppressionOf(neighbour, number)).toBeNull();
    await sendTo(neighbour, number);
    expect(await keptFor(neighbour, number)).toBe(2);
  },
);

test('refusals of more than 30 days ago do not count', async () => {
  const own = await anOrganization();
  await sendTo(own, unreachable);
  await sendTo(own, unreachable);
  clock.putForward(31 * 24 * hourMs);
  await sendTo(own, unreachable);
  await sendTo(own, unreachable);
  expect(await suppressionOf(own, unreachable)).toBeNull();
  await sendTo(own, unreachable);
  await isSuppressed(own, unreachable);
});

const reported = ({ organizationId }: Organization, messageId: string, status: 'delivered' | 'failed') =>
  createIntake(server.installation)({
    kind: 'status',
    organizationId,
    businessAccountId: organizationId,
    report: {
      providerMessageId: null,
      reference: { organizationId, messageId, ordinal: 0 },
      to: null,
      senderName: null,
      status,
      failure: status === 'failed' ? 'unreachable' : null,
      diagnostic: null,
    },
    person: { waId: null, userId: null },
    finding: status === 'failed' ? { kind: 'unreachable' } : null,
  });

test('a delivery that is reported later ends it, and the number is never called unreachable again', async () => {
  const own = await anOrganization();
  const { id } = await sendTo(own, unreachable);
  await sendTo(own, unreachable);
  await sendTo(own, unreachable);
  await isSuppressed(own, unreachable);
  await reported(own, id, 'delivered');
  await eventually(
    () => suppressionOf(own, unreachable),
    (found) => found === null,
  );
  for (let count = 0; count < 4; count += 1) await sendTo(own, unreachable);
  expect(await suppressionOf(own, unreachable)).toBeNull();
});

test('a report that is repeated counts once', async () => {
  const own = await anOrganization();
  const { id } = await sendTo(own, unreachableLater);
  for (let count = 0; count < 4; count += 1) await reported(own, id, 'failed');
  await sendTo(own, unreachableLater);
  expect(await suppressionOf(own, unreachableLater)).toBeNull();
});

test.each(['What is this?', 'START', 'Help'])('whoever writes %j is reached', async (text) => {
  const own = await anOrganization();
  for (let count = 0; count < 3; count += 1) await sendTo(own, unreachable);
  await isSuppressed(own, unreachable);
  const { organizationId } = own;
  await createIntake(server.installation)({
    kind: 'inbound',
    organizationId,
    businessAccountId: organizationId,
    providerMessageId: 'wamid.1',
    person: { waId: unreachable.slice(1), userId: null },
    text,
    at: new Date(clock.nowMs()),
  });
  await eventually(
    () => suppressionOf(own, unreachable),
    (found) => found === null,
  );
});

test('a STOP, and what the operator suppresses, outlast it; the one until the consent is set, and no creation lifts it', async () => {
  const own = await anOrganization();
  const { organizationId } = own;
  for (let count = 0; count < 3; count += 1) await sendTo(own, unreachable);
  const { id } = await sendTo(own, unreachableLater);
  for (let count = 0; count < 2; count += 1) await sendTo(own, unreachableLater);
  await isSuppressed(own, unreachableLater);
  const { database } = server.installation;
  await addSuppressions(database, server.installation, 'chatapp', [
    { organizationId, address: unreachable, reason: 'unsubscribe' },
    { organizationId, address: unreachableLater, reason: 'operator' },
  ]);
  await reported(own, id, 'delivered');
  expect(await sendTo(own, unreachableLater)).toMatchObject({ error: { code: 'opted_out' } });
  expect(await suppressionOf(own, unreachableLater)).toMatchObject({ reason: 'operator' });
  const refused = await postChatApp(server, { to: unreachable, template_id: own.template }, authorize(own));
  expect(refused.status).toBe(403);
  const contact = await ask<{ id: string }>('POST', '/contacts', { phone_number: unreachable }, own);
  const wanted = { consent: { chatapp: 'subscribed' } };
  const reasons = (await suppressionsOf(own, unreachable)).map(({ reason }) => reason);
  expect(reasons).toEqual(['unreachable', 'unsubscribe']);
  expect((await ask('PATCH', `/contacts/${contact.body.id}`, wanted, own)).status).toBe(200);
  expect(await suppressionOf(own, unreachable)).toBeNull();
});

test('a contact that is said to want messages gets one more try, and is marked again by its refusal', async () => {
  const own = await anOrganization();
  for (let count = 0; count < 3; count += 1) await sendTo(own, unreachable);
  await isSuppressed(own, unreachable);
  const contact = await ask<{ id: string }>('POST', '/contacts', { phone_number: unreachable }, own);
  await ask('PATCH', `/contacts/${contact.body.id}`, { first_name: 'Ann' }, own);
  expect(await suppressionOf(own, unreachable)).not.toBeNull();
  await ask('PATCH', `/contacts/${contact.body.id}`, { consent: { chatapp: 'subscribed' } }, own);
  expect(await suppressionOf(own, unreachable)).toBeNull();
  await sendTo(own, unreachable);
  expect(await keptFor(own, unreachable)).toBe(4);
  await isSuppressed(own, unreachable);
});
