import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import PostalMime from 'postal-mime';
import { SMTPServer } from 'smtp-server';
import { afterEach, describe, expect, test } from 'vitest';
import type { EmailRecord } from '../../src/email/schema.ts';
import { type Log, silentLog } from '../../src/platform/log.ts';
import { startWorker, type Worker } from '../../src/roles/worker.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { type SinkAction, type SinkStep, type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

const minuteMs = 60_000;

const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

type Relay = {
  sink: SmtpSink;
  server: TestServer;
  clock: ShiftedClock;
  startWorker: (log?: Log) => Pick<Worker, 'stop'>;
};

/** An installation without a worker, and the server that it relays to. */
async function arrange(
  script: (step: SinkStep) => SinkAction | undefined | Promise<SinkAction | undefined> = () => undefined,
  more: { connections?: number; onMessage?: (recipient: string) => void; losesLeases?: boolean } = {},
): Promise<Relay> {
  const sink = await startSmtpSink({
    keepContent: true,
    script,
    onMessage: ({ recipients }) => more.onMessage?.(recipients[0]!),
  });
  open.push(sink.close);
  const relay = await arrangeAt(
    `smtp://127.0.0.1:${sink.port}?connections=${more.connections ?? 2}`,
    more.losesLeases,
  );
  return { ...relay, sink };
}

/** Where leases are lost, no worker is left to remove the last lost one. */
async function arrangeAt(smtpUrl: string, losesLeases = false): Promise<Omit<Relay, 'sink'>> {
  const clock = createShiftedClock();
  const madeByHand = losesLeases ? (['leases'] as const) : [];
  const server = await startTestServer({ clock, smtpUrl, madeByHand });
  open.push(server.stop);
  return {
    clock,
    server,
    startWorker: (log = silentLog) => {
      const worker = startWorker({ ...server.installation, log });
      let stopped: Promise<void> | null = null;
      const stop = () => (stopped ??= worker.then((started) => started.stop()));
      open.push(stop);
      return { stop };
    },
  };
}

/** Something that a test lets happen. */
function createGate(): { passed: Promise<void>; open: () => void } {
  let pass: () => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    pass = resolve;
  });
  return { passed, open: () => pass() };
}

function recipientsAt(sink: SmtpSink): string[] {
  return sink.messages.map(({ recipients }) => recipients[0]!);
}

async function ambiguitiesOf(server: TestServer, id: string): Promise<number[]> {
  const rows = await rowsOf<{ ambiguities: number }>(
    server,
    'select ambiguities from recipients where message_id = $1 order by ordinal',
    [id],
  );
  return rows.map(({ ambiguities }) => ambiguities);
}

/** Ends connections to this database from PostgreSQL's side, all of them or those under one name. */
async function terminate(server: TestServer, applicationName?: string): Promise<void> {
  await rowsOf(
    server,
    `select pg_terminate_backend(pid)
     from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid()
       and ($1::text is null or application_name = $1)`,
    [applicationName ?? null],
  );
}

describe('what the server answers', () => {
  const answers: Record<string, { phase: SinkStep['phase']; reply: string; record: unknown }> = {
    'unknown@example.com': {
      phase: 'rcpt',
      reply: '550 5.1.1 No such user',
      record: { status: 'bounced', bounce: { type: 'hard', class: 'mailbox_not_found', smtp_code: 550 } },
    },
    'full@example.com': {
      phase: 'rcpt',
      reply: '552 5.2.2 Mailbox full',
      record: { status: 'bounced', bounce: { type: 'soft', class: 'mailbox_full', enhanced_code: '5.2.2' } },
    },
    'nowhere@example.com': {
      phase: 'rcpt',
      reply: '550 5.1.2 Domain not found',
      record: { status: 'bounced', bounce: { type: 'hard', class: 'domain_not_found' } },
    },
    'spam@example.com': {
      phase: 'content',
      reply: '554 5.7.1 This is spam',
      record: { status: 'failed', bounce: { type: 'soft', class: 'spam', remote_mta: '127.0.0.1' } },
    },
    'large@example.com': {
      phase: 'mail',
      reply: '552 5.3.4 Message too large',
      record: { status: 'failed', bounce: { type: 'soft', class: 'message_too_large' } },
    },
    'later@example.com': {
      phase: 'rcpt',
      reply: '451 4.7.1 Greylisted',
      record: {
        status: 'delayed',
        bounce: { type: 'soft', class: 'policy', diagnostic: '4.7.1 Greylisted' },
      },
    },
    'busy@example.com': {
      phase: 'content',
      reply: '452 4.2.2 Over quota',
      record: { status: 'delayed', bounce: { type: 'soft', class: 'mailbox_full', smtp_code: 452 } },
    },
    'fine@example.com': {
      phase: 'content',
      reply: '250 2.0.0 Ok: queued as ABC123',
      record: { status: 'delivered', bounce: null },
    },
  };

  test("becomes each recipient's status, with the server's words", async () => {
    let mailTo = '';
    const { server, startWorker } = await arrange(
      ({ phase, recipient }) => {
        const address = phase === 'mail' ? mailTo : recipient;
        const answer = answers[address];
        return answer?.phase === phase ? { reply: answer.reply } : undefined;
      },
      { connections: 1 },
    );
    startWorker();
    const statuses: Record<string, unknown> = {};
    for (const address of Object.keys(answers)) {
      mailTo = address;
      const id = await send(server, { to: [address] });
      const record = await eventually(
        () => read(server, id),
        ({ to }) => to[0]!.status !== 'sent',
      );
      statuses[address] = record.to[0];
    }
    expect(statuses).toMatchObject(
      Object.fromEntries(Object.entries(answers).map(([address, { record }]) => [address, record])),
    );
    const [row] = await rowsOf(
      server,
      "select provider_message_id from recipients where organization_id = $1 and address = 'fine@example.com'",
      [server.organizationId],
    );
    expect(row).toEqual({ provider_message_id: 'ABC123' });
  });

  test('after a refusal for now the same message is sent again, under the same Message-ID, dated when it leaves', async () => {
    const copies: Buffer[] = [];
    const peer = new SMTPServer({
      authOptional: true,
      disabledCommands: ['STARTTLS'],
      onData: (stream, _session, callback) => {
        const chunks: Buffer[] = [];
        stream.on('data', (chunk: Buffer) => chunks.push(chunk));
        stream.on('end', () => {
          copies.push(Buffer.concat(chunks));
          if (copies.length > 1) callback();
          else callback(Object.assign(new Error('4.3.0 Try again later'), { responseCode: 451 }));
        });
      },
    });
    const listening = peer.listen(0, '127.0.0.1');
    await once(listening, 'listening');
    open.push(() => new Promise((resolve) => peer.close(() => resolve(undefined))));
    const { port } = listening.address() as AddressInfo;
    const { server, clock, startWorker } = await arrangeAt(`smtp://127.0.0.1:${port}?connections=1`);
    const refusing = startWorker();
    const id = await send(server, {
      html: '<p>Hello</p>',
      attachments: [{ filename: 'a.txt', content: 'YQ==' }],
    });
    await eventually(
      () => read(server, id),
      ({ to }) => to[0]!.status === 'delayed',
    );
    // By another worker, which has nothing of it in memory.
    await refusing.stop();
    clock.putForward(2 * minuteMs);
    startWorker();
    expect(await settled(server, id)).toMatchObject({ status: 'delivered', to: [{ bounce: null }] });
    expect(copies).toHaveLength(2);
    const [refused, taken] = copies.map((copy) => {
      const text = copy.toString('latin1');
      return text.slice(text.indexOf('\r\nFrom: ')).replace(/\r\nDate: .*/, '');
    });
    expect(taken).toBe(refused);
    const parsed = await Promise.all(copies.map((copy) => PostalMime.parse(copy)));
    expect(parsed[0]!.messageId).toBe(`<${id}@postillion.test>`);
    const [first, second] = parsed.map(({ date: written }) => Date.parse(written!));
    expect(second! - first!).toBeGreaterThanOrEqual(2 * minuteMs - 1_000);
  });
});

test('a relay that is away costs no job an attempt, is left alone, and is used again once it is back', async () => {
  let isAway = true;
  const { server, sink, clock, startWorker } = await arrange(({ phase }) =>
    isAway && phase === 'connect' ? { reply: '421 4.3.2 Not now', thenClose: true } : undefined,
  );
  const opened = createGate();
  const note = (_facts: unknown, text?: string) => {
    if (text?.includes('delivery pauses')) opened.open();
  };
  startWorker({ ...silentLog, error: note });
  const ids: string[] = [];
  for (let sending = 1; sending <= 12; sending += 1) ids.push(await send(server));
  await opened.passed;
  const { connections } = sink.counts;
  for (const id of ids) {
    expect(await read(server, id)).toMatchObject({
      status: 'queued',
      to: [{ status: 'sent', bounce: null }],
    });
    expect((await queueOf(server, id)).map(({ attempts, crashes }) => [attempts, crashes])).toEqual([[0, 0]]);
  }
  // At most what was under way at that moment: two jobs for each connection, less the one that found out. Jobs ask one
  // after the other when their signatures come one after the other.
  expect(sink.counts.connections - connections).toBeLessThanOrEqual(3);

  clock.putForward(1_000);
  expect((await sink.reached('connect')).phase).toBe('connect');
  isAway = false;
  clock.putForward(30_000);
  for (const id of ids) expect((await settled(server, id)).status).toBe('delivered');
  expect(sink.counts.accepted).toBe(ids.length);
});

describe('a connection that closes after the dot', () => {
  /** The recipient is uncertain first, and the status of the message follows a moment later. */
  const uncertain = (server: TestServer, id: string): Promise<EmailRecord> =>
    eventually(
      () => read(server, id),
      ({ status, to }) => status !== 'queued' && to[0]!.uncertain,
    );

  test('is uncertain, and repeated once after a minute with the same octets', async () => {
    let closings = 1;
    const { server, sink, clock, startWorker } = await arrange(({ phase }) => {
      if (phase !== 'content' || closings === 0) return undefined;
      closings -= 1;
      return { close: true, accept: true };
    });
    startWorker();
    const id = await send(server);
    const record = await uncertain(server, id);
    expect(record).toMatchObject({ status: 'sent', to: [{ status: 'sent', uncertain: true, bounce: null }] });
    clock.putForward(minuteMs - 10_000);
    await settled(server, await send(server, { to: ['witness@example.com'] }));
    expect(recipientsAt(sink)).toEqual(['ann@example.com', 'witness@example.com']);

    clock.putForward(10_000);
    expect(await settled(server, id)).toMatchObject({
      status: 'delivered',
      to: [{ status: 'delivered', uncertain: false }],
    });
    expect(await ambiguitiesOf(server, id)).toEqual([1]);
    const copies = sink.messages.filter(({ recipients }) => recipients[0] === 'ann@example.com');
    expect(copies).toHaveLength(2);
    expect(copies[0]!.content.equals(copies[1]!.content)).toBe(true);
  });

  test('twice is final: the recipient stays uncertain, and no third copy is sent', async () => {
    const { server, sink, clock, startWorker } = await arrange(({ phase }) =>
      phase === 'content' ? { close: true, accept: true } : undefined,
    );
    startWorker();
    const id = await send(server);
    await uncertain(server, id);
    clock.putForward(minuteMs);
    expect(await settled(server, id)).toMatchObject({
      status: 'sent',
      to: [{ status: 'sent', uncertain: true, dropped: false, bounce: null }],
    });
    expect(await ambiguitiesOf(server, id)).toEqual([2]);
    expect(sink.counts.accepted).toBe(2);
  });

  test('is not repeated for a campaign', async () => {
    const { server, sink, startWorker } = await arrange(({ phase }) =>
      phase === 'content' ? { close: true, accept: true } : undefined,
    );
    const id = await send(server);
    await toCampaign(server, id);
    startWorker();
    await eventually(
      () => queueOf(server, id),
      (jobs) => jobs.length === 0,
    );
    expect(await ambiguitiesOf(server, id)).toEqual([1]);
    expect(sink.counts.accepted).toBe(1);
  });
});

async function toCampaign(server: TestServer, id: string): Promise<void> {
  await rowsOf(server, "update messages set class = 'campaign' where id = $1", [id]);
  await rowsOf(server, 'update delivery_queue set lane = 1 where message_id = $1', [id]);
}

describe('a worker that loses its lease', () => {
  test('before the message leaves hands nothing off, and another one does, once', async () => {
    const gate = createGate();
    let holds = 1;
    const { server, sink, startWorker } = await arrange(
      async ({ phase }) => {
        if (phase === 'data' && holds > 0) {
          holds -= 1;
          await gate.passed;
        }
        return undefined;
      },
      { losesLeases: true },
    );
    const reached = sink.reached('rcpt');
    const first = startWorker();
    const id = await send(server);
    await reached;
    const [{ claimed_by: lost } = { claimed_by: null }] = await queueOf(server, id);
    expect(lost).not.toBeNull();
    startWorker();
    await terminate(server, 'postillion-worker');
    // Until then the loss of the lease is not known to others, and the worker may announce jobs that it has claimed.
    await eventually(
      () => rowsOf(server, 'select from workers where epoch = $1', [lost]),
      (workers) => workers.length === 0,
    );
    gate.open();
    expect(await settled(server, id)).toMatchObject({ status: 'delivered' });
    await first.stop();
    expect(recipientsAt(sink)).toEqual(['ann@example.com']);
    expect(await ambiguitiesOf(server, id)).toEqual([0]);
  });

  test('after the announcement sends no copy that is not accounted for', async () => {
    const gate = createGate();
    let holds = 1;
    const reached = createGate();
    const { server, sink, clock, startWorker } = await arrange(
      async ({ phase }) => {
        if (phase === 'content' && holds > 0) {
          holds -= 1;
          reached.open();
          await gate.passed;
        }
        return undefined;
      },
      { losesLeases: true },
    );
    startWorker();
    const id = await send(server);
    await reached.passed;
    startWorker();
    await terminate(server, 'postillion-worker');
    gate.open();
    await eventually(
      () => queueOf(server, id),
      ([job]) => (job?.claimed_by ?? null) === null,
    );
    clock.putForward(minuteMs);
    expect(await settled(server, id)).toMatchObject({ status: 'delivered', to: [{ uncertain: false }] });
    const [ambiguities] = await ambiguitiesOf(server, id);
    expect(sink.counts.accepted - 1).toBeLessThanOrEqual(ambiguities!);
  });

  test('along with every other connection writes its outcome as soon as there is a database', async () => {
    const gate = createGate();
    const reached = createGate();
    const { server, sink, startWorker } = await arrange(
      async ({ phase }) => {
        if (phase !== 'content') return undefined;
        reached.open();
        await gate.passed;
        return undefined;
      },
      { losesLeases: true },
    );
    startWorker();
    const id = await send(server);
    await reached.passed;
    await terminate(server);
    gate.open();
    expect(await settled(server, id)).toMatchObject({
      status: 'delivered',
      to: [{ status: 'delivered', uncertain: false }],
    });
    expect(recipientsAt(sink)).toEqual(['ann@example.com']);
    expect(await ambiguitiesOf(server, id)).toEqual([0]);
  });
});

test('a worker that is stopped carries through what has left, and gives the rest back as it was', async () => {
  const gate = createGate();
  const reached = createGate();
  const { server, sink, startWorker } = await arrange(async ({ phase }) => {
    if (phase !== 'content') return undefined;
    reached.open();
    await gate.passed;
    return undefined;
  });
  const to = Array.from({ length: 40 }, (_, index) => `a${index}@example.com`);
  const id = await send(server, { to });
  const worker = startWorker();
  await reached.passed;
  const stopped = worker.stop();
  gate.open();
  await stopped;

  const left = await queueOf(server, id);
  expect(sink.counts.accepted).toBeGreaterThan(0);
  expect(left.length + sink.counts.accepted).toBe(to.length);
  expect(left.length).toBeGreaterThan(0);
  for (const job of left) {
    expect(job).toMatchObject({
      claimed_by: null,
      attempts: 0,
      ambiguities: 0,
      crashes: 0,
    });
  }
  const delivered = (await read(server, id)).to.filter(({ status }) => status === 'delivered');
  expect(delivered.map(({ email }) => email).sort()).toEqual(recipientsAt(sink).sort());

  startWorker();
  expect((await settled(server, id)).status).toBe('delivered');
  expect(recipientsAt(sink).sort()).toEqual([...to].sort());
});

describe('the order', () => {
  test('a recipient whose server says nothing does not keep another waiting', async () => {
    const { server, sink, startWorker } = await arrange(
      ({ phase, recipient }) =>
        phase === 'rcpt' && recipient.startsWith('slow') ? { stall: true } : undefined,
      { connections: 3 },
    );
    await send(server, { to: ['slow@example.com'] });
    const id = await send(server, { to: Array.from({ length: 50 }, (_, index) => `a${index}@example.com`) });
    startWorker();
    expect((await settled(server, id)).status).toBe('delivered');
    expect(recipientsAt(sink)).toHaveLength(50);
  });

  test("one organization's five hundred messages do not delay another's one, whenever that comes", async () => {
    let onMessage: (recipient: string) => void = () => undefined;
    const { server, sink, startWorker } = await arrange(undefined, {
      connections: 1,
      onMessage: (recipient) => {
        onMessage(recipient);
      },
    });
    const other = await createSender(server.installation, 'small.example');
    const sendOne = (address: string) => send(server, { from: 'a@small.example', to: [address] }, other);
    const ids: string[] = [];
    for (let message = 0; message < 10; message += 1) {
      const to = Array.from({ length: 50 }, (_, index) => `m${message}r${index}@example.com`);
      ids.push(await send(server, { to }));
    }
    await sendOne('early@example.com');
    // The second comes while the five hundred are under way.
    const sent = createGate();
    let acceptedBefore = 0;
    onMessage = (recipient) => {
      if (recipient !== 'early@example.com') return;
      void sendOne('late@example.com').then(() => {
        acceptedBefore = sink.counts.accepted;
        sent.open();
      });
    };
    startWorker();
    await sent.passed;
    for (const id of ids) expect((await settled(server, id)).status).toBe('delivered');
    const order = recipientsAt(sink);
    expect(order).toHaveLength(502);
    // One connection has eight in hand at most, as many again may be claimed before the next look, and some of those
    // overtake it while its content is read.
    expect(order.indexOf('early@example.com')).toBeLessThan(64);
    expect(order.indexOf('late@example.com') - acceptedBefore).toBeLessThan(64);
  });

  test('transactional mail goes before campaigns', async () => {
    const { server, sink, startWorker } = await arrange(undefined, { connections: 1 });
    const campaign = await send(server, {
      to: Array.from({ length: 50 }, (_, index) => `campaign${index}@example.com`),
    });
    await toCampaign(server, campaign);
    const to = ['one@example.com', 'two@example.com', 'three@example.com'];
    const id = await send(server, { to });
    startWorker();
    await settled(server, id);
    await eventually(
      () => queueOf(server, campaign),
      (jobs) => jobs.length === 0,
    );
    expect(recipientsAt(sink).slice(0, 3).sort()).toEqual([...to].sort());
    expect(recipientsAt(sink)).toHaveLength(53);
  });
});
