import { getEventListeners } from 'node:events';
import { createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { certificateForTests } from '../../../../../test/support/certificate-for-tests.ts';
import { describeEmailProvider } from '../../../../../test/support/email-provider-conformance.ts';
import { startSmtpSink } from '../../../../../test/support/smtp-sink.ts';
import type {
  SinkAction,
  SinkStep,
  SmtpSink,
  SmtpSinkOptions,
} from '../../../../../test/support/smtp-sink.ts';
import type { Clock } from '../../../../platform/clock.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff, EmailProvider } from '../../provider.ts';
import { createSmtpProvider } from './smtp.ts';

type MovableClock = Clock & { advance: (byMs: number) => void; timers: () => number };

function createMovableClock(): MovableClock {
  let nowMs = 0;
  const timers = new Set<{ atMs: number; callback: () => void }>();
  return {
    nowMs: () => nowMs,
    monotonicMs: () => nowMs,
    after: (delayMs, callback) => {
      const timer = { atMs: nowMs + delayMs, callback };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    advance: (byMs) => {
      const untilMs = nowMs + byMs;
      for (;;) {
        const due = [...timers].filter(({ atMs }) => atMs <= untilMs).sort((a, b) => a.atMs - b.atMs)[0];
        if (due === undefined) break;
        timers.delete(due);
        nowMs = due.atMs;
        due.callback();
      }
      nowMs = untilMs;
    },
    timers: () => timers.size,
  };
}

const open: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

type Bench = { sink: SmtpSink; provider: EmailProvider; clock: MovableClock };

/** A provider at a sink. Both are closed after the test, and the provider must have left no timer. */
async function arrange(
  options: SmtpSinkOptions & {
    parameters?: string;
    userinfo?: string;
    scheme?: string;
    authorities?: string;
  } = {},
): Promise<Bench> {
  const clock = createMovableClock();
  const sink = await startSmtpSink({ keepContent: true, ...options });
  open.push(sink.close);
  const provider = createSmtpProvider({
    url: `${options.scheme ?? 'smtp'}://${options.userinfo ?? ''}127.0.0.1:${sink.port}?${options.parameters ?? 'connections=1'}`,
    clock,
    heloName: 'client.test',
    ...(options.authorities === undefined ? {} : { authorities: options.authorities }),
  });
  open.push(async () => {
    await provider.close();
    await sink.quiet();
    expect(clock.timers()).toBe(0);
  });
  return { sink, provider, clock };
}

const message = Buffer.from('Subject: hello\r\n\r\n.dot\r\n');

function send(
  provider: EmailProvider,
  recipient: string,
  more: Partial<EmailHandOff> = {},
): Promise<SendOutcome> {
  return provider.handOff({
    reference: { organizationId: 'org', messageId: 'message', ordinal: 0 },
    envelopeFrom: 'bounces@send.example.test',
    recipient,
    content: [message],
    confirm: async () => undefined,
    signal: new AbortController().signal,
    ...more,
  });
}

/** A script that answers one phase in its own way, by default the first time only. */
function at(
  phase: SinkStep['phase'],
  action: SinkAction,
  times = 1,
): (step: SinkStep) => SinkAction | undefined {
  let left = times;
  return (step) => (step.phase === phase && left-- > 0 ? action : undefined);
}

describeEmailProvider('smtp', async () => {
  const sink = await startSmtpSink({
    keepContent: true,
    script: ({ phase, line, recipient }) => {
      if (phase === 'content' && recipient.startsWith('lost@')) return { close: true, accept: true };
      if (phase === 'content' && recipient.startsWith('silent@')) return { stall: true, accept: true };
      if (phase !== 'rcpt') return undefined;
      if (line.includes('<rejected@')) return { reply: '550 5.1.1 User unknown' };
      if (line.includes('<deferred@')) return { reply: '451 4.3.0 Try again later' };
      return undefined;
    },
  });
  const clock = createMovableClock();
  return {
    provider: createSmtpProvider({
      url: `smtp://127.0.0.1:${sink.port}?connections=4`,
      clock,
      heloName: 'client.test',
    }),
    recipients: {
      accepted: 'accepted@example.test',
      rejected: 'rejected@example.test',
      deferred: 'deferred@example.test',
    },
    recipientOfLostAnswer: 'lost@example.test',
    silence: {
      recipient: 'silent@example.test',
      whenTaken: () => sink.reached('content'),
      passTime: clock.advance,
    },
    delivered: async () =>
      sink.messages.map(({ envelopeFrom, recipients, content }) => ({
        envelopeFrom,
        recipient: recipients[0]!,
        content,
      })),
    dispose: async () => {
      await sink.quiet();
      expect(clock.timers()).toBe(0);
      await sink.close();
    },
  };
});

test('the content is not sent before the marker is committed', async () => {
  const { sink, provider } = await arrange();
  let confirm: () => void = () => undefined;
  const asked = new Promise<void>((resolve) => {
    void send(provider, 'a@example.test', {
      confirm: () => {
        resolve();
        return new Promise((committed) => {
          confirm = committed;
        });
      },
    });
  });
  await asked;
  await allReadsDone();
  expect(sink.commands.slice(-1)).toEqual(['DATA']);
  expect(sink.counts.accepted).toBe(0);
  const reached = sink.reached('content');
  confirm();
  await reached;
  expect(sink.counts.accepted).toBe(1);
});

test('a waiting hand-off is announced with the dot of the one before, and their messages stay apart', async () => {
  const { sink, provider } = await arrange();
  const contents = Array.from({ length: 20 }, (_, number) => Buffer.from(`X: ${number}\r\n\r\n.\r\n`));
  const outcomes = await Promise.all(
    contents.map((content, number) => send(provider, `r${number}@example.test`, { content: [content] })),
  );
  expect(outcomes.map(({ kind }) => kind)).toEqual(contents.map(() => 'accepted'));
  expect(sink.counts.connections).toBe(1);
  expect(sink.messages.map(({ recipients, content }) => [recipients, content])).toEqual(
    contents.map((content, number) => [[`r${number}@example.test`], content]),
  );
});

test('a message that does not end with a line end gets one, and is ended', async () => {
  const { sink, provider } = await arrange();
  const content = Buffer.from('X: 1\r\n\r\nno end');
  expect(await send(provider, 'a@example.test', { content: [content] })).toMatchObject({ kind: 'accepted' });
  expect(sink.messages.map((received) => received.content?.toString())).toEqual([
    `${content.toString()}\r\n`,
  ]);
});

test('a server without pipelining is asked step by step, and without EHLO greeted in the old way', async () => {
  const script = at('ehlo', { reply: '502 5.5.1 What?' });
  const { sink, provider } = await arrange({ script, pipelining: false });
  const outcomes = await Promise.all([send(provider, 'a@example.test'), send(provider, 'b@example.test')]);
  expect(outcomes.map(({ kind }) => kind)).toEqual(['accepted', 'accepted']);
  expect(sink.commands.slice(0, 5)).toEqual([
    'EHLO client.test',
    'HELO client.test',
    'MAIL FROM:<bounces@send.example.test>',
    'RCPT TO:<a@example.test>',
    'DATA',
  ]);
});

test('a server that refuses EHLO and hangs up has said why', async () => {
  const reply = '550 5.7.1 Not under that name';
  const { sink, provider } = await arrange({ script: at('ehlo', { reply, thenClose: true }) });
  expect(await send(provider, 'a@example.test')).toMatchObject({
    kind: 'deferred',
    reply: { code: 550, enhancedCode: '5.7.1', diagnostic: '5.7.1 Not under that name' },
  });
  expect(sink.counts.accepted).toBe(0);
});

test.each([true, false])(
  'a refused recipient does not spoil the next transaction (pipelining: %s)',
  async (pipelining) => {
    const { sink, provider } = await arrange({
      pipelining,
      script: at('rcpt', { reply: '550 5.1.1 User unknown' }),
    });
    expect(await send(provider, 'a@example.test')).toEqual({
      kind: 'rejected',
      reason: 'mailbox_not_found',
      reply: { code: 550, enhancedCode: '5.1.1', diagnostic: '5.1.1 User unknown', remote: '127.0.0.1' },
    });
    expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
    expect(sink.counts.connections).toBe(1);
    expect(sink.commands).toContain('RSET');
  },
);

test('a server that asks for the content although it refused the recipient gets none', async () => {
  const { sink, provider } = await arrange({
    script: ({ phase, line }) => {
      if (phase === 'rcpt' && line.includes('<bad@')) return { reply: '550 5.1.1 User unknown' };
      if (phase === 'data') return { reply: '354 Go ahead' };
      return undefined;
    },
  });
  const outcomes = await Promise.all([
    send(provider, 'bad@example.test'),
    send(provider, 'good@example.test'),
  ]);
  expect(outcomes.map(({ kind }) => kind)).toEqual(['rejected', 'accepted']);
  expect(sink.messages.map(({ content }) => content.toString())).toEqual(['', message.toString()]);
});

const refusals: [SinkStep['phase'], string, Partial<SendOutcome>][] = [
  ['connect', '554 5.7.1 No service here', { kind: 'deferred', reason: 'provider_unavailable' }],
  ['connect', '421 4.3.2 Shutting down', { kind: 'deferred', reason: 'provider_unavailable' }],
  ['ehlo', '421 4.3.2 Shutting down', { kind: 'deferred', reason: 'provider_unavailable' }],
  ['mail', '530 5.7.0 Authentication required', { kind: 'deferred', reason: 'provider_unavailable' }],
  ['mail', '452 4.3.1 Insufficient system storage', { kind: 'deferred', reason: 'other' }],
  ['mail', '552 5.3.4 Message size exceeds fixed limit', { kind: 'rejected', reason: 'message_too_large' }],
  ['rcpt', '452 4.2.2 Mailbox full', { kind: 'deferred', reason: 'mailbox_full' }],
  ['rcpt', '550-5.1.1 No such\r\n550 5.1.1 user', { kind: 'rejected', reason: 'mailbox_not_found' }],
  ['rcpt', '421 4.7.0 Too many connections', { kind: 'deferred', reason: 'rate_limited' }],
  ['data', '451 4.7.1 Greylisted', { kind: 'deferred', reason: 'policy' }],
  ['data', '554 5.7.1 blocked using dnsbl.example.test', { kind: 'rejected', reason: 'spam' }],
  ['content', '451 4.3.0 Local error', { kind: 'deferred', reason: 'other' }],
  ['content', '421 4.7.28 unusual rate', { kind: 'deferred', reason: 'rate_limited' }],
  ['content', '550 5.7.1 looks like spam', { kind: 'rejected', reason: 'spam' }],
  ['content', '354 Still more', { kind: 'unknown' }],
];

test.each(refusals)(
  'at %s, %j is an outcome, and the next message goes through',
  async (phase, reply, expected) => {
    const { provider, sink } = await arrange({ script: at(phase, { reply }) });
    expect(await send(provider, 'a@example.test')).toMatchObject(expected);
    expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
    expect(sink.messages).toHaveLength(1);
  },
);

/** Exim's `drop`, Haraka's `DENYDISCONNECT` and OpenSMTPD's filters refuse, and close with DATA unanswered. */
const lastWords: [SinkStep['phase'], string, Partial<SendOutcome>][] = [
  ['mail', '550 5.7.1 Sender rejected', { kind: 'rejected', reason: 'policy' }],
  ['mail', '451 4.7.1 Try again later', { kind: 'deferred', reason: 'policy' }],
  ['mail', '530 5.7.0 Authentication required', { kind: 'deferred', reason: 'provider_unavailable' }],
  ['rcpt', '550 5.1.1 User unknown', { kind: 'rejected', reason: 'mailbox_not_found' }],
  ['rcpt', '550 5.7.1 Access denied', { kind: 'rejected', reason: 'policy' }],
  ['rcpt', '450 4.3.2 Try again later', { kind: 'deferred', reason: 'other' }],
  ['rcpt', '550-5.1.1 No such\r\n550 5.1.1 user', { kind: 'rejected', reason: 'mailbox_not_found' }],
  ['data', '554 5.7.1 This is spam', { kind: 'rejected', reason: 'spam' }],
];

describe.each(['none', 'implicit'] as const)('a server that refuses and hangs up, with TLS %s', (tls) => {
  const arrangeOver = (options: SmtpSinkOptions) =>
    arrange({
      ...options,
      tls,
      scheme: tls === 'none' ? 'smtp' : 'smtps',
      authorities: certificateForTests,
      parameters: 'connections=1',
    });

  test.each(lastWords)('at %s, %j decides', async (phase, reply, expected) => {
    const { provider } = await arrangeOver({ script: at(phase, { reply, thenClose: true }) });
    const outcome = await send(provider, 'a@example.test');
    expect(outcome).toMatchObject(expected);
    expect(outcome.reply).toMatchObject({ code: Number(reply.slice(0, 3)) });
    expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
  });

  test.each(lastWords)(
    'at %s, %j decides for the second message of a connection',
    async (phase, reply, expected) => {
      const { provider, sink } = await arrangeOver({
        script: ({ phase: reached, connection, completed }) =>
          reached === phase && connection === 1 && completed === 1 ? { reply, thenClose: true } : undefined,
      });
      const outcomes = await Promise.all([
        send(provider, 'a@example.test'),
        send(provider, 'b@example.test'),
      ]);
      expect(outcomes).toMatchObject([{ kind: 'accepted' }, expected]);
      expect(sink.counts.connections).toBe(1);
    },
  );
});

test.each<SinkAction>([
  { reply: '421 4.4.2 Closing', thenClose: true },
  { reply: '250 2.0.0 Ok' },
  { reply: 'what?' },
  { stall: true },
])('a refusal decides, although DATA after it is answered with %j', async (afterwards) => {
  const refused = { reply: '550 5.1.1 User unknown' };
  const { provider, sink, clock } = await arrange({
    script: ({ phase }) => (phase === 'rcpt' ? refused : phase === 'data' ? afterwards : undefined),
  });
  const reached = sink.reached('data');
  const sending = send(provider, 'a@example.test');
  await reached;
  await allReadsDone();
  clock.advance(60_000);
  expect(await sending).toMatchObject({
    kind: 'rejected',
    reason: 'mailbox_not_found',
    reply: { code: 550 },
  });
});

test('what a server says after a reply that is no answer decides nothing', async () => {
  const { provider } = await arrange({
    script: ({ phase, connection, completed }) =>
      phase === 'content' && connection === 1 && completed === 0
        ? { reply: '354 Still more\r\n250 Ok\r\n550 5.1.1 User unknown', thenClose: true }
        : undefined,
  });
  const outcomes = await Promise.all([send(provider, 'a@example.test'), send(provider, 'b@example.test')]);
  expect(outcomes.map(({ kind }) => kind)).toEqual(['unknown', 'accepted']);
});

const cuts: [SinkStep['phase'], SinkAction, Partial<SendOutcome>][] = [
  ['connect', { close: true }, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['ehlo', { close: true }, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['mail', { close: true }, { kind: 'deferred', reason: 'other' }],
  ['data', { close: true }, { kind: 'deferred', reason: 'other' }],
  ['content', { close: true }, { kind: 'unknown' }],
  ['content', { close: true, accept: true }, { kind: 'unknown' }],
  ['connect', { reply: 'HTTP/1.1 400 Bad Request' }, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['mail', { reply: 'what?' }, { kind: 'deferred', reason: 'other' }],
  ['mail', { reply: '354 Too early' }, { kind: 'deferred', reason: 'other' }],
  ['data', { reply: '250 Too early' }, { kind: 'deferred', reason: 'other' }],
  ['content', { reply: 'what?' }, { kind: 'unknown' }],
  ['ehlo', { endlessly: '250-MORE\r\n' }, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['rcpt', { endlessly: 'x' }, { kind: 'deferred', reason: 'other' }],
  ['content', { endlessly: '250-more\r\n' }, { kind: 'unknown' }],
  ['content', { endlessly: '250 ok\r\n' }, { kind: 'accepted' }],
];

test.each(cuts)('at %s, %j is reported as what it is', async (phase, action, expected) => {
  const { provider } = await arrange({ script: at(phase, action) });
  expect(await send(provider, 'a@example.test')).toMatchObject(expected);
  expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
});

const stalls: [SinkStep['phase'], number, Partial<SendOutcome>][] = [
  ['connect', 60_000, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['ehlo', 60_000, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['rcpt', 60_000, { kind: 'deferred', reason: 'other' }],
  ['data', 60_000, { kind: 'deferred', reason: 'other' }],
  ['content', 300_000, { kind: 'unknown' }],
];

test.each(stalls)('silence at %s ends after %i ms', async (phase, timeoutMs, expected) => {
  const { provider, clock, sink } = await arrange({ script: at(phase, { stall: true }) });
  const reached = sink.reached(phase);
  let isSettled = false;
  const sending = send(provider, 'a@example.test').finally(() => {
    isSettled = true;
  });
  await reached;
  // The client may not have seen the reply before this one yet; its clock then starts later, never earlier.
  await allReadsDone();
  clock.advance(timeoutMs - 1_000);
  await allReadsDone();
  expect(isSettled).toBe(false);
  clock.advance(1_000);
  expect(await sending).toMatchObject(expected);
});

/** Lets everything that is on its way through loopback and the event loop arrive. */
async function allReadsDone(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

test('a reply that drips in octet by octet is read, and does not earn more time', async () => {
  const { provider } = await arrange({ script: at('content', { slowly: '250 2.0.0 Ok: queued as SLOW1' }) });
  expect(await send(provider, 'a@example.test')).toMatchObject({
    kind: 'accepted',
    providerMessageId: 'SLOW1',
  });
});

test('a connection lost before the end of the content delivered nothing, so that the message may be sent again', async () => {
  const content = Array.from({ length: 32 }, () => Buffer.alloc(1_048_576, 'x'.repeat(76) + '\r\n'));
  const { provider, sink } = await arrange({ script: at('data', { closeAfterBytes: 100_000 }) });
  expect(await send(provider, 'a@example.test', { content })).toMatchObject({
    kind: 'deferred',
    reason: 'other',
  });
  expect(sink.messages).toHaveLength(0);
});

test('a refusal in the middle of the content ends the content', async () => {
  const content = Array.from({ length: 32 }, () => Buffer.alloc(1_048_576, 'x'.repeat(76) + '\r\n'));
  const interruption = { interruptAfterBytes: 100_000, reply: '552 5.3.4 Message too big' };
  const { provider, sink } = await arrange({ script: at('data', interruption) });
  const outcome = await send(provider, 'a@example.test', { content });
  expect(outcome).toMatchObject({ kind: 'rejected', reason: 'message_too_large' });
  await provider.close();
  await sink.quiet();
  expect(sink.messages).toHaveLength(0);
});

test('a server that reads no further holds a message for a minute and not for ever', async () => {
  const content = Array.from({ length: 40 }, () => Buffer.alloc(1_048_576, 'x'.repeat(76) + '\r\n'));
  const { provider, sink, clock } = await arrange({ script: at('data', { stopReading: true }) });
  let isSettled = false;
  const sending = send(provider, 'a@example.test', { content }).finally(() => {
    isSettled = true;
  });
  while (!isSettled) {
    await allReadsDone();
    clock.advance(1_000);
  }
  expect(await sending).toMatchObject({ kind: 'deferred', reason: 'other' });
  // The sink does not even read that the client has gone.
  await sink.close();
});

test('30 MB arrive octet for octet', async () => {
  const line = Buffer.from(`.${'x'.repeat(74)}\r\n`);
  const content = [Buffer.concat(Array.from({ length: 400_000 }, () => line))];
  const { provider, sink } = await arrange();
  expect((await send(provider, 'a@example.test', { content })).kind).toBe('accepted');
  expect(sink.messages[0]!.content.equals(content[0]!)).toBe(true);
  expect(sink.messages[0]!.parameters).toBe(`SIZE=${content[0]!.length}`);
});

test('a message over the limit that the server names is not offered', async () => {
  const { provider, sink } = await arrange({ sizeBytesMax: message.length - 1 });
  expect(await send(provider, 'a@example.test')).toMatchObject({
    kind: 'rejected',
    reason: 'message_too_large',
  });
  expect(sink.commands).not.toContain('DATA');
});

test('eight-bit content is declared as such', async () => {
  const { provider, sink } = await arrange();
  await send(provider, 'a@example.test', { content: [Buffer.from('é\r\n')] });
  expect(sink.messages[0]!.parameters).toBe('SIZE=4 BODY=8BITMIME');
});

test('an address beyond ASCII is named in UTF-8 where SMTPUTF8 is offered, among others', async () => {
  const { provider, sink } = await arrange({ smtpUtf8: true });
  const content = [Buffer.from('To: jürgen@example.test\r\n\r\n')];
  const outcomes = await Promise.all([
    send(provider, 'a@example.test'),
    send(provider, 'jürgen@example.test', { content }),
    send(provider, '用户@example.test'),
    send(provider, 'b@example.test'),
  ]);
  expect(outcomes.map(({ kind }) => kind)).toEqual(['accepted', 'accepted', 'accepted', 'accepted']);
  expect(sink.messages.map(({ recipients, parameters }) => [recipients, parameters])).toEqual([
    [['a@example.test'], `SIZE=${message.length}`],
    [['jürgen@example.test'], `SIZE=${content[0]!.length} BODY=8BITMIME SMTPUTF8`],
    [['用户@example.test'], `SIZE=${message.length} BODY=8BITMIME SMTPUTF8`],
    [['b@example.test'], `SIZE=${message.length}`],
  ]);
  expect(sink.messages[1]!.content).toEqual(content[0]);
  expect(sink.counts.connections).toBe(1);
});

test.each<[string, SmtpSinkOptions]>([
  ['SMTPUTF8 is not offered', {}],
  ['SMTPUTF8 is not offered, and each command waits for its reply', { pipelining: false }],
  [
    'SMTPUTF8 is offered without eight bits',
    { script: at('ehlo', { reply: '250-sink.test\r\n250-SMTPUTF8\r\n250 PIPELINING' }) },
  ],
])('an address beyond ASCII is refused for good where %s, and no other', async (_what, options) => {
  const { provider, sink } = await arrange(options);
  let confirmations = 0;
  const outcomes = await Promise.all([
    send(provider, 'a@example.test'),
    send(provider, 'jürgen@example.test', {
      confirm: async () => {
        confirmations += 1;
      },
    }),
    send(provider, 'b@example.test'),
  ]);
  expect(outcomes).toMatchObject([
    { kind: 'accepted' },
    {
      kind: 'rejected',
      reason: 'other',
      reply: {
        code: null,
        enhancedCode: '5.6.7',
        diagnostic: 'the address goes beyond ASCII, and the server does not offer SMTPUTF8',
        remote: '127.0.0.1',
      },
    },
    { kind: 'accepted' },
  ]);
  expect(confirmations).toBe(0);
  expect(sink.messages.map(({ recipients }) => recipients)).toEqual([['a@example.test'], ['b@example.test']]);
  expect(sink.commands.filter((command) => command.startsWith('RCPT'))).toHaveLength(2);
});

test('SMTPUTF8 that is offered before STARTTLS alone is not believed', async () => {
  const { provider, sink } = await arrange({
    tls: 'starttls',
    parameters: 'connections=1&tls=required&insecure=1',
    script: at('ehlo', { reply: '250-sink.test\r\n250-STARTTLS\r\n250-8BITMIME\r\n250 SMTPUTF8' }),
  });
  expect(await send(provider, 'ü@example.test')).toMatchObject({
    kind: 'rejected',
    reply: { enhancedCode: '5.6.7' },
  });
  expect(sink.messages).toEqual([]);
});

test.each([
  'ü\r\nRCPT TO:<b@example.test>',
  'ü@example.test>',
  'ü b@example.test',
  'ü\u2028@example.test',
  '\ud800@example.test',
  `${'ü'.repeat(200)}@example.test`,
])('the recipient %j is not plain, and is not named to any server', async (recipient) => {
  const { provider, sink } = await arrange({ smtpUtf8: true });
  expect(await send(provider, recipient)).toMatchObject({ kind: 'rejected', reason: 'other' });
  expect(sink.commands).toEqual([]);
});

test('a return path beyond ASCII is not named to any server', async () => {
  const { provider, sink } = await arrange({ smtpUtf8: true });
  expect(await send(provider, 'a@example.test', { envelopeFrom: 'ü@example.test' })).toMatchObject({
    kind: 'rejected',
    reason: 'other',
  });
  expect(sink.commands).toEqual([]);
});

test.each(['a@example.test>\r\nRCPT TO:<evil@example.test', 'a b@example.test', '', 'a\0@b.test'])(
  'the recipient %j gets nothing into the dialogue',
  async (recipient) => {
    const { provider, sink } = await arrange();
    expect((await send(provider, recipient)).kind).toBe('rejected');
    expect(sink.counts.connections).toBe(0);
  },
);

test('the null return path can be used', async () => {
  const { provider, sink } = await arrange();
  expect((await send(provider, 'a@example.test', { envelopeFrom: '' })).kind).toBe('accepted');
  expect(sink.commands.some((command) => command.startsWith('MAIL FROM:<>'))).toBe(true);
});

test.each<SinkAction>([{ close: true }, { reply: '421 4.4.2 Idle for too long', thenClose: true }])(
  'a kept connection that ends with %j at the next message costs that message nothing',
  async (action) => {
    const { provider, sink } = await arrange({
      script: ({ phase, connection, completed }) =>
        phase === 'mail' && connection === 1 && completed === 1 ? action : undefined,
    });
    const outcomes = [await send(provider, 'a@example.test'), await send(provider, 'b@example.test')];
    expect(outcomes.map(({ kind }) => kind)).toEqual(['accepted', 'accepted']);
    expect(sink.counts.connections).toBe(2);
    expect(sink.messages.map(({ recipients }) => recipients[0])).toEqual([
      'a@example.test',
      'b@example.test',
    ]);
  },
);

test('a hand-off announced after one that was cut off is not unknown, and goes out on another connection', async () => {
  const { provider, sink } = await arrange({ script: at('content', { close: true, accept: true }) });
  const outcomes = await Promise.all([send(provider, 'a@example.test'), send(provider, 'b@example.test')]);
  expect(outcomes.map(({ kind }) => kind)).toEqual(['unknown', 'accepted']);
  expect(sink.messages).toHaveLength(2);
});

test('a server that ends every connection at the second message does not keep a hand-off going round', async () => {
  const { provider } = await arrange({
    script: ({ phase, completed }) => (phase === 'mail' && completed === 1 ? { close: true } : undefined),
  });
  const outcomes = await Promise.all(
    Array.from({ length: 6 }, (_, number) => send(provider, `r${number}@example.test`)),
  );
  expect(outcomes.every(({ kind }) => kind === 'accepted')).toBe(true);
});

test('a hand-off that was given back by two connections is put off, and does not wear out a third', async () => {
  const { provider, sink } = await arrange({
    parameters: 'connections=2',
    script: ({ phase, completed }) => (phase === 'mail' && completed === 1 ? { close: true } : undefined),
  });
  let confirmed = 0;
  let allConfirmed = (): void => undefined;
  const together = new Promise<void>((resolve) => {
    allConfirmed = resolve;
  });
  // Each waits for the other to be confirmed, so that they are on two connections.
  const confirm = (): Promise<void> => {
    confirmed += 1;
    if (confirmed === 2) allConfirmed();
    return together;
  };
  await Promise.all(['a', 'b'].map((name) => send(provider, `${name}@example.test`, { confirm })));
  expect(sink.counts.openConnections).toBe(2);
  const outcome = await send(provider, 'c@example.test');
  expect(outcome).toMatchObject({ kind: 'deferred', reason: 'other' });
  expect(sink.counts.connections).toBe(2);
  expect((await send(provider, 'd@example.test')).kind).toBe('accepted');
});

test('what a server says after its reply ends the connection at once, and not when the next message comes', async () => {
  const { provider, sink } = await arrange({
    script: at('content', { reply: '250 2.0.0 Ok\r\n421 4.4.2 Idle for too long' }),
  });
  expect((await send(provider, 'a@example.test')).kind).toBe('accepted');
  await allReadsDone();
  expect(sink.counts.openConnections).toBe(0);
  expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
});

test('a server that falls silent after it was idle is given up, as one that was not', async () => {
  const { provider, clock } = await arrange({
    script: ({ phase, completed }) => (phase === 'mail' && completed === 1 ? { stall: true } : undefined),
  });
  await send(provider, 'a@example.test');
  await allReadsDone();
  let outcome: SendOutcome | null = null;
  const sending = send(provider, 'b@example.test').then((settled) => (outcome = settled));
  await allReadsDone();
  clock.advance(300_000);
  await allReadsDone();
  expect(outcome).toMatchObject({ kind: 'deferred', reason: 'other' });
  await sending;
});

test('a hand-off that is aborted while it waits for a busy connection is not announced on it', async () => {
  const { provider, sink } = await arrange();
  let isConfirmed = (): void => undefined;
  const confirmed = new Promise<void>((resolve) => {
    isConfirmed = resolve;
  });
  const reached = sink.reached('data');
  const busy = send(provider, 'busy@example.test', { confirm: () => confirmed });
  await reached;
  const controller = new AbortController();
  const aborted = send(provider, 'aborted@example.test', { signal: controller.signal });
  const waiting = send(provider, 'waiting@example.test');
  controller.abort(new Error('shutting down'));
  await expect(aborted).rejects.toThrow('shutting down');
  isConfirmed();
  expect([(await busy).kind, (await waiting).kind]).toEqual(['accepted', 'accepted']);
  expect(sink.commands.filter((line) => line.startsWith('RCPT'))).toEqual([
    'RCPT TO:<busy@example.test>',
    'RCPT TO:<waiting@example.test>',
  ]);
  expect(sink.counts.connections).toBe(1);
});

test('a hand-off that is aborted while a kept connection is asked is not announced on another', async () => {
  const { provider, sink } = await arrange({
    script: ({ phase, recipient }) =>
      phase === 'rcpt' && recipient.startsWith('aborted') ? { stall: true } : undefined,
  });
  await send(provider, 'before@example.test');
  const controller = new AbortController();
  const reached = sink.reached('rcpt');
  const aborted = send(provider, 'aborted@example.test', { signal: controller.signal });
  await reached;
  controller.abort(new Error('shutting down'));
  await expect(aborted).rejects.toThrow('shutting down');
  expect((await send(provider, 'after@example.test')).kind).toBe('accepted');
  expect(sink.commands.filter((line) => line.startsWith('RCPT TO:<aborted'))).toHaveLength(1);
});

test('closing gives up a connection that nothing waits for any more', async () => {
  const { provider, sink, clock } = await arrange({ script: at('connect', { stall: true }) });
  const controller = new AbortController();
  const reached = sink.reached('connect');
  const aborted = send(provider, 'a@example.test', { signal: controller.signal });
  await reached;
  controller.abort(new Error('shutting down'));
  await expect(aborted).rejects.toThrow('shutting down');
  let isClosed = false;
  void provider.close().then(() => (isClosed = true));
  await allReadsDone();
  const wasClosed = isClosed;
  // Ends what would hold up the next tests.
  clock.advance(600_000);
  expect(wasClosed).toBe(true);
});

test('nothing listens to the signal of a hand-off that is over, which many share', async () => {
  const { provider } = await arrange({ script: at('rcpt', { reply: '550 5.1.1 User unknown' }) });
  const { signal } = new AbortController();
  for (const name of ['refused', 'accepted']) await send(provider, `${name}@example.test`, { signal });
  const confirm = () => Promise.reject(new Error('no database'));
  await expect(send(provider, 'unconfirmed@example.test', { signal, confirm })).rejects.toThrow();
  expect(getEventListeners(signal, 'abort')).toEqual([]);
});

test('a server that limits connections is served over those that it allows', async () => {
  const { provider, sink, clock } = await arrange({
    parameters: 'connections=8',
    script: ({ phase, connection }) =>
      phase === 'connect' && connection > 2
        ? { reply: '421 4.7.0 Too many connections', thenClose: true }
        : undefined,
  });
  const sendMany = async () => {
    const outcomes = await Promise.all(
      Array.from({ length: 50 }, (_, number) => send(provider, `r${number}@example.test`)),
    );
    expect(outcomes.every(({ kind }) => kind === 'accepted')).toBe(true);
  };
  await sendMany();
  expect(new Set(sink.messages.map(({ connection }) => connection)).size).toBeLessThanOrEqual(2);
  // It is not asked for more again and again.
  const { connections } = sink.counts;
  await sendMany();
  expect(sink.counts.connections).toBe(connections);
  clock.advance(10_000);
  await sendMany();
  expect(sink.counts.connections).toBeGreaterThan(connections);
});

test('a connection carries a thousand messages and no more', async () => {
  const { provider, sink } = await arrange();
  for (let round = 0; round < 21; round += 1) {
    await Promise.all(Array.from({ length: 50 }, (_, number) => send(provider, `r${number}@example.test`)));
  }
  const perConnection = [1, 2].map(
    (number) => sink.messages.filter(({ connection }) => connection === number).length,
  );
  expect(perConnection).toEqual([1_000, 50]);
  expect(sink.counts.openConnections).toBe(1);
});

test('an idle connection is closed politely, and its timers go with it', async () => {
  const { provider, sink, clock } = await arrange();
  await send(provider, 'a@example.test');
  await allReadsDone();
  clock.advance(15_000);
  await sink.quiet();
  expect(sink.commands.at(-1)).toBe('QUIT');
  await allReadsDone();
  expect(clock.timers()).toBe(0);
  expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
});

test('a refused connection is about the provider and not about the message', async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  const provider = createSmtpProvider({
    url: `smtp://127.0.0.1:${port}`,
    clock: createMovableClock(),
    heloName: 'c.test',
  });
  const outcomes = await Promise.all([send(provider, 'a@example.test'), send(provider, 'b@example.test')]);
  for (const outcome of outcomes) {
    expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
    expect(outcome.reply?.diagnostic).toContain('ECONNREFUSED');
  }
  expect(await provider.probe()).toContain('ECONNREFUSED');
  await provider.close();
});

test('a host that does not answer is given up after thirty seconds', async () => {
  const sockets: Socket[] = [];
  // Accepts TCP and never begins TLS: the nearest to a black hole that loopback has.
  const server = createServer((socket) => sockets.push(socket));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const connected = new Promise((resolve) => server.once('connection', resolve));
  const clock = createMovableClock();
  const { port } = server.address() as AddressInfo;
  const provider = createSmtpProvider({ url: `smtps://127.0.0.1:${port}`, clock, heloName: 'c.test' });
  const sending = send(provider, 'a@example.test');
  await connected;
  await allReadsDone();
  clock.advance(60_000);
  expect(await sending).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  await provider.close();
  for (const socket of sockets) socket.destroy();
  await new Promise((resolve) => server.close(resolve));
});

test('an abort frees what waits and what is announced, at once, and leaves the rest alone', async () => {
  const { provider, sink } = await arrange({ script: at('rcpt', { stall: true }) });
  const controller = new AbortController();
  const reason = new Error('shutting down');
  const reached = sink.reached('rcpt');
  const aborted = [1, 2].map((number) =>
    send(provider, `r${number}@example.test`, { signal: controller.signal }),
  );
  const other = send(provider, 'other@example.test');
  await reached;
  controller.abort(reason);
  for (const sending of aborted) await expect(sending).rejects.toBe(reason);
  expect((await other).kind).toBe('accepted');
  expect(sink.messages.map(({ recipients }) => recipients[0])).toEqual(['other@example.test']);
});

test('closing waits for the reply after the dot', async () => {
  let answer: (action: undefined) => void = () => undefined;
  const { provider, sink } = await arrange({
    script: ({ phase }) =>
      phase === 'content'
        ? new Promise((resolve) => {
            answer = resolve;
          })
        : undefined,
  });
  let isConfirmed: () => void = () => undefined;
  const confirmed = new Promise<void>((resolve) => {
    isConfirmed = resolve;
  });
  const sending = send(provider, 'a@example.test', { confirm: async () => isConfirmed() });
  await confirmed;
  const closing = provider.close();
  await allReadsDone();
  answer(undefined);
  expect((await sending).kind).toBe('accepted');
  await closing;
  await sink.quiet();
});

test.each(['starttls', 'implicit'] as const)(
  'a certificate is checked, and mail goes over TLS (%s)',
  async (tls) => {
    const scheme = tls === 'implicit' ? 'smtps' : 'smtp';
    const parameters = tls === 'implicit' ? '' : 'tls=required';
    const trusting = await arrange({ tls, scheme, parameters, authorities: certificateForTests });
    expect((await send(trusting.provider, 'a@example.test')).kind).toBe('accepted');
    expect(trusting.sink.messages[0]!.isSecure).toBe(true);

    const careful = await arrange({ tls, scheme, parameters });
    const outcome = await send(careful.provider, 'a@example.test');
    expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
    expect(outcome.reply?.diagnostic).toContain('self-signed certificate');
    expect(careful.sink.messages).toHaveLength(0);

    const careless = await arrange({ tls, scheme, parameters: `${parameters}&insecure=1` });
    expect((await send(careless.provider, 'a@example.test')).kind).toBe('accepted');
  },
);

test('opportunistic TLS takes any certificate, and plain text where TLS is not offered', async () => {
  const encrypted = await arrange({ tls: 'starttls' });
  await send(encrypted.provider, 'a@example.test');
  expect(encrypted.sink.messages[0]!.isSecure).toBe(true);

  for (const action of [
    { reply: '454 4.7.0 Not now' },
    { close: true },
    { reply: '220 Ready', thenClose: true },
  ] as const) {
    const plain = await arrange({ tls: 'starttls', script: at('starttls', action) });
    const outcome = await send(plain.provider, 'a@example.test');
    // A connection cut at the command itself says nothing about TLS.
    expect(outcome.kind).toBe('close' in action ? 'deferred' : 'accepted');
  }
});

test.each([
  { tls: 'none' as const },
  { tls: 'starttls' as const, script: at('starttls', { reply: '454 4.7.0 Not now' }) },
])('nothing is sent without TLS where it is required', async (options) => {
  const { provider, sink } = await arrange({ ...options, parameters: 'tls=required' });
  expect(await send(provider, 'a@example.test')).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
  });
  expect(sink.commands.some((command) => command.startsWith('MAIL'))).toBe(false);
});

test("words slipped in before the TLS handshake are not taken for the server's", async () => {
  const { provider, sink } = await arrange({
    tls: 'starttls',
    parameters: 'tls=required&insecure=1',
    script: at('starttls', { reply: '220 Ready\r\n250 injected' }),
  });
  expect(await send(provider, 'a@example.test')).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
  });
  expect(sink.messages).toHaveLength(0);
});

const auth = { user: 'post@example.test', password: 'geheim:%' };
const userinfo = 'post%40example.test:geheim%3A%25@';

test.each(['PLAIN', 'LOGIN'] as const)('credentials are given by AUTH %s', async (mechanism) => {
  const { provider, sink } = await arrange({ userinfo, auth: { ...auth, mechanisms: [mechanism] } });
  expect((await send(provider, 'a@example.test')).kind).toBe('accepted');
  expect(sink.commands.some((command) => command.startsWith(`AUTH ${mechanism}`))).toBe(true);
});

test('credentials too long for a command line are sent after the challenge', async () => {
  const password = 'p'.repeat(500);
  const { provider, sink } = await arrange({
    userinfo: `user:${password}@`,
    auth: { user: 'user', password, mechanisms: ['PLAIN'] },
  });
  expect((await send(provider, 'a@example.test')).kind).toBe('accepted');
  expect(sink.commands).toContain('AUTH PLAIN');
});

test('refused credentials are about the provider, and appear in no outcome even if the server repeats them', async () => {
  const secret = Buffer.from(`\0${auth.user}\0${auth.password}`).toString('base64');
  const { provider } = await arrange({
    userinfo,
    auth: { ...auth, mechanisms: ['PLAIN'] },
    script: at('auth', { reply: `535 5.7.8 Not ${auth.password} nor ${secret}` }),
  });
  const outcome = await send(provider, 'a@example.test');
  expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable', reply: { code: 535 } });
  expect(JSON.stringify(outcome)).not.toMatch(/geheim|Z2VoZWlt/);
  expect(JSON.stringify(outcome)).not.toContain(secret);
});

test('a server without a mechanism that we know is not sent anything', async () => {
  const { provider } = await arrange({ userinfo });
  const outcome = await send(provider, 'a@example.test');
  expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(outcome.reply?.diagnostic).toContain('AUTH');
});

test.each([
  ['2.0.0 Ok: queued as 4XyZ1abcDEFz', '4XyZ1abcDEFz'],
  ['OK id=1rXyZa-0000ab-Cd', '1rXyZa-0000ab-Cd'],
  ['Ok 0100018f3a2b-4c5d-000000', '0100018f3a2b-4c5d-000000'],
  ['2.0.0 OK  1700000000 abc.12 - gsmtp', '2.0.0 OK  1700000000 abc.12 - gsmtp'],
  ['2.0.0 Ok: queued as spam', '2.0.0 Ok: queued as spam'],
  ['', '250'],
])('the reply %j names the message %j', async (text, expected) => {
  const { provider } = await arrange({ script: at('content', { reply: `250 ${text}` }) });
  expect(await send(provider, 'a@example.test')).toMatchObject({
    kind: 'accepted',
    providerMessageId: expected,
  });
});

test('hand-offs beyond all measure are put off and not piled up', async () => {
  const { provider } = await arrange();
  const outcomes = await Promise.all(
    Array.from({ length: 100 }, (_, number) => send(provider, `r${number}@example.test`)),
  );
  const putOff = outcomes.filter(({ kind }) => kind === 'deferred');
  expect(putOff.length).toBe(36);
  expect(putOff[0]).toMatchObject({ reason: 'rate_limited' });
});
