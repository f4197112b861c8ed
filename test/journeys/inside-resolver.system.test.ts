/**
 * A relay on a network whose name servers know the names of that network alone, which is how many companies have it: the
 * relay knows where to deliver, and this machine does not. Whole programs, with a relay and name servers on
 * loopback.
 */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { afterEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { eventually } from '../support/email-journey.ts';
import { scrape } from '../support/metrics.ts';
import { type Program, servedUrl, usePrograms } from '../support/programs.ts';
import { createSender, startTestServer } from '../support/server.ts';
import { type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const ends: (() => Promise<unknown>)[] = [];
let address: DatabaseAddress;

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

type Network = { relay: SmtpSink; dns: TestDnsServer };

async function arrange(): Promise<Network> {
  const relay = await startSmtpSink({ keepContent: true });
  ends.push(relay.close);
  const dns = await startDnsServer();
  ends.push(dns.stop);
  // As Active Directory does it: the network's own names, and NXDOMAIN for all others.
  dns.set('files.corp.example', { A: ['10.0.0.7'] });
  return { relay, dns };
}

const settingsOf = ({ relay, dns }: Network) => ({
  ...{ PORT: '0', LOG_LEVEL: 'info', POSTILLION_PROCESSES: '1', POSTILLION_METRICS_PORT: '0' },
  DATABASE_URL: databaseUrlOf(address),
  POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
  POSTILLION_SMTP_URL: `smtp://127.0.0.1:${relay.port}`,
  POSTILLION_DNS_SERVERS: dns.address,
});

const start = (network: Network) => programs.start(settingsOf(network), ['serve']);

const urlOf = async ({ untilSaid }: Program) => (await untilSaid('output', servedUrl))![1]!;
const metricsOf = async ({ untilSaid }: Program) =>
  scrape((await untilSaid('errors', /"url":"(http:\/\/[^"]+)","msg":"metrics are served"/))![1]!);

async function stop({ child, ended }: Program): Promise<void> {
  child.kill('SIGTERM');
  await ended;
}

/** Two organizations, whose keys are used with the program; nothing is kept of the server that made them. */
async function makeSenders(): Promise<{ key: string; from: string }[]> {
  const server = await startTestServer({ database: address, madeByHand: ['leases'] });
  ends.push(server.stop);
  const other = await createSender(server.installation, 'other.example');
  return [
    { key: server.key, from: 'hello@postillion.test' },
    { key: other.key, from: 'hello@other.example' },
  ];
}

async function ask<Body>(url: string, { key }: { key: string }, route: string, body?: object): Promise<Body> {
  const response = await fetch(`${url}/v1/${route}`, {
    method: body === undefined ? 'GET' : 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return (await response.json()) as Body;
}

async function sendTo(url: string, sender: { key: string; from: string }, to: string): Promise<string> {
  const { from } = sender;
  const email = { from, from_name: 'Hello', to: [to], subject: 'Hello', text: 'Hello' };
  return (await ask<{ id: string }>(url, sender, 'email/send', email)).id;
}

type Asked = { status: string; to: { drop_reason: string | null }[] };

/** What became of its one recipient: why it was dropped, or else the status of the message. */
async function whenEnded(url: string, sender: { key: string }, id: string): Promise<string> {
  const { status, to } = await eventually(
    () => ask<Asked>(url, sender, `email/${id}`),
    (email) => email.status !== 'queued' && email.status !== 'sent',
  );
  return to[0]?.drop_reason ?? status;
}

/** What a rule of the alerts is about: the names of metrics in its expression. */
function watchedBy(alert: string): string[] {
  const rules = readFileSync(
    path.resolve(import.meta.dirname, '../../packaging/prometheus/alerts.yml'),
    'utf8',
  );
  const [, rule = ''] = rules.split(`- alert: ${alert}\n`);
  const [expression = ''] = rule.split('labels:');
  return [...new Set(expression.match(/postillion_\w+/g))];
}

const findingsOf = (output: string) =>
  (JSON.parse(output) as { findings: { level: string; subject: string; found: string }[] }).findings;

test('all mail reaches the relay, nobody is dropped, and readiness, doctor and metrics tell of the name servers', async () => {
  const network = await arrange();
  const senders = await makeSenders();
  const program = start(network);
  const url = await urlOf(program);
  const recipients = ['ann@customer.example', 'ben@gmail.com', 'cem@nowhere.example'];
  for (const sender of senders) {
    for (const recipient of recipients) {
      const id = await sendTo(url, sender, recipient);
      expect([recipient, await whenEnded(url, sender, id)]).toEqual([recipient, 'delivered']);
    }
  }
  expect(network.relay.messages.flatMap((message) => message.recipients).toSorted()).toEqual(
    [...recipients, ...recipients].toSorted(),
  );

  const readiness = await eventually(
    async () =>
      (await (await fetch(`${url}/readyz`)).json()) as { degradations?: { kind: string; message: string }[] },
    ({ degradations = [] }) => degradations.some(({ kind }) => kind === 'recipients_unchecked'),
  );
  expect(readiness).toMatchObject({ status: 'ready' });

  const doctor = await programs.run(settingsOf(network), 'doctor', '--json');
  expect(doctor.exitCode).toBe(1);
  expect(findingsOf(doctor.output).filter(({ subject }) => subject === 'recipients')).toEqual([
    expect.objectContaining({ level: 'problem', found: expect.stringContaining('gmail.com') as unknown }),
  ]);

  const metrics = await metricsOf(program);
  expect(watchedBy('PostillionRecipientsUnchecked')).toEqual(['postillion_recipients_unchecked']);
  expect(metrics.sum('postillion_recipients_unchecked')).toBe(1);
  expect(metrics.sum('postillion_drops_total') ?? 0).toBe(0);
  await stop(program);
});

test('with name servers that know the outside, a domain that does not exist is dropped, and the alert sees it', async () => {
  const network = await arrange();
  network.dns.set('gmail.com', { MX: [[10, 'mx.gmail.example']] });
  network.dns.set('mx.gmail.example', { A: ['127.0.0.2'] });
  const [sender] = await makeSenders();
  const program = start(network);
  const url = await urlOf(program);
  expect(await whenEnded(url, sender!, await sendTo(url, sender!, 'ben@gmail.com'))).toBe('delivered');
  expect(await whenEnded(url, sender!, await sendTo(url, sender!, 'cem@nowhere.example'))).toBe(
    'invalid_domain',
  );
  expect(network.relay.messages.flatMap((message) => message.recipients)).toEqual(['ben@gmail.com']);
  const metrics = await metricsOf(program);
  expect(metrics.sum('postillion_recipients_unchecked')).toBe(0);
  expect(metrics.sum('postillion_drops_total', { channel: 'email', reason: 'invalid_domain' })).toBe(1);
  expect(watchedBy('PostillionRecipientsDropped')).toEqual([
    'postillion_drops_total',
    'postillion_outcomes_total',
  ]);
  expect(metrics.sum('postillion_outcomes_total', { channel: 'email' })).toBeGreaterThan(0);
  const doctor = await programs.run(settingsOf(network), 'doctor', '--json');
  expect(findingsOf(doctor.output)).toContainEqual(
    expect.objectContaining({ level: 'ok', subject: 'recipients' }),
  );
  await stop(program);
});
