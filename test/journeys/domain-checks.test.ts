/** Checks that are asked for: by the API, which may not write what they find, of workers, whoever of them is there. */
import { afterAll, afterEach, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest';
import { startDomainChecks } from '../../src/domains/jobs.ts';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { sealKeyPair } from '../../src/domains/key-pair.ts';
import { insertDomain, takeAskedDomains } from '../../src/domains/store.ts';
import { now, systemClock } from '../../src/platform/clock.ts';
import { createResolver } from '../../src/platform/dns/dns.ts';
import { nextDkimKeyPair } from '../support/dkim-key-pairs.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

type Owner = Sender & { organizationId: string };

let server: TestServer;
let dns: TestDnsServer;
let clock: ShiftedClock;
let other: Owner;
let workers: ReturnType<typeof startDomainChecks>[] = [];
let releases: (() => void)[] = [];

beforeAll(async () => {
  dns = await startDnsServer();
  clock = createShiftedClock();
  server = await startTestServer({ clock, dnsServers: [dns.address] });
  other = await createSender(server.installation, 'elsewhere.example');
});
afterAll(async () => {
  await server.stop();
  await dns.stop();
});
beforeEach(() => {
  dns.queries = [];
});
afterEach(async () => {
  for (const release of releases) release();
  releases = [];
  await Promise.all(workers.map((worker) => worker.stop()));
  workers = [];
  // What was left behind would be checked by the worker of the next test.
  await rowsOf(server, `delete from domains where status = 'pending'`);
  expect(await eventually(listListeners, (listeners) => listeners.length === 0)).toEqual([]);
});

function startWorker(resolver = server.installation.resolver): void {
  workers.push(startDomainChecks({ ...server.installation, resolver }));
}

/** One that asks each question once, however long the answer is held. */
function startPatientWorker(): void {
  const resolver = createResolver({ servers: [dns.address], clock: systemClock, timeoutMs: 600_000 });
  onTestFinished(() => {
    resolver.close();
  });
  startWorker(resolver);
}

/** With a ready key: making one takes longer than all else. Its periodic check would be one more. */
async function register(name: string, owner: Owner = server): Promise<DomainRecord> {
  const { installation } = server;
  const { id } = await insertDomain(installation.database, {
    organizationId: owner.organizationId,
    id: installation.newId(),
    name,
    returnPathSubdomain: 'send',
    trackingSubdomain: null,
    openTracking: false,
    clickTracking: false,
    dkim: sealKeyPair(installation, nextDkimKeyPair()),
    nextCheckAt: null,
    createdAt: now(clock),
  });
  return read(id, owner);
}

const read = async (id: string, sender?: Sender) =>
  (await server.request<DomainRecord>('GET', `/v1/email/domains/${id}`, undefined, authorize(sender))).body;

/** Resolves once the request has asked; `answer` comes when it is answered. */
async function ask({ id }: DomainRecord, sender?: Sender) {
  const [before] = await countAsked(id);
  const answer = server.request<DomainRecord & ErrorBody>(
    'POST',
    `/v1/email/domains/${id}/verify`,
    undefined,
    authorize(sender),
  );
  await eventually(
    () => countAsked(id),
    ([row]) => row === undefined || row.checks_asked > before!.checks_asked,
  );
  return { answer };
}

const countAsked = (id: string) =>
  rowsOf<{ checks_asked: number }>(server, 'select checks_asked from domains where id = $1', [id]);

const dkimOf = ({ records }: DomainRecord) => records.find(({ record }) => record === 'dkim')!;

function publish(domain: DomainRecord): void {
  const { name, value } = dkimOf(domain);
  dns.set(name, { TXT: [value] });
}

function hold(domain: DomainRecord): () => void {
  const release = dns.hold(dkimOf(domain).name);
  releases.push(release);
  return release;
}

const countLookUps = (domain: DomainRecord) =>
  dns.queries.filter(({ name }) => name === dkimOf(domain).name).length;

const whenLookedUp = (domain: DomainRecord, times = 1) =>
  eventually(
    () => Promise.resolve(countLookUps(domain)),
    (count) => count >= times,
  );

const listListeners = () =>
  rowsOf<{ pid: number }>(
    server,
    `select pid from pg_stat_activity
     where datname = current_database() and application_name = 'postillion-listener' and usename = 'postillion_api'`,
  );

test('a worker that comes later answers, and whoever waits holds no connection of the pool', async () => {
  const [domain, theirs] = [await register('late.example'), await register('theirs.example', other)];
  publish(domain);
  const [own, foreign] = [await ask(domain), await ask(theirs, other)];
  await eventually(
    () => Promise.resolve(server.databaseOfRequests.connections().used),
    (used) => used === 0,
  );
  expect(await eventually(listListeners, (listeners) => listeners.length > 0)).toHaveLength(1);
  startWorker();
  expect(await own.answer).toMatchObject({ status: 200, body: { status: 'verified' } });
  expect(await foreign.answer).toMatchObject({ status: 200, body: { status: 'pending' } });
});

test('without a worker the answer is 503 after 25 seconds, and the check is made once there is one', async () => {
  const domain = await register('alone.example');
  publish(domain);
  const { answer } = await ask(domain);
  clock.putForward(25_000);
  const { status, headers, body } = await answer;
  expect([status, body.name, headers.get('retry-after')]).toEqual([503, 'service_unavailable', '10']);
  expect(body.message).toContain('within 25 seconds');
  expect((await read(domain.id)).last_checked_at).toBeNull();
  startWorker();
  const verified = await eventually(
    () => read(domain.id),
    ({ status: found }) => found === 'verified',
  );
  expect(verified.verified_at).not.toBeNull();
});

test('what was asked during a check is answered by the next one, which all share who asked until it begins', async () => {
  const domain = await register('twice.example');
  startPatientWorker();
  const release = hold(domain);
  const first = await ask(domain);
  await whenLookedUp(domain);
  publish(domain);
  const [second, third] = [await ask(domain), await ask(domain)];
  release();
  expect((await first.answer).body.status).toBe('pending');
  const answers = await Promise.all([second.answer, third.answer]);
  expect(answers.map(({ body }) => body.status)).toEqual(['verified', 'verified']);
  expect(countLookUps(domain)).toBe(2);
});

test('nor does a periodic check answer that began before it was asked', async () => {
  const domain = await register('periodic.example');
  await rowsOf(server, 'update domains set next_check_at = $2 where id = $1', [domain.id, now(clock)]);
  const release = hold(domain);
  startPatientWorker();
  await whenLookedUp(domain);
  publish(domain);
  const { answer } = await ask(domain);
  release();
  expect((await answer).body.status).toBe('verified');
  expect(countLookUps(domain)).toBe(2);
});

test('a look-up of another organization that is under way is not shared', async () => {
  const [domain, theirs] = [await register('shared.example'), await register('shared.example', other)];
  startPatientWorker();
  const dmarc = '_dmarc.shared.example';
  const release = dns.hold(dmarc);
  releases.push(release);
  const before = await ask(theirs, other);
  await whenLookedUp(theirs);
  const after = await ask(domain);
  await whenLookedUp(domain);
  release();
  await Promise.all([before.answer, after.answer]);
  expect(dns.queries.filter(({ name }) => name === dmarc)).toHaveLength(2);
});

test('an organization whose name servers are slow has five checks at once, and delays nobody', async () => {
  startPatientWorker();
  const slow: DomainRecord[] = [];
  for (let number = 0; number < 8; number += 1) slow.push(await register(`slow-${number}.example`));
  const held = slow.map(hold);
  const asked = await Promise.all(slow.map((domain) => ask(domain)));
  const domain = await register('quick.example', other);
  publish(domain);
  expect((await (await ask(domain, other)).answer).body.status).toBe('verified');
  const countSlow = () => slow.filter((each) => countLookUps(each) > 0).length;
  await eventually(
    () => Promise.resolve(countSlow()),
    (count) => count >= 5,
  );
  // Whatever could begin has begun: another domain of somebody else came and went meanwhile.
  const second = await register('quick-too.example', other);
  await (
    await ask(second, other)
  ).answer;
  expect(countSlow()).toBe(5);
  for (const release of held) release();
  for (const { answer } of asked)
    expect(await answer).toMatchObject({ status: 200, body: { status: 'pending' } });
  expect(countSlow()).toBe(8);
});

test('twenty slow periodic checks leave room to what was asked for', async () => {
  const slow: DomainRecord[] = [];
  for (let number = 0; number < 4; number += 1) {
    const owner = await createSender(server.installation, `owner-${number}.example`);
    for (let count = 0; count < 5; count += 1)
      slow.push(await register(`slow-${number}-${count}.example`, owner));
  }
  for (const each of slow) hold(each);
  const ids = slow.map(({ id }) => id);
  await rowsOf(server, 'update domains set next_check_at = $2 where id = any ($1::uuid[])', [
    ids,
    now(clock),
  ]);
  startPatientWorker();
  await eventually(
    () => Promise.resolve(slow.filter((each) => countLookUps(each) > 0).length),
    (count) => count === 20,
  );
  const domain = await register('meanwhile.example');
  publish(domain);
  expect((await (await ask(domain)).answer).body.status).toBe('verified');
});

test('what a worker had in hand that died is checked by another one, after fifteen seconds', async () => {
  const domain = await register('orphan.example');
  publish(domain);
  const { answer } = await ask(domain);
  const at = now(clock);
  const taken = await takeAskedDomains(server.installation.database, {
    at,
    until: new Date(at.getTime() + 15_000),
    limit: 20,
    except: [],
  });
  expect(taken.map(({ id }) => id)).toEqual([domain.id]);
  startWorker();
  const [quick, theirs] = [await register('at-once.example'), await register('at-once-too.example', other)];
  await Promise.all([(await ask(quick)).answer, (await ask(theirs, other)).answer]);
  expect(countLookUps(domain)).toBe(0);
  clock.putForward(15_000);
  expect((await answer).body.status).toBe('verified');
});

test('an answer that was given while the listener had no connection is found', async () => {
  const domain = await register('cut-off.example');
  publish(domain);
  const { answer } = await ask(domain);
  const [listener] = await eventually(listListeners, (listeners) => listeners.length > 0);
  await rowsOf(server, 'select pg_terminate_backend($1)', [listener!.pid]);
  startWorker();
  await eventually(
    () => read(domain.id),
    ({ status }) => status === 'verified',
  );
  expect((await answer).body.status).toBe('verified');
});

test('a domain that is deleted while it is checked is not found', async () => {
  const domain = await register('deleted.example');
  startPatientWorker();
  const release = hold(domain);
  const { answer } = await ask(domain);
  await whenLookedUp(domain);
  await server.request('DELETE', `/v1/email/domains/${domain.id}`);
  release();
  expect(await answer).toMatchObject({ status: 404, body: { name: 'not_found' } });
});

test('a check that fails is made again, and keeps no other', async () => {
  const [domain, theirs] = [await register('failing.example'), await register('fine.example', other)];
  publish(domain);
  publish(theirs);
  await rowsOf(
    server,
    `create function refuse_check() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`,
  );
  await rowsOf(
    server,
    `create trigger refuse_check before update of findings on domains
     for each row when (new.name = 'failing.example') execute function refuse_check()`,
  );
  startWorker();
  const { answer } = await ask(domain);
  expect((await (await ask(theirs, other)).answer).body.status).toBe('verified');
  await whenLookedUp(domain);
  await rowsOf(server, 'drop trigger refuse_check on domains');
  clock.putForward(15_000);
  expect((await answer).body.status).toBe('verified');
});
