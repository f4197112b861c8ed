/** The primary is lost under load, and its standby takes its place: what was accepted, what was sent, and what clients see. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, test } from 'vitest';
import { anEmail, eventually } from '../support/email-journey.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { type ReplicatedPostgres, startReplicatedPostgres } from '../support/replicated-postgres.ts';
import { thinkMs } from '../support/rolling-load.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';

const ends: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

type Sender = { key: string; domain: string };
const clientsOfSender = 4;

/** `phase`: the one in which the request was sent that was accepted. */
type Answer = { key: string; to: string; id: string; phase: Phase };
type Phase = 'followed' | 'cut off' | 'promoted';

/** Clients as the documentation has them: each repeats its request under the same key until it is accepted. */
function startLoad(urls: readonly string[], senders: readonly Sender[]) {
  const answers: Answer[] = [];
  const statuses = new Set<number>();
  let isStopping = false;
  let phase: Phase = 'followed';
  const send = async ({ key, domain }: Sender, url: string, to: string): Promise<string | null> => {
    const response = await fetch(`${url}/v1/email/send`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'idempotency-key': to },
      body: JSON.stringify(anEmail({ from: `hello@${domain}`, to: [to] })),
    });
    statuses.add(response.status);
    const body = (await response.json()) as { id: string };
    return response.status === 202 ? body.id : null;
  };
  const clients = senders.flatMap((sender) =>
    Array.from({ length: clientsOfSender }, async (_, client) => {
      for (let number = 1; !isStopping; number += 1) {
        const to = `reader${client}-${number}@example.com`;
        for (let id: string | null = null, tries = 0; id === null; tries += 1) {
          const sentIn = phase;
          id = await send(sender, urls[(client + tries) % urls.length]!, to);
          if (id !== null) answers.push({ key: sender.key, to, id, phase: sentIn });
          await delay(thinkMs);
        }
      }
    }),
  );
  return {
    answers,
    statuses,
    enter: (next: Phase) => {
      phase = next;
    },
    untilMore: (count: number) => {
      const wanted = answers.length + count;
      return eventually(
        () => answers.length,
        (length) => length >= wanted,
      );
    },
    stop: async () => {
      isStopping = true;
      await Promise.all(clients);
    },
  };
}

async function startInstallation({ url }: ReplicatedPostgres) {
  const sink = await startSmtpSink();
  ends.push(sink.close);
  const settings: Settings = {
    LOG_LEVEL: 'info',
    DATABASE_URL: url,
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    POSTILLION_ADDRESS_CHECKS: 'off',
    POSTILLION_PROCESSES: '1',
    POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sink.port}?connections=4`,
    POSTILLION_DRAIN_SECONDS: '1',
    PORT: '0',
  };
  const run = async (...words: string[]) => {
    const { output, errors } = await programs.run(settings, ...words, '--json');
    if (output === '') throw new Error(errors);
    return JSON.parse(output) as {
      id: string;
      key: string;
      findings: { level: string; subject: string; found: string }[];
    };
  };
  const makeSender = async (domain: string): Promise<Sender> => {
    const { id } = await run('org', 'create', '--name', domain);
    await run('domain', 'verify', '--org', id, domain);
    await run('org', 'update', '--org', id, '--requests-per-window', '100000');
    return { key: (await run('key', 'create', '--org', id)).key, domain };
  };
  const senders = [await makeSender('one.example'), await makeSender('other.example')];
  const startNode = async (role: 'api' | 'worker'): Promise<Program> => {
    const node = programs.start(settings, ['serve', '--role', role]);
    expect(await node.untilSaid('errors', /"msg":"ready"/), node.said.errors).not.toBeNull();
    return node;
  };
  const [apis, workers] = await Promise.all([
    Promise.all([startNode('api'), startNode('api')]),
    Promise.all([startNode('worker'), startNode('worker')]),
  ]);
  const urls = await Promise.all(
    apis.map(async ({ untilSaid }) => (await untilSaid('output', servedUrl))![1]!),
  );
  return { sink, senders, urls, run, nodes: [...apis, ...workers] };
}

async function stopNode({ child, ended }: Program): Promise<void> {
  child.kill('SIGTERM');
  expect((await ended).exitCode).toBe(0);
}

async function readiness(url: string): Promise<{ status: number; text: string }> {
  const response = await fetch(`${url}/readyz`);
  return { status: response.status, text: await response.text() };
}

/** `is_repeated`: its hand-off was cut off before its answer, and is to be done once more after a minute. */
type Recipient = { id: string; to: string; status: string; ambiguities: number; is_repeated: boolean };

async function recipientsOf({ standby }: ReplicatedPostgres): Promise<Recipient[]> {
  await eventually(
    () => standby.query('select from delivery_queue where ambiguities = 0'),
    (jobs) => jobs.length === 0,
  );
  return standby.query<Recipient>(
    `select r.message_id as id, r.address as to, r.status, r.ambiguities, q.ordinal is not null as is_repeated
     from recipients r
     left join delivery_queue q on q.message_id = r.message_id and q.ordinal = r.ordinal`,
  );
}

const nameOf = ({ id, to }: { id: string; to: string }) => `${id} ${to}`;

function countBy(addresses: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const address of addresses) counts.set(address, (counts.get(address) ?? 0) + 1);
  return counts;
}

test('with synchronous replication nothing accepted is lost in a failover, and nothing sent twice that is not recorded', async () => {
  const postgres = await startReplicatedPostgres('synchronous');
  ends.push(postgres.stop);
  const { sink, senders, urls, run, nodes } = await startInstallation(postgres);
  const load = startLoad(urls, senders);
  await load.untilMore(100);
  expect(load.statuses).toEqual(new Set([202]));

  // Without its standby the primary commits nothing, and so nothing is accepted.
  postgres.replication.leadTo(null);
  await eventually(
    () => postgres.primary.query(`select from pg_stat_activity where wait_event = 'SyncRep'`),
    (waiting) => waiting.length > 0,
  );
  const [position] = await postgres.primary.query<{ lsn: string }>(
    'select pg_current_wal_flush_lsn() as lsn',
  );
  const behind = await postgres.standby.query<{ is_behind: boolean }>(
    `select pg_last_wal_replay_lsn() < '${position!.lsn}' as is_behind`,
  );
  expect(behind).toEqual([{ is_behind: true }]);
  postgres.replication.leadTo(postgres.primary);
  await load.untilMore(50);

  await postgres.primary.kill();
  // The address leads to the standby before that is promoted, as with a balancer that only looks who answers.
  postgres.route.leadTo(postgres.standby);
  for (const url of urls) {
    const { text } = await eventually(
      () => readiness(url),
      ({ status, text: said }) => status === 503 && said.includes('takes no writes'),
    );
    expect(text).toContain('the database takes no writes: it is a standby');
  }
  const { findings } = await run('doctor');
  expect(findings).toContainEqual(
    expect.objectContaining({
      level: 'problem',
      subject: 'database',
      found: expect.stringContaining('standby') as string,
    }),
  );
  await postgres.standby.query('select pg_promote()');

  await load.untilMore(200);
  for (const url of urls) expect((await readiness(url)).status).toBe(200);
  await load.stop();
  expect(load.statuses).toEqual(new Set([202, 503]));
  const recipients = await recipientsOf(postgres);
  expect(recipients.map(nameOf).sort()).toEqual(load.answers.map(nameOf).sort());
  for (const { status, is_repeated: isRepeated } of recipients)
    if (!isRepeated) expect(status).toBe('delivered');

  // Of both organizations, to the same addresses: what reached one more often than it was sent is recorded as uncertain.
  const sent = countBy(load.answers.map(({ to }) => to));
  const reached = countBy(sink.messages.flatMap(({ recipients: addresses }) => addresses));
  const ambiguities = new Map<string, number>();
  for (const { to, ambiguities: count } of recipients)
    ambiguities.set(to, (ambiguities.get(to) ?? 0) + count);
  // Where the commit of an announcement was cut off, nothing was sent yet.
  const waiting = countBy(recipients.flatMap(({ to, is_repeated: isRepeated }) => (isRepeated ? [to] : [])));
  for (const [to, count] of sent) {
    expect(reached.get(to) ?? 0, to).toBeGreaterThanOrEqual(count - (waiting.get(to) ?? 0));
    expect(reached.get(to) ?? 0, to).toBeLessThanOrEqual(count + (ambiguities.get(to) ?? 0));
  }
  expect([...reached.keys()].filter((to) => !sent.has(to))).toEqual([]);
  await Promise.all(nodes.map(stopNode));
});

test('with asynchronous replication what the standby has not received is lost, and accepted anew when it is repeated', async () => {
  const postgres = await startReplicatedPostgres('asynchronous');
  ends.push(postgres.stop);
  const { sink, senders, urls, nodes } = await startInstallation(postgres);
  const load = startLoad(urls, senders);
  await load.untilMore(100);
  const received = [...load.answers];
  const [position] = await postgres.primary.query<{ lsn: string }>('select pg_current_wal_lsn() as lsn');
  await eventually(
    () =>
      postgres.standby.query<{ is_there: boolean }>(
        `select pg_last_wal_replay_lsn() >= '${position!.lsn}' as is_there`,
      ),
    ([row]) => row?.is_there === true,
  );
  postgres.replication.leadTo(null);
  load.enter('cut off');
  await load.untilMore(50);
  const lost = load.answers.filter(({ phase }) => phase === 'cut off');
  await postgres.primary.kill();
  load.enter('promoted');
  await postgres.standby.query('select pg_promote()');
  postgres.route.leadTo(postgres.standby);
  await load.untilMore(100);
  await load.stop();
  expect(load.statuses).toEqual(new Set([202, 503]));

  const [repeated] = lost;
  const response = await fetch(`${urls[0]}/v1/email/send`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${repeated!.key}`,
      'content-type': 'application/json',
      'idempotency-key': repeated!.to,
    },
    body: JSON.stringify(
      anEmail({
        from: `hello@${senders.find(({ key }) => key === repeated!.key)!.domain}`,
        to: [repeated!.to],
      }),
    ),
  });
  expect(response.status).toBe(202);
  const { id } = (await response.json()) as { id: string };
  const recipients = await recipientsOf(postgres);
  const kept = new Set(recipients.map(nameOf));
  const accepted = load.answers.filter(({ phase }) => phase === 'promoted');
  expect(accepted).not.toEqual([]);
  for (const answer of [...received, ...accepted]) expect(kept, nameOf(answer)).toContain(nameOf(answer));
  expect(lost.filter((answer) => kept.has(nameOf(answer)))).toEqual([]);
  expect(kept).toContain(nameOf({ id, to: repeated!.to }));
  expect(id).not.toBe(repeated!.id);
  expect(sink.messages.flatMap(({ recipients: addresses }) => addresses)).toContain(repeated!.to);
  await Promise.all(nodes.map(stopNode));
});
