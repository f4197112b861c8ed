/** People of an organization are told by email of what goes wrong: each thing once, one email an hour of a kind. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { AlertRecord } from '../../src/alerts/schema.ts';
import { startAlerts } from '../../src/alerts/jobs.ts';
import type { EmailRecord } from '../../src/email/schema.ts';
import { noHorizon } from '../../src/messages/messages.ts';
import { examineAlerts } from '../../src/doctor/alerts.ts';
import { changePlan, readAlertAddresses } from '../../src/operator/plan.ts';
import { createWaker } from '../../src/platform/queue/wake.ts';
import { createEventDescribers } from '../../src/roles/event-describers.ts';
import { type EventType, logEvents } from '../../src/webhooks/webhooks.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  type Sender,
  send,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { startWebhookReceiver, type WebhookReceiver, writeAnswer } from '../support/webhook-receiver.ts';

type Organization = Sender & { organizationId: string; domain: string };

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;

let server: TestServer;
let clock: ShiftedClock;
let dns: TestDnsServer;
let receiver: WebhookReceiver;
/** Sends in the name of the installation. */
let operator: Organization;
/** As on a second node. */
let otherNode: { stop: () => Promise<void> };

beforeAll(async () => {
  dns = await startDnsServer();
  clock = createShiftedClock();
  server = await startTestServer({
    worker: true,
    clock,
    dnsServers: [dns.address],
    alertsFrom: { address: 'alerts@operator.example', domain: 'operator.example' },
    providerSettings: { POSTILLION_SANDBOX_REVIEW_MS: '0' },
  });
  operator = await anOrganization('operator.example');
  receiver = await startWebhookReceiver();
  const { installation } = server;
  otherNode = startAlerts({
    ...installation,
    describers: createEventDescribers({ ...installation, readHorizon: () => Promise.resolve(noHorizon) }),
    alertsFrom: installation.config.alertsFrom,
    onQueued: createWaker(installation, 'deliveries'),
  });
});
afterAll(async () => {
  await otherNode.stop();
  await receiver.stop();
  await server.stop();
  await dns.stop();
});

async function request<Body>(
  method: string,
  path: string,
  body: object | undefined,
  sender: Sender,
): Promise<Body> {
  const response = await server.request<Body>(method, path, body, authorize(sender));
  if (response.status >= 300) throw new Error(`${method} ${path}: ${response.text}`);
  return response.body;
}

let made = 0;
async function anOrganization(domain = `alerted-${(made += 1)}.example`): Promise<Organization> {
  return { ...(await createSender(server.installation, domain)), domain };
}

const alertsOf = (organization: Organization) =>
  request<AlertRecord>('GET', '/v1/organization/alerts', undefined, organization);

async function alerted(addresses: string[] = ['ops@team.example']): Promise<Organization> {
  const organization = await anOrganization();
  await request('PATCH', '/v1/organization/alerts', { addresses }, organization);
  return organization;
}

type Mail = Pick<EmailRecord, 'id' | 'from'> & {
  subject: string;
  html: string;
  text: string;
  to: (string | null)[];
};

/** The alerts that an organization has sent, the oldest first. */
async function mailOf(organization: Organization): Promise<Mail[]> {
  const { data } = await request<{ data: { id: string }[] }>(
    'GET',
    '/v1/email?category=alert&limit=100',
    undefined,
    organization,
  );
  const mail = data.map(async ({ id }): Promise<Mail> => {
    const record = await request<EmailRecord>('GET', `/v1/email/${id}`, undefined, organization);
    const [row] = await rowsOf<{ content: { html: string; text: string } }>(
      server,
      'select content from message_contents where organization_id = $1 and message_id = $2',
      [organization.organizationId, id],
    );
    return {
      ...record,
      subject: record.subject ?? '',
      ...row!.content,
      to: record.to.map(({ email }) => email),
    };
  });
  return (await Promise.all(mail)).reverse();
}

const mailed = (organization: Organization, count: number) =>
  eventually(
    () => mailOf(organization),
    (mail) => mail.length >= count,
  );

const subjectsOf = (mail: readonly Mail[]) => mail.map(({ subject }) => subject);

/** Once everything that has happened by now is noted or sent. */
async function whenRead(organization: Organization): Promise<void> {
  await eventually(
    () =>
      rowsOf(
        server,
        `select from webhook_outbox where organization_id = $1
         union all
         select from webhook_positions where organization_id = $1 and has_alerts
         union all
         select from alerts where organization_id = $1 and due_at <= $2`,
        [organization.organizationId, new Date(clock.nowMs())],
      ),
    (rows) => rows.length === 0,
  );
}

const happen = (
  organization: Organization,
  type: EventType,
  subjectIds: readonly string[],
  facts: object = {},
) =>
  server.installation.database.transaction((transaction) =>
    logEvents(
      transaction,
      subjectIds.map((subjectId) => ({
        organizationId: organization.organizationId,
        type,
        at: new Date(clock.nowMs()),
        ofCampaign: false,
        subjectId,
        ordinal: null,
        facts,
      })),
    ),
  );

const ids = (count: number) => Array.from({ length: count }, () => server.installation.newId());

test('addresses are read and changed, and those of another organization are theirs', async () => {
  const [own, other] = [await anOrganization(), await anOrganization()];
  const nothing = { object: 'alerts', addresses: [], waiting: [] };
  expect(await alertsOf(own)).toEqual(nothing);
  const change = (addresses: string[]) =>
    request<AlertRecord>('PATCH', '/v1/organization/alerts', { addresses }, own);
  expect(await change(['a@team.example', 'b@team.example'])).toMatchObject({
    addresses: ['a@team.example', 'b@team.example'],
  });
  expect(await request('PATCH', '/v1/organization/alerts', {}, own)).toMatchObject({
    addresses: ['a@team.example', 'b@team.example'],
  });
  expect(await alertsOf(other)).toEqual(nothing);
  expect(await change([])).toEqual(nothing);
  expect(
    await rowsOf(server, 'select from webhook_interests where organization_id = $1', [own.organizationId]),
  ).toEqual([]);
});

test('a suspension is told from a domain of the organization, to all addresses and to nobody else', async () => {
  const own = await alerted(['a@team.example', 'b@team.example']);
  const other = await alerted();
  const silent = await anOrganization();
  for (const { organizationId } of [own, silent])
    await changePlan(server.installation, organizationId, { suspend: ['sms'] });
  const [mail] = await mailed(own, 1);
  expect(mail).toMatchObject({ subject: 'Sending is suspended on SMS', from: `alerts@${own.domain}` });
  expect(mail!.to).toEqual(['a@team.example', 'b@team.example']);
  expect(mail!.text).toContain('The operator has suspended it.');
  expect(mail!.text).toContain(own.organizationId);
  await changePlan(server.installation, own.organizationId, { resume: ['sms'] });
  expect(subjectsOf(await mailed(own, 2))[1]).toBe('Sending is possible again on SMS');
  await whenRead(other);
  expect([await mailOf(other), await mailOf(silent)]).toEqual([[], []]);
});

test('of a kind there is one email an hour, which sums up what has happened since', async () => {
  const own = await alerted();
  const first = ids(1);
  await happen(own, 'domain.degraded', first);
  await mailed(own, 1);
  const later = ids(24);
  await happen(own, 'domain.degraded', later.slice(0, 4));
  await happen(own, 'domain.degraded', later.slice(4));
  await whenRead(own);
  expect(await mailOf(own)).toHaveLength(1);
  const { waiting } = await eventually(
    () => alertsOf(own),
    ({ waiting: [alert] }) => alert?.count === 24,
  );
  expect(waiting).toMatchObject([{ kind: 'domain.degraded', problem: null }]);
  clock.putForward(59 * minuteMs);
  await whenRead(own);
  expect(await mailOf(own)).toHaveLength(1);
  clock.putForward(2 * minuteMs);
  const mail = await mailed(own, 2);
  expect(subjectsOf(mail)).toEqual([
    `Domain ${first[0]} lacks DNS records`,
    `Domain ${later.at(-1)} lacks DNS records, and 23 more`,
  ]);
  // The newest by name, the others by their number.
  expect(later.map((id) => mail[1]!.text.includes(`Domain ${id} lacks`))).toEqual(
    later.map((_, place) => place >= 14),
  );
  expect(mail[1]!.text).toContain('and 14 before these');
  expect((await alertsOf(own)).waiting).toEqual([]);
  clock.putForward(2 * hourMs);
  await whenRead(own);
  expect(await mailOf(own)).toHaveLength(2);
});

test('ten thousand events in an hour are one email, and another organization does not wait for them', async () => {
  const [own, other] = [await alerted(), await alerted()];
  await happen(own, 'campaign.paused', ids(1));
  await mailed(own, 1);
  await happen(own, 'campaign.paused', ids(10_000));
  await happen(other, 'campaign.paused', ids(1));
  await mailed(other, 1);
  await eventually(
    () => alertsOf(own),
    ({ waiting: [alert] }) => alert?.count === 10_000,
  );
  clock.putForward(61 * minuteMs);
  const mail = await mailed(own, 2);
  expect(mail).toHaveLength(2);
  expect(mail[1]!.subject).toMatch(/ is paused, and 9999 more$/u);
  const [row] = await rowsOf<{ bytes: number }>(
    server,
    'select max(pg_column_size(newest))::integer as bytes from alerts where organization_id = $1',
    [own.organizationId],
  );
  expect(row!.bytes).toBeLessThan(5_000);
});

test('the end of a quota and a suspension for email are told by the installation, and not by whoever cannot send', async () => {
  const own = await alerted();
  const before = (await mailOf(operator)).length;
  await changePlan(server.installation, own.organizationId, { quotas: { email: 5 } });
  const to = ['a', 'b', 'c', 'd', 'e'].map((name) => `${name}@delivered.example`);
  await send(server, { from: `news@${own.domain}`, to }, own);
  const mail = (await mailed(operator, before + 2)).slice(before);
  expect(subjectsOf(mail).sort()).toEqual([
    'Four fifths of the monthly quota of email are used',
    'The monthly quota of email is used up',
  ]);
  expect(mail.map(({ from }) => from)).toEqual(['alerts@operator.example', 'alerts@operator.example']);
  expect(mail.find(({ subject }) => subject.startsWith('The'))!.text).toContain('5 of 5 are used.');
  await changePlan(server.installation, own.organizationId, { suspend: ['email'] });
  const [last] = (await mailed(operator, before + 3)).slice(-1);
  expect(last).toMatchObject({ subject: 'Sending is suspended on email' });
  expect(await mailOf(own)).toEqual([]);
});

test('where nobody can send an alert it waits and says why, and is sent when somebody can', async () => {
  const own = await alerted();
  await changePlan(server.installation, operator.organizationId, { suspend: ['email'] });
  await changePlan(server.installation, own.organizationId, { suspend: ['email'] });
  const { waiting } = await eventually(
    () => alertsOf(own),
    ({ waiting: [alert] }) => (alert?.problem ?? null) !== null,
  );
  expect(waiting).toMatchObject([{ kind: 'organization.sending_suspended', count: 1, problem: 'suspended' }]);
  await changePlan(server.installation, operator.organizationId, { resume: ['email'] });
  await changePlan(server.installation, own.organizationId, { resume: ['email'] });
  expect(subjectsOf(await mailed(own, 2)).sort()).toEqual([
    'Sending is possible again on email',
    'Sending is suspended on email',
  ]);
  expect((await alertsOf(own)).waiting).toEqual([]);
});

test('a domain that lacks records is told, and not from that domain', async () => {
  const own = await alerted();
  const [row] = await rowsOf<{ id: string }>(
    server,
    `update domains set next_check_at = null where organization_id = $1 returning id`,
    [own.organizationId],
  );
  await rowsOf(server, 'update domains set degraded_since = $2 where organization_id = $1', [
    own.organizationId,
    new Date(clock.nowMs()),
  ]);
  const before = (await mailOf(operator)).length;
  await happen(own, 'domain.degraded', [row!.id]);
  const [mail] = (await mailed(operator, before + 1)).slice(before);
  expect(mail!.subject).toBe(`Domain ${own.domain} lacks DNS records`);
  expect(mail!.text).toContain(`GET /v1/email/domains/${row!.id}`);
});

test('a template that is rejected is told with its name and the reason', async () => {
  const own = await alerted();
  const { id } = await request<{ id: string }>(
    'POST',
    '/v1/chatapp/templates',
    {
      name: 'please_reject',
      language: 'en_US',
      category: 'utility',
      components: [{ type: 'body', text: 'Hello.' }],
    },
    own,
  );
  const [mail] = await mailed(own, 1);
  expect(mail!.subject).toBe('Template please_reject was rejected');
  expect(mail!.text).toContain(id);
});

test('a campaign that is paused is told with its name, whatever that is', async () => {
  const own = await alerted();
  const name = 'Sale <b>"50 %"</b> {{first_name}}\u2028\u202eBcc: x@evil.example';
  const campaign = await request<{ id: string }>(
    'POST',
    '/v1/email/campaigns',
    { name, from: `news@${own.domain}`, from_name: 'Acme', subject: 'News', html: '<p>News</p>' },
    own,
  );
  await happen(own, 'campaign.paused', [campaign.id], { pause_reason: 'quota_exceeded' });
  const [mail] = await mailed(own, 1);
  expect(mail!.subject).toBe('Campaign Sale <b>"50 %"</b> {{first_name}} Bcc: x@evil.example is paused');
  expect(mail!.html).toContain('Sale &lt;b&gt;&quot;50 %&quot;&lt;/b&gt; {{first_name}} Bcc: x@evil.example');
  expect(mail!.html).not.toContain('<b>');
  expect(mail!.text).toContain('Reason: quota_exceeded');
  expect(mail!.to).toEqual(['ops@team.example']);
});

test('an endpoint that fails is told after a quarter of an hour, a day and four days, and when it is disabled', async () => {
  const own = await alerted();
  receiver.answerBy((socket) => socket.write(writeAnswer(500)));
  const url = `http://127.0.0.1:${receiver.port}/secret-path`;
  const webhook = await request<{ id: string }>(
    'POST',
    '/v1/webhooks',
    { kind: 'url', url, events: ['contact.*'], concurrency: 1 },
    own,
  );
  await request('POST', '/v1/contacts', { email: 'ann@example.com' }, own);
  const isWatched = () =>
    eventually(
      () => rowsOf(server, 'select from alert_watches where organization_id = $1', [own.organizationId]),
      (rows) => rows.length === 1,
    );
  await isWatched();
  await whenRead(own);
  expect(await mailOf(own)).toEqual([]);
  const said = [];
  for (const forwardMs of [16 * minuteMs, 24 * hourMs, 3 * 24 * hourMs]) {
    clock.putForward(forwardMs);
    said.push((await mailed(own, said.length + 1)).at(-1)!.subject);
  }
  expect(said).toEqual(
    ['15 minutes', '24 hours', '4 days'].map(
      (duration) => `Webhook 127.0.0.1:${receiver.port} has been failing for ${duration}`,
    ),
  );
  for (let days = 0; days < 3; days += 1) {
    clock.putForward(25 * hourMs);
    await eventually(
      () =>
        rowsOf<{ next_try_at: Date | null; status: string }>(
          server,
          `select c.next_try_at, w.status from webhook_cursors c join webhooks w on w.id = c.webhook_id
           where w.id = $1`,
          [webhook.id],
        ),
      ([row]) => row!.status === 'disabled' || row!.next_try_at!.getTime() > clock.nowMs(),
    );
  }
  const mail = await mailed(own, 4);
  expect(mail.at(-1)!.subject).toBe(`Webhook 127.0.0.1:${receiver.port} is disabled`);
  expect(mail.map(({ text }) => text.includes('secret-path'))).toEqual([false, false, false, false]);
});

test('one that works again is not told, and one that fails again is looked at anew', async () => {
  const own = await alerted();
  receiver.answerBy((socket) => socket.write(writeAnswer(500)));
  const url = `http://127.0.0.1:${receiver.port}/`;
  const { id } = await request<{ id: string }>(
    'POST',
    '/v1/webhooks',
    { kind: 'url', url, events: ['contact.*'], concurrency: 1, description: 'Back office' },
    own,
  );
  const status = (wanted: string) =>
    eventually(
      () => request<{ status: string }>('GET', `/v1/webhooks/${id}`, undefined, own),
      (webhook) => webhook.status === wanted,
    );
  await request('POST', '/v1/contacts', { email: 'ann@example.com' }, own);
  await status('failing');
  for (let flips = 0; flips < 3; flips += 1) {
    clock.putForward(8 * minuteMs);
    receiver.answerBy((socket) => socket.write(writeAnswer(200)));
    await request('POST', `/v1/webhooks/${id}/enable`, {}, own);
    await eventually(
      () => request<{ backlog: number; status: string }>('GET', `/v1/webhooks/${id}`, undefined, own),
      (webhook) => webhook.backlog === 0 && webhook.status === 'enabled',
    );
    receiver.answerBy((socket) => socket.write(writeAnswer(500)));
    await request('POST', '/v1/contacts', { email: `ann-${flips}@example.com` }, own);
    await status('failing');
    await whenRead(own);
  }
  expect(await mailOf(own)).toEqual([]);
  clock.putForward(16 * minuteMs);
  expect(subjectsOf(await mailed(own, 1))).toEqual(['Webhook Back office has been failing for 15 minutes']);
});

test('an alert that bounces is no reason for another, and its address is suppressed as any other', async () => {
  const own = await alerted(['bounced@simulator.postillion.test']);
  await happen(own, 'campaign.paused', ids(1));
  const [mail] = await mailed(own, 1);
  await eventually(
    () => request<{ status: string }>('GET', `/v1/email/${mail!.id}`, undefined, own),
    ({ status }) => status === 'failed',
  );
  clock.putForward(3 * hourMs);
  await whenRead(own);
  expect(await mailOf(own)).toHaveLength(1);
});

test('nothing is told of what happened before there was anybody to be told', async () => {
  const own = await anOrganization();
  await request('POST', '/v1/webhooks', { kind: 'poll', events: ['*'] }, own);
  await happen(own, 'campaign.paused', ids(3));
  await whenRead(own);
  await request('PATCH', '/v1/organization/alerts', { addresses: ['ops@team.example'] }, own);
  await happen(own, 'campaign.paused', ids(1));
  const [mail] = await mailed(own, 1);
  expect(mail!.subject).toMatch(/ is paused$/u);
});

test('what webhooks want and what alerts want are apart', async () => {
  const own = await alerted();
  const wants = async () =>
    (
      await rowsOf<{ type_pattern: string }>(
        server,
        `select distinct type_pattern from webhook_interests where organization_id = $1 order by 1`,
        [own.organizationId],
      )
    ).map((row) => row.type_pattern);
  const before = await wants();
  const { id } = await request<{ id: string }>(
    'POST',
    '/v1/webhooks',
    { kind: 'poll', events: ['campaign.paused', 'sms.*'] },
    own,
  );
  expect(await wants()).toEqual([...before, 'sms.*'].sort());
  await request('PATCH', '/v1/organization/alerts', { addresses: [] }, own);
  expect(await wants()).toEqual(['campaign.paused', 'sms.*']);
  await request('PATCH', '/v1/organization/alerts', { addresses: ['ops@team.example'] }, own);
  await request('DELETE', `/v1/webhooks/${id}`, undefined, own);
  expect(await wants()).toEqual(before);
});

test('an alert whose transaction breaks off is sent once when it does not any more', async () => {
  const own = await alerted();
  await rowsOf(
    server,
    `create function break_off() returns trigger language plpgsql as $$
     begin
       perform nextval('broken_off');
       raise exception 'broken off';
     end
     $$`,
  );
  await rowsOf(server, 'create sequence broken_off');
  await rowsOf(server, 'grant usage on sequence broken_off to public');
  await rowsOf(
    server,
    `create trigger broken_off before update of last_told_at on alerts
     for each row when (new.organization_id = '${own.organizationId}') execute function break_off()`,
  );
  await happen(own, 'campaign.paused', ids(1));
  // Once on each node, and no part of it stays.
  for (let times = 0; times < 2; times += 1) {
    await eventually(
      () => rowsOf<{ last_value: number }>(server, 'select last_value from broken_off where is_called'),
      ([row]) => (row?.last_value ?? 0) > times,
    );
    clock.putForward(11_000);
  }
  expect(await mailOf(own)).toEqual([]);
  expect((await alertsOf(own)).waiting).toMatchObject([{ kind: 'campaign.paused', count: 1 }]);
  await rowsOf(server, 'drop trigger broken_off on alerts');
  clock.putForward(minuteMs);
  await mailed(own, 1);
  await whenRead(own);
  expect(await mailOf(own)).toHaveLength(1);
});

test('the doctor says whether the installation can alert, and who waits in vain', async () => {
  const { installation } = server;
  const found = async (alertsFrom = installation.config.alertsFrom) =>
    (await examineAlerts({ ...installation, config: { ...installation.config, alertsFrom } })).map(
      ({ level, found: what }) => `${level}: ${what}`,
    );
  expect(await found()).toEqual(['ok: sent from alerts@operator.example where nobody else can']);
  expect(await found({ address: 'alerts@nobodys.example', domain: 'nobodys.example' })).toEqual([
    'problem: nothing can be sent from alerts@nobodys.example: nobodys.example is verified for no organization',
  ]);
  const own = await alerted();
  for (const { organizationId } of [operator, own])
    await changePlan(installation, organizationId, { suspend: ['email'] });
  await eventually(
    () => alertsOf(own),
    ({ waiting: [alert] }) => alert?.problem === 'suspended',
  );
  expect(await found()).toEqual(['warning: 1 organization has alerts that cannot be sent, and wait']);
  for (const { organizationId } of [operator, own])
    await changePlan(installation, organizationId, { resume: ['email'] });
});

test('the operator gives addresses as a list, or none', () => {
  expect(readAlertAddresses('a@team.example, b@team.example,a@team.example')).toEqual([
    'a@team.example',
    'b@team.example',
  ]);
  expect(readAlertAddresses('none')).toEqual([]);
  expect(readAlertAddresses('a@team.example, ops')).toContain('"ops" is no address');
  const many = Array.from({ length: 11 }, (_, place) => `ops-${place}@team.example`).join(',');
  expect(readAlertAddresses(many)).toContain('10 addresses at most');
});
