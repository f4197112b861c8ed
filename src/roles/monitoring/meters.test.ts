/** What the metrics of a worker say, against a recount of the rows that it has written. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startDnsServer } from '../../../test/support/dns-server.ts';
import { eventually, rowsOf, send } from '../../../test/support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../../../test/support/server.ts';
import { addApprovedSender, sendSms } from '../../../test/support/sms-journey.ts';
import { wellKnownDomains } from '../../email/email.ts';
import { createResolver } from '../../platform/dns/dns.ts';
import { startWorker } from '../worker.ts';
import { createConditionWatch } from './monitoring.ts';
import { composeMetrics, createMeters, type Measured } from './meters.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

const sumOf = (measured: readonly Measured[], name: string, labels: Readonly<Record<string, string>> = {}) =>
  (measured.find((metric) => metric.name === name)?.values ?? [])
    .filter(({ labels: has }) => Object.entries(labels).every(([label, value]) => has[label] === value))
    .reduce((sum, { value }) => sum + value, 0);

test('outcomes are counted as often as they were written, of more messages than one transaction takes', async () => {
  const other = await createSender(server.installation, 'other.test');
  await addApprovedSender(server, 'Acme');
  const simulated = (local: string) => `${local}@simulator.postillion.test`;
  await Promise.all([
    ...Array.from({ length: 550 }, () => send(server)),
    send(server, { to: ['a@example.com', simulated('bounced'), simulated('softbounce')] }),
    send(server, { from: 'a@other.test', to: ['a@example.com', simulated('deferred')] }, other),
    // Nothing is sent to addresses to be thrown away.
    send(server, { to: ['a@mailinator.com', 'b@mailinator.com'] }),
    sendSms(server),
  ]);
  const meters = createMeters(server.installation, { role: 'worker', process: 1 });
  const worker = await startWorker({ ...server.installation, observers: meters.observers });
  await eventually(
    () => rowsOf(server, 'select from delivery_queue where attempts = 0'),
    (jobs) => jobs.length === 0,
  );
  await worker.stop();
  const measured = await meters.measure();
  const rows = await rowsOf<{ channel: string; status: string; recipients: number; handed_off: number }>(
    server,
    `select m.channel, r.status, count(*)::integer as recipients,
       count(r.handed_off_at)::integer as handed_off
     from recipients r
     join messages m on m.organization_id = r.organization_id and m.id = r.message_id
     where r.organization_id = any ($1) and r.drop_reason is null
     group by m.channel, r.status`,
    [[server.organizationId, other.organizationId]],
  );
  // Of texts a receipt may have raised the status since.
  const emails = rows.filter(({ channel }) => channel === 'email');
  expect(emails.map(({ status }) => status).toSorted()).toEqual(['bounced', 'delayed', 'delivered']);
  for (const { channel, status, recipients } of emails) {
    expect([status, sumOf(measured, 'postillion_outcomes_total', { channel, outcome: status })]).toEqual([
      status,
      recipients,
    ]);
  }
  const all = rows.reduce((sum, { recipients }) => sum + recipients, 0);
  const dropped = 2;
  expect(sumOf(measured, 'postillion_outcomes_total')).toBe(all + dropped);
  expect(sumOf(measured, 'postillion_attempts_total')).toBe(all + dropped);
  // One that was put off before its content was sent was not.
  expect(sumOf(measured, 'postillion_hand_offs_total')).toBe(
    rows.reduce((sum, { handed_off: handedOff }) => sum + handedOff, 0),
  );
  expect(sumOf(measured, 'postillion_ambiguities_total')).toBe(0);
  const drops = await rowsOf<{ drop_reason: string }>(
    server,
    'select drop_reason from recipients where organization_id = any ($1) and drop_reason is not null',
    [[server.organizationId, other.organizationId]],
  );
  expect(drops.map(({ drop_reason: reason }) => reason).toSorted()).toEqual(['disposable', 'disposable']);
  expect(sumOf(measured, 'postillion_drops_total', { channel: 'email', reason: 'disposable' })).toBe(dropped);
  expect(sumOf(measured, 'postillion_drops_total')).toBe(dropped);
});

test('name servers that deny large mail domains are told, where recipients are checked by them', async () => {
  const dns = await startDnsServer();
  const resolver = createResolver({ servers: [dns.address], clock: server.installation.clock });
  const askedBy = async (areDomainsLookedUp: boolean) => {
    const { installation } = server;
    const tools = { ...installation, resolver, config: { ...installation.config, areDomainsLookedUp } };
    const measured = await createMeters(tools, { role: 'worker', process: 1 }).measure();
    const told = await createConditionWatch(tools)();
    const isTold = told.some(({ kind }) => kind === 'recipients_unchecked');
    return [sumOf(measured, 'postillion_recipients_unchecked'), isTold];
  };
  expect(await askedBy(true)).toEqual([1, true]);
  expect(await askedBy(false)).toEqual([0, false]);
  for (const domain of wellKnownDomains) dns.fail(domain, 'SERVFAIL');
  expect(await askedBy(true), 'where they do not answer').toEqual([0, false]);
  dns.set('yahoo.com', { A: ['192.0.2.1'] });
  expect(await askedBy(true)).toEqual([0, false]);
  resolver.close();
  await dns.stop();
});

test('what several processes measure is one text, in which each metric is declared once', async () => {
  const processes = [1, 2].map((process) => createMeters(server.installation, { role: 'api', process }));
  for (const { observers } of processes)
    observers.onAccepted({ channel: 'email', messages: 2, recipients: 5 });
  const text = await composeMetrics(await Promise.all(processes.map(({ measure }) => measure())));
  expect(text.match(/^postillion_recipients_accepted_total\{.*$/gm)).toEqual([
    'postillion_recipients_accepted_total{channel="email",process="1"} 5',
    'postillion_recipients_accepted_total{channel="email",process="2"} 5',
  ]);
  const declared = [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  expect(new Set(declared).size).toBe(declared.length);
});

test('a request is counted under the pattern of its route, whatever its method and path', async () => {
  const { observers, measure } = createMeters(server.installation, { role: 'api', process: 1 });
  for (const method of ['GET', 'PURGE', 'M-SEARCH'])
    observers.onAnswered({ method, route: 'none', status: 404, durationMs: 3 });
  observers.onAnswered({ method: 'GET', route: '/v1/email/:id', status: null, durationMs: 30_000 });
  const measured = await measure();
  const { values } = measured.find(({ name }) => name === 'postillion_http_requests_total')!;
  expect(values.map(({ labels, value }) => [labels.method, labels.route, labels.status, value])).toEqual([
    ['any', 'none', '404', 3],
    ['GET', '/v1/email/:id', 'left', 1],
  ]);
});
