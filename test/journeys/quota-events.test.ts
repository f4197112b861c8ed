/** Programs are told when most of a month's quota is used, and when all of it is: each once, whoever uses it and how. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { changePlan } from '../../src/operator/plan.ts';
import { startTellingOfQuotas } from '../../src/messages/messages.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, anSms } from '../support/sms-journey.ts';

type Organization = Sender & { organizationId: string; domain: string };
type Told = {
  type: string;
  data: { id: string; channel: string; month: string; quota: number; used: number };
};

let server: TestServer;
let clock: ShiftedClock;
/** Has a worker beside those of the server, as on another node. */
let otherNode: { stop: () => Promise<void> };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
  otherNode = startTellingOfQuotas(server.installation);
});
afterAll(async () => {
  await otherNode.stop();
  await server.stop();
});

async function request<Body>(method: string, path: string, body: object | undefined, sender: Sender) {
  return server.request<Body>(method, path, body, authorize(sender));
}

let made = 0;
async function anOrganization(quotas: Record<string, number>): Promise<Organization> {
  const domain = `quota-${(made += 1)}.example`;
  const organization = { ...(await createSender(server.installation, domain)), domain };
  await changePlan(server.installation, organization.organizationId, {
    quotas,
    requestsPerWindow: 1_000_000,
  });
  await request('POST', '/v1/webhooks', { kind: 'poll', events: ['organization.*'] }, organization);
  return organization;
}

const sendTo = (organization: Organization, count: number) =>
  request(
    'POST',
    '/v1/email/send',
    {
      from: `news@${organization.domain}`,
      from_name: 'Acme',
      subject: 'News',
      text: 'News.',
      to: Array.from({ length: count }, (_, place) => `reader-${place}@delivered.example`),
    },
    organization,
  );

/** Of an organization, once a later event than all of them is in its log. */
async function toldOf(organization: Organization): Promise<string[]> {
  await eventually(
    () => rowsOf(server, 'select from quota_usage where crossed_percent > told_percent'),
    (untold) => untold.length === 0,
  );
  await changePlan(server.installation, organization.organizationId, { suspend: ['push'] });
  await changePlan(server.installation, organization.organizationId, { resume: ['push'] });
  const resumed = marks.get(organization) ?? 0;
  marks.set(organization, resumed + 1);
  const page = await eventually(
    () => request<{ data: Told[] }>('GET', '/v1/webhook-events?limit=200', undefined, organization),
    ({ body }) => body.data.filter(({ type }) => type === 'organization.sending_resumed').length > resumed,
  );
  return page.body.data
    .filter(({ type }) => type.startsWith('organization.quota'))
    .map(({ type, data }) => `${type.slice(13)} ${data.channel} ${data.used}/${data.quota}`);
}
const marks = new Map<Organization, number>();

test('with four fifths of it used it is told that the quota is, and with all of it that it is reached', async () => {
  const [own, other] = [await anOrganization({ email: 10 }), await anOrganization({ email: 10 })];
  await sendTo(own, 7);
  await sendTo(other, 1);
  expect(await toldOf(own)).toEqual([]);
  await sendTo(own, 1);
  expect(await toldOf(own)).toEqual(['quota_warning email 8/10']);
  await sendTo(own, 1);
  expect(await toldOf(own)).toEqual(['quota_warning email 8/10']);
  await sendTo(own, 1);
  const all = ['quota_warning email 8/10', 'quota_reached email 10/10'];
  expect(await toldOf(own)).toEqual(all);
  expect((await sendTo(own, 1)).status).toBe(429);
  expect(await toldOf(own)).toEqual(all);
  expect(await toldOf(other)).toEqual([]);
});

test('it is told of each month and each channel', async () => {
  const own = await anOrganization({ email: 5, sms: 5 });
  await addApprovedSender(server, '14155550101', own.organizationId);
  await sendTo(own, 5);
  expect(await toldOf(own)).toEqual(['quota_warning email 5/5', 'quota_reached email 5/5']);
  for (let sent = 0; sent < 4; sent += 1)
    await request('POST', '/v1/sms/send', anSms({ from: '14155550101', to: '+14155550199' }), own);
  expect((await toldOf(own)).slice(2)).toEqual(['quota_warning sms 4/5']);
  clock.putForward(32 * 86_400_000);
  await sendTo(own, 4);
  expect((await toldOf(own)).slice(3)).toEqual(['quota_warning email 4/5']);
});

test('however many use it at once, it is told of once', async () => {
  const organizations = await Promise.all([1, 2, 3].map(() => anOrganization({ email: 40 })));
  const statuses = await Promise.all(
    Array.from({ length: 150 }, async (_, place) => (await sendTo(organizations[place % 3]!, 1)).status),
  );
  expect(statuses.filter((status) => status === 202)).toHaveLength(120);
  for (const organization of organizations) {
    const told = await toldOf(organization);
    expect(told.map((each) => each.split(' ')[0])).toEqual(['quota_warning', 'quota_reached']);
  }
});

test('a plan that changes is looked at at once, and one that has room again may be told of again', async () => {
  const own = await anOrganization({ email: 100 });
  const change = (email: number | null) =>
    changePlan(server.installation, own.organizationId, { quotas: { email } });
  await sendTo(own, 9);
  expect(await toldOf(own)).toEqual([]);
  await change(10);
  expect(await toldOf(own)).toEqual(['quota_warning email 9/10']);
  await change(9);
  expect((await toldOf(own)).slice(1)).toEqual(['quota_reached email 9/9']);
  await change(20);
  await sendTo(own, 7);
  expect((await toldOf(own)).slice(2)).toEqual(['quota_warning email 16/20']);
  await change(null);
  await sendTo(own, 20);
  expect(await toldOf(own)).toHaveLength(3);
  // What was sent without a quota counts.
  await change(45);
  expect((await toldOf(own)).slice(3)).toEqual(['quota_warning email 36/45']);
  await sendTo(own, 9);
  expect((await toldOf(own)).slice(4)).toEqual(['quota_reached email 45/45']);
});

test('a quota of nothing is no news', async () => {
  const own = await anOrganization({ email: 0 });
  expect((await sendTo(own, 1)).status).toBe(429);
  expect(await toldOf(own)).toEqual([]);
});

test('what is sent beyond a quota has it told as well', async () => {
  const own = await anOrganization({ sms: 5 });
  const use = (shard: number, used: number) =>
    rowsOf(
      server,
      `insert into quota_usage as u (organization_id, channel, month, shard, used)
       values ($1, 'sms', date_trunc('month', $2::timestamptz at time zone 'utc')::date, $3, $4)
       on conflict (organization_id, channel, month, shard) do update set used = u.used + excluded.used`,
      [own.organizationId, new Date(clock.nowMs()), shard, used],
    );
  // As answers to STOP are counted.
  await use(2, 3);
  await use(3, 1);
  expect(await toldOf(own)).toEqual(['quota_warning sms 4/5']);
  await use(3, 1);
  expect((await toldOf(own)).slice(1)).toEqual(['quota_reached sms 5/5']);
});
