import { afterEach, describe, expect, test } from 'vitest';
import { certificateForTests } from '../../../../../test/support/certificate-for-tests.ts';
import { createShiftedClock } from '../../../../../test/support/email-journey.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { ManualClock } from '../../../../../test/support/manual-clock.ts';
import { describeSmsProvider } from '../../../../../test/support/sms-provider-conformance.ts';
import { smscNumbers, startSmsc } from '../../../../../test/support/smsc.ts';
import type { Smsc, SmscAnswer, SmscOptions } from '../../../../../test/support/smsc.ts';
import type { Clock } from '../../../../platform/clock.ts';
import type { Log } from '../../../../platform/log.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type {
  InboundSms,
  SmsFailure,
  SmsHandOff,
  SmsIntake,
  SmsProvider,
  SmsReceipt,
} from '../../provider.ts';
import { createSmppProvider } from './smpp.ts';
import { parseSmppUrl } from './url.ts';

type RecordingIntake = SmsIntake & {
  receipts: SmsReceipt[];
  inbound: InboundSms[];
  until: (isTrue: () => boolean) => Promise<void>;
  /** Called before anything is taken; rejecting, it is not. */
  before: () => Promise<void>;
};

type Signal = { note: () => void; until: (isTrue: () => boolean) => Promise<void> };

/** Lets waits for a condition check it again whenever it may have become true. */
function createSignal(): Signal {
  let expectations: { isTrue: () => boolean; resolve: () => void }[] = [];
  return {
    note: () => {
      const met = expectations.filter(({ isTrue }) => isTrue());
      expectations = expectations.filter((expectation) => !met.includes(expectation));
      for (const { resolve } of met) resolve();
    },
    until: (isTrue) =>
      isTrue()
        ? Promise.resolve()
        : new Promise((resolve) => {
            expectations.push({ isTrue, resolve });
          }),
  };
}

function createRecordingIntake(): RecordingIntake {
  const { note, until } = createSignal();
  const intake: RecordingIntake = {
    receipts: [],
    inbound: [],
    before: async () => undefined,
    until,
    takeReceipt: async (receipt) => {
      await intake.before();
      intake.receipts.push(receipt);
      note();
    },
    takeInbound: async (inbound) => {
      await intake.before();
      intake.inbound.push(inbound);
      note();
    },
  };
  return intake;
}

for (const bind of ['transceiver', 'separate']) {
  describeSmsProvider(`smpp (bind=${bind})`, async () => {
    const smsc = await startSmsc();
    const clock = createShiftedClock();
    const intake = createRecordingIntake();
    const provider = createSmppProvider({
      url: parseSmppUrl(`smpp://user:secret@127.0.0.1:${smsc.port}?bind=${bind}`),
      clock,
      random: () => 0,
      intake,
    });
    return {
      provider,
      recipients: {
        accepted: smscNumbers.accepted,
        rejected: smscNumbers.invalidDestination,
        deferred: smscNumbers.systemError,
      },
      recipientOfLostAnswer: smscNumbers.lost,
      silence: {
        recipient: smscNumbers.silent,
        whenTaken: () => smsc.until(() => smsc.counts.submits > 0),
        passTime: clock.putForward,
      },
      delivered: async () => smsc.texts(),
      receiptOf: async (id) => {
        await intake.until(() => intake.receipts.some(({ providerMessageId }) => providerMessageId === id));
        return intake.receipts.find(({ providerMessageId }) => providerMessageId === id)!;
      },
      dispose: async () => {
        await smsc.until(() => smsc.openConnections() === 0);
        await smsc.close();
      },
    };
  });
}

const open: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

type CountingClock = ManualClock & { timers: () => number; delaysMs: number[] };

/** A clock that knows how many callbacks wait, so that a test sees which were left. */
function createCountingClock(): CountingClock {
  const clock = createManualClock();
  const delaysMs: number[] = [];
  let timers = 0;
  return {
    ...clock,
    delaysMs,
    after: (delayMs, callback) => {
      delaysMs.push(delayMs);
      timers += 1;
      let isPending = true;
      const end = () => {
        if (isPending) timers -= 1;
        isPending = false;
      };
      const cancel = clock.after(delayMs, () => {
        end();
        callback();
      });
      return () => {
        end();
        cancel();
      };
    },
    timers: () => timers,
  };
}

/** What a provider says of its connections, as they change. */
type StateLog = { log: Log; states: string[]; statesByRole: string[]; until: Signal['until'] };

function createStateLog(): StateLog {
  const { note, until } = createSignal();
  const states: string[] = [];
  const statesByRole: string[] = [];
  const record = ({ role = '', state }: { role?: string; state?: string }) => {
    if (state !== undefined) {
      states.push(state);
      statesByRole.push(`${role} ${state}`);
    }
    note();
  };
  // Only what the provider uses of it.
  return {
    log: { debug: record, info: record, warn: record } as unknown as Log,
    states,
    statesByRole,
    until,
  };
}

type Bench = {
  smsc: Smsc;
  provider: SmsProvider;
  intake: RecordingIntake;
  clock: CountingClock;
  states: StateLog;
};

/** A provider at a message centre. Both are closed after the test, and the provider must have left nothing open. */
async function arrange(
  options: SmscOptions & { parameters?: string; isBoundAtOnce?: boolean; authorities?: string } = {},
): Promise<Bench> {
  const clock = createCountingClock();
  const smsc = await startSmsc(options);
  open.push(smsc.close);
  const intake = createRecordingIntake();
  const states = createStateLog();
  const provider = createProvider(smsc, { clock, intake, log: states.log }, options);
  open.push(async () => {
    await provider.close();
    await smsc.until(() => smsc.openConnections() === 0);
    expect(clock.timers()).toBe(0);
  });
  if (options.isBoundAtOnce !== false) expect(await provider.probe()).toBeNull();
  return { smsc, provider, intake, clock, states };
}

function createProvider(
  smsc: Smsc,
  tools: { clock: Clock; intake: SmsIntake; log: Log },
  options: { isSecure?: boolean; parameters?: string; authorities?: string },
): SmsProvider {
  const scheme = options.isSecure ? 'smpps' : 'smpp';
  return createSmppProvider({
    url: parseSmppUrl(`${scheme}://user:secret@127.0.0.1:${smsc.port}?${options.parameters ?? ''}`),
    random: () => 0,
    ...tools,
    ...(options.authorities === undefined ? {} : { authorities: options.authorities }),
  });
}

function send(
  provider: SmsProvider,
  to: string,
  more: Partial<SmsHandOff> = {},
): Promise<SendOutcome<SmsFailure>> {
  return provider.handOff({
    reference: { organizationId: 'org', messageId: 'message', ordinal: 0 },
    sender: { name: 'Postillion', type: 'alphanumeric' },
    to,
    text: 'Hello.',
    confirm: async () => undefined,
    signal: new AbortController().signal,
    ...more,
  });
}

/** A gate that a test opens. */
function createGate(): { opened: Promise<SmscAnswer>; open: () => void } {
  let openGate = (): void => undefined;
  const opened = new Promise<SmscAnswer>((resolve) => {
    openGate = () => {
      resolve('accepted');
    };
  });
  return { opened, open: openGate };
}

const longText = `${'A long text with some €uros and {braces}. '.repeat(12)}The end.`;

test('never has more texts waiting for their answer than the window allows, and fills it', async () => {
  const gate = createGate();
  const { smsc, provider } = await arrange({
    parameters: 'window=7',
    answer: () => gate.opened,
  });
  const outcomes = Promise.all(
    Array.from({ length: 40 }, (_, at) =>
      send(provider, smscNumbers.accepted, at % 4 === 0 ? { text: longText } : {}),
    ),
  );
  await smsc.until(() => smsc.counts.submits === 7);
  gate.open();
  expect((await outcomes).every(({ kind }) => kind === 'accepted')).toBe(true);
  expect(smsc.counts.underWayMost).toBe(7);
});

test('uses all of its connections', async () => {
  const gate = createGate();
  const { smsc, provider } = await arrange({
    parameters: 'window=1&connections=3',
    answer: () => gate.opened,
  });
  await smsc.until(() => smsc.counts.binds === 3);
  const outcomes = Promise.all(Array.from({ length: 9 }, () => send(provider, smscNumbers.accepted)));
  await smsc.until(() => smsc.counts.submits === 3);
  gate.open();
  expect((await outcomes).every(({ kind }) => kind === 'accepted')).toBe(true);
  expect(new Set(smsc.submits.map(({ connection }) => connection)).size).toBe(3);
});

test('gives a text to the connection with the most room', async () => {
  const gate = createGate();
  const { smsc, provider } = await arrange({
    parameters: 'window=3&connections=2',
    answer: () => gate.opened,
  });
  await smsc.until(() => smsc.counts.binds === 2);
  const outcomes = Promise.all(Array.from({ length: 4 }, () => send(provider, smscNumbers.accepted)));
  await smsc.until(() => smsc.counts.submits === 4);
  gate.open();
  await outcomes;
  expect(smsc.submits.map(({ connection }) => connection).toSorted()).toEqual([1, 1, 2, 2]);
});

test('lets a text wait for a connection that is busy, while another cannot be had', async () => {
  const gate = createGate();
  const { smsc, provider, clock, states } = await arrange({
    parameters: 'window=1&connections=2',
    bind: (count) => (count > 2 ? 0x0d : 0),
    answer: ({ number }) => (number === 1 ? gate.opened : undefined),
  });
  await smsc.until(() => smsc.counts.binds === 2);
  const busy = send(provider, smscNumbers.accepted);
  expect((await send(provider, smscNumbers.lost)).kind).toBe('unknown');
  await states.until(() => states.states.at(-1) === 'opening');
  clock.advance(50);
  await states.until(() => states.states.at(-1) === 'failing');
  expect(await provider.probe()).toBeNull();
  const waiting = send(provider, smscNumbers.accepted);
  gate.open();
  expect([(await busy).kind, (await waiting).kind]).toEqual(['accepted', 'accepted']);
});

describe('with separate binds', () => {
  test('submits on the transmitter, and gets receipts on the receiver', async () => {
    const { smsc, provider, intake } = await arrange({
      parameters: 'bind=separate',
      bind: (_count, role) => (role === 'transceiver' ? 0x03 : 0),
    });
    expect(smsc.commands.toSorted()).toEqual(['bind_receiver', 'bind_transmitter']);
    expect((await send(provider, smscNumbers.accepted, { text: longText })).kind).toBe('accepted');
    await intake.until(() => intake.receipts.length === 1);
    expect(intake.receipts).toMatchObject([{ providerMessageId: 'M4', status: 'delivered' }]);
    await smsc.deliver({ source_addr: '+491510000001', destination_addr: '12345', short_message: 'Hi' });
    expect(intake.inbound).toMatchObject([{ text: 'Hi' }]);
  });

  test('opens as many of each as it may have connections', async () => {
    const { smsc } = await arrange({ parameters: 'bind=separate&connections=2' });
    await smsc.until(() => smsc.counts.binds === 4);
    expect(smsc.commands.toSorted()).toEqual([
      'bind_receiver',
      'bind_receiver',
      'bind_transmitter',
      'bind_transmitter',
    ]);
  });

  test('goes on sending while its receiver is lost, and gets the receipts when that is back', async () => {
    let mayReceive = true;
    const bench = await arrange({
      parameters: 'bind=separate',
      bind: (_count, role) => (role === 'receiver' && !mayReceive ? 0x0d : 0),
    });
    const { smsc, provider, intake, clock, states } = bench;
    const stateIs = (state: string) => states.until(() => states.statesByRole.at(-1) === state);
    mayReceive = false;
    smsc.drop('receiver');
    await stateIs('receiver opening');
    clock.advance(50);
    await stateIs('receiver failing');
    expect(await provider.probe()).toBe('the bind as receiver was refused: ESME_RBINDFAIL');
    expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
    expect(intake.receipts).toEqual([]);
    mayReceive = true;
    clock.advance(100);
    await stateIs('receiver bound');
    await intake.until(() => intake.receipts.length === 1);
    expect(await provider.probe()).toBeNull();
    expect(states.statesByRole.filter((state) => state.startsWith('transmitter'))).toEqual([
      'transmitter bound',
    ]);
  });

  test('carries no texts while its transmitter is lost, and still takes receipts', async () => {
    let mayTransmit = true;
    const { smsc, provider, intake, clock, states } = await arrange({
      parameters: 'bind=separate',
      bind: (_count, role) => (role === 'transmitter' && !mayTransmit ? 0x0d : 0),
    });
    mayTransmit = false;
    smsc.drop('transmitter');
    await states.until(() => states.statesByRole.at(-1) === 'transmitter opening');
    const outcome = send(provider, smscNumbers.accepted);
    clock.advance(50);
    expect(await outcome).toMatchObject({
      kind: 'deferred',
      reason: 'provider_unavailable',
      reply: { diagnostic: 'the bind as transmitter was refused: ESME_RBINDFAIL' },
    });
    expect(await provider.probe()).toBe('the bind as transmitter was refused: ESME_RBINDFAIL');
    await smsc.deliver({ source_addr: '+491510000001', destination_addr: '12345', short_message: 'Hi' });
    expect(intake.inbound).toMatchObject([{ text: 'Hi' }]);
  });

  test('asks both whether they live, and unbinds both when it closes', async () => {
    const { smsc, provider, clock } = await arrange({ parameters: 'bind=separate' });
    const countOf = (command: string) => smsc.commands.filter((each) => each === command).length;
    clock.advance(30_000);
    await smsc.until(() => countOf('enquire_link') === 2);
    await provider.close();
    expect(countOf('unbind')).toBe(2);
  });
});

test('says that a message centre takes no transceivers', async () => {
  const { provider } = await arrange({
    isBoundAtOnce: false,
    bind: (_count, role) => (role === 'transceiver' ? 0x03 : 0),
  });
  expect(await provider.probe()).toBe('the bind as transceiver was refused: ESME_RINVCMDID');
});

test('asks for a receipt of the last part only, under whose name the text is accepted', async () => {
  const { smsc, provider } = await arrange({ parameters: 'validity_minutes=1501' });
  const outcome = await send(provider, smscNumbers.accepted, { text: longText });
  expect(smsc.submits.map(({ isReceiptWanted }) => isReceiptWanted)).toEqual([false, false, false, true]);
  expect(outcome).toMatchObject({ kind: 'accepted', providerMessageId: 'M4' });
  expect(new Set(smsc.submits.map(({ header }) => header!.slice(4, 6))).size).toBe(1);
  expect(smsc.submits.map(({ validityPeriod }) => validityPeriod)).not.toContain('');
  await send(provider, smscNumbers.accepted, { text: longText });
  expect(smsc.submits[4]!.header!.slice(4, 6)).not.toBe(smsc.submits[0]!.header!.slice(4, 6));
});

test('marks each type of sender as the URL says', async () => {
  const { smsc, provider } = await arrange({ parameters: 'short_code=6/0&destination=0/1' });
  for (const sender of [
    { name: 'Postillion', type: 'alphanumeric' },
    { name: '15551230000', type: 'long_code' },
    { name: '18005550100', type: 'toll_free' },
    { name: '12345', type: 'short_code' },
  ] as const) {
    await send(provider, smscNumbers.accepted, { sender });
  }
  expect(smsc.submits.map(({ fromPlan, toPlan }) => [fromPlan, toPlan])).toEqual([
    ['5/0', '0/1'],
    ['1/1', '0/1'],
    ['1/1', '0/1'],
    ['6/0', '0/1'],
  ]);
});

test('puts off what is too much, stops for a moment, and allows less at once for a while', async () => {
  let answer: SmscAnswer | Promise<SmscAnswer> = { status: 0x58 };
  const { smsc, provider, clock } = await arrange({ parameters: 'window=8', answer: () => answer });
  expect(await send(provider, smscNumbers.accepted)).toMatchObject({
    kind: 'deferred',
    reason: 'rate_limited',
    retryAfterMs: 1_000,
    reply: { code: 0x58, diagnostic: 'ESME_RTHROTTLED' },
  });
  const gate = createGate();
  answer = gate.opened;
  const outcomes = Promise.all(Array.from({ length: 60 }, () => send(provider, smscNumbers.accepted)));
  clock.advance(249);
  await smsc.enquire();
  expect(smsc.counts.submits).toBe(1);
  clock.advance(1);
  await smsc.until(() => smsc.counts.submits === 5);
  await smsc.enquire();
  expect(smsc.counts.submits).toBe(5);
  gate.open();
  expect((await outcomes).every(({ kind }) => kind === 'accepted')).toBe(true);
  expect(smsc.counts.underWayMost).toBe(8);
});

test('goes on when the first of several pauses is over, also where it began last', async () => {
  const throttled: SmscAnswer = { status: 0x58 };
  const gate = createGate();
  const connections: number[] = [];
  const { smsc, provider, clock } = await arrange({
    parameters: 'window=1&connections=2',
    answer: ({ number, connection }) => {
      connections.push(connection);
      if (number === 3) return gate.opened.then(() => throttled);
      return number < 3 ? throttled : 'accepted';
    },
  });
  await smsc.until(() => smsc.counts.binds === 2);
  // The first connection pauses for 250 ms, and then for 500.
  await send(provider, smscNumbers.accepted);
  clock.advance(250);
  await send(provider, smscNumbers.accepted);
  const onOther = send(provider, smscNumbers.accepted);
  const waiting = send(provider, smscNumbers.accepted);
  clock.advance(100);
  gate.open();
  expect((await onOther).kind).toBe('deferred');
  clock.advance(250);
  await smsc.enquire();
  expect(connections).toEqual([1, 1, 2, 2]);
  expect((await waiting).kind).toBe('accepted');
});

test('goes on after one pause as after the one before', async () => {
  const { smsc, provider, clock } = await arrange({
    parameters: 'window=1',
    answer: ({ number }) => (number < 3 ? { status: 0x58 } : 'accepted'),
  });
  await send(provider, smscNumbers.accepted);
  for (const [submits, pauseMs] of [
    [1, 250],
    [2, 500],
  ] as const) {
    const waiting = send(provider, smscNumbers.accepted);
    await smsc.enquire();
    expect(smsc.counts.submits).toBe(submits);
    clock.advance(pauseMs);
    await smsc.enquire();
    expect(smsc.counts.submits).toBe(submits + 1);
    await waiting;
  }
});

test('leaves nothing to resume where the text that waited for the end of a pause is aborted', async () => {
  const { provider, clock } = await arrange({ answer: () => ({ status: 0x58 }) });
  await send(provider, smscNumbers.accepted);
  const controller = new AbortController();
  const waiting = send(provider, smscNumbers.accepted, { signal: controller.signal });
  controller.abort(new Error('the worker ends'));
  await expect(waiting).rejects.toThrow('the worker ends');
  await provider.close();
  expect(clock.timers()).toBe(0);
});

test('submits no more parts a second than the rate, tried again or not, and none before its time', async () => {
  const atMs: number[] = [];
  let clockMs = (): number => 0;
  const bench = await arrange({
    parameters: 'rate=20&window=50&connections=2',
    answer: ({ number }) => {
      atMs.push(clockMs());
      // The later parts of some of the long texts, and a few that are begun no more.
      return number % 9 === 8 ? { status: 0x58 } : undefined;
    },
  });
  const { smsc, provider, clock } = bench;
  clockMs = clock.monotonicMs;
  expect(provider.concurrency).toBe(100);
  let settled = 0;
  const outcomes = Array.from({ length: 60 }, (_, at) =>
    send(provider, smscNumbers.accepted, at % 5 === 0 ? { text: longText } : {}).finally(
      () => (settled += 1),
    ),
  );
  while (settled < outcomes.length) {
    clock.advance(10);
    await smsc.enquire();
  }
  const kinds = (await Promise.all(outcomes)).map(({ kind }) => kind);
  expect(new Set(kinds)).toEqual(new Set(['accepted', 'deferred']));
  expect(atMs.length).toBeGreaterThan(90);
  for (const [at, firstMs] of atMs.entries()) {
    const beyondMs = atMs[at + 20];
    if (beyondMs !== undefined) expect(beyondMs - firstMs).toBeGreaterThanOrEqual(1_000);
  }
});

test('confirms a text no more than a moment before its turn', async () => {
  const { smsc, provider, clock } = await arrange({ parameters: 'rate=1' });
  let confirmed = 0;
  const confirm = async () => {
    confirmed += 1;
  };
  const outcomes = Promise.all([1, 2].map(() => send(provider, smscNumbers.accepted, { confirm })));
  await smsc.until(() => smsc.counts.submits === 1);
  clock.advance(700);
  await smsc.enquire();
  expect(confirmed).toBe(1);
  clock.advance(100);
  await smsc.enquire();
  expect([confirmed, smsc.counts.submits]).toEqual([2, 1]);
  clock.advance(210);
  expect((await outcomes).map(({ kind }) => kind)).toEqual(['accepted', 'accepted']);
});

/** Moves the clock until so many texts have come. */
async function advanceUntilSubmits({ smsc, clock }: Bench, count: number): Promise<void> {
  while (smsc.counts.submits < count) {
    clock.advance(500);
    await smsc.enquire();
  }
}

test('tries a later part again that is put off, and delivers the text whole', async () => {
  const bench = await arrange({
    answer: ({ number }) => (number === 3 || number === 4 ? { status: 0x58 } : undefined),
  });
  const outcome = send(bench.provider, smscNumbers.accepted, { text: longText });
  await advanceUntilSubmits(bench, 6);
  expect(await outcome).toMatchObject({ kind: 'accepted', providerMessageId: 'M6' });
  expect(bench.smsc.texts()).toEqual([{ from: 'Postillion', to: smscNumbers.accepted, text: longText }]);
});

test('rejects a text whose later part is put off again and again, and tries it no more', async () => {
  const bench = await arrange({ answer: ({ number }) => (number > 1 ? { status: 0x14 } : undefined) });
  const outcome = send(bench.provider, smscNumbers.accepted, { text: longText });
  await advanceUntilSubmits(bench, 7);
  expect(await outcome).toMatchObject({ kind: 'rejected', reason: 'rate_limited' });
  expect(bench.smsc.counts.submits).toBe(7);
  bench.clock.advance(10_000);
});

test('rejects a text whose later part is refused', async () => {
  const { smsc, provider } = await arrange({
    answer: ({ number }) => (number === 2 ? { status: 0x01 } : undefined),
  });
  const outcome = await send(provider, smscNumbers.accepted, { text: longText });
  expect(outcome).toMatchObject({ kind: 'rejected', reason: 'invalid_message' });
  expect(smsc.counts.submits).toBe(2);
});

test.each([1, 2, 3])(
  'rejects a long text when the answer to its part %i is lost, and sends no further part',
  async (lostNumber) => {
    const { smsc, provider } = await arrange({
      answer: ({ number }) => (number === lostNumber ? 'lost' : undefined),
    });
    const outcome = await send(provider, smscNumbers.accepted, { text: longText });
    expect(outcome).toMatchObject({
      kind: 'rejected',
      reason: 'other',
      reply: {
        diagnostic: expect.stringMatching(`^cut off after ${lostNumber} of 4 parts: .*clos`) as string,
      },
    });
    expect(smsc.counts.submits).toBe(lostNumber);
  },
);

test('rejects a long text whose connection is lost before its last part is submitted', async () => {
  const { smsc, provider, clock, states } = await arrange({ parameters: 'rate=1' });
  const outcome = send(provider, smscNumbers.accepted, { text: longText });
  while (smsc.counts.submits < 3) {
    clock.advance(10);
    await smsc.enquire();
  }
  await smsc.enquire();
  smsc.drop();
  await states.until(() => states.states.at(-1) === 'opening');
  for (let step = 0; step < 200; step += 1) {
    clock.advance(10);
    await Promise.resolve();
  }
  expect(await outcome).toMatchObject({ kind: 'rejected', reason: 'other' });
  expect(smsc.counts.submits).toBe(3);
});

test('rejects a long text whose connection is lost before its last part, put off once, is tried again', async () => {
  const { smsc, provider, clock, states } = await arrange({
    answer: ({ number }) => (number === 4 ? { status: 0x58 } : undefined),
  });
  const outcome = send(provider, smscNumbers.accepted, { text: longText });
  await smsc.until(() => smsc.counts.submits === 4);
  await smsc.enquire();
  smsc.drop();
  await states.until(() => states.states.at(-1) === 'opening');
  clock.advance(1_000);
  expect(await outcome).toMatchObject({
    kind: 'rejected',
    reply: { diagnostic: expect.stringMatching('^cut off after 3 of 4 parts: ') as string },
  });
  expect(smsc.counts.submits).toBe(4);
});

test('is uncertain of a long text when the answer to its last part is lost', async () => {
  const { smsc, provider } = await arrange({
    answer: ({ number }) => (number === 4 ? 'lost' : undefined),
  });
  expect((await send(provider, smscNumbers.accepted, { text: longText })).kind).toBe('unknown');
  expect(smsc.counts.submits).toBe(4);
});

test('is uncertain of a text without an answer for 30 seconds, and gives its place to another', async () => {
  const { smsc, provider, clock } = await arrange({ parameters: 'window=1' });
  let silentOutcome: SendOutcome<SmsFailure> | null = null;
  const silent = send(provider, smscNumbers.silent).then((outcome) => (silentOutcome = outcome));
  const other = send(provider, smscNumbers.accepted);
  await smsc.until(() => smsc.counts.submits === 1);
  clock.advance(29_999);
  await smsc.enquire();
  expect(silentOutcome).toBeNull();
  clock.advance(1);
  expect(await silent).toMatchObject({ kind: 'unknown' });
  expect((await other).kind).toBe('accepted');
  expect(smsc.counts.binds).toBe(1);
});

test('reports an answer that comes after its time as a receipt, so that the text is uncertain no more', async () => {
  const gates = [createGate(), createGate()];
  const { smsc, provider, intake, clock } = await arrange({
    answer: async ({ number }) =>
      (await gates[number - 1]!.opened) && number === 1 ? 'accepted' : { status: 0x0b },
    receipt: () => null,
  });
  const outcomes = Promise.all([send(provider, smscNumbers.accepted), send(provider, smscNumbers.accepted)]);
  await smsc.until(() => smsc.counts.submits === 2);
  clock.advance(30_000);
  expect((await outcomes).map(({ kind }) => kind)).toEqual(['unknown', 'unknown']);
  for (const gate of gates) gate.open();
  await intake.until(() => intake.receipts.length === 2);
  const reference = { organizationId: 'org', messageId: 'message', ordinal: 0 };
  expect(intake.receipts).toMatchObject([
    { providerMessageId: 'M1', reference, status: 'sent', failure: null },
    { providerMessageId: null, reference, status: 'failed', failure: 'unknown_subscriber' },
  ]);
});

/** Cuts the connection, and resolves when another is bound. */
async function cutAndRebind({ smsc, clock, states }: Bench): Promise<void> {
  const { length } = states.states;
  smsc.drop();
  await states.until(() => states.states.length > length);
  clock.advance(50);
  await states.until(() => states.states.length > length + 1);
  expect(states.states.slice(length)).toEqual(['opening', 'bound']);
}

test('puts off, and does not submit, a text whose connection is lost while it is confirmed', async () => {
  const bench = await arrange();
  const outcome = await send(bench.provider, smscNumbers.accepted, { confirm: () => cutAndRebind(bench) });
  expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(bench.smsc.counts.submits).toBe(0);
});

test('is certain of an answer that came before the connection was lost', async () => {
  const { provider, states, clock } = await arrange();
  expect((await send(provider, smscNumbers.droppedAfterAnswer)).kind).toBe('accepted');
  await states.until(() => states.states.at(-1) === 'opening');
  const next = send(provider, smscNumbers.accepted);
  clock.advance(50);
  expect((await next).kind).toBe('accepted');
});

test('waits for a bind, and sends when it is taken', async () => {
  const { smsc, provider } = await arrange({ isBoundAtOnce: false });
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
  expect(smsc.counts.binds).toBe(1);
});

test('says why it cannot bind, tries again at growing distances, and works once it is taken', async () => {
  const refusedCount = 11;
  const { smsc, provider, clock, states } = await arrange({
    isBoundAtOnce: false,
    bind: (count) => (count <= refusedCount ? 0x0e : 0),
  });
  const waiting = send(provider, smscNumbers.accepted, {
    confirm: () => Promise.reject(new Error('confirmed without a connection')),
  });
  expect(await waiting).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: {
      code: 0x0e,
      diagnostic: 'the bind as transceiver was refused: ESME_RINVPASWD',
      remote: '127.0.0.1',
    },
  });
  expect(await provider.probe()).toBe('the bind as transceiver was refused: ESME_RINVPASWD');
  const pausesMs: number[] = [];
  for (let count = 1; count <= refusedCount; count += 1) {
    await smsc.until(() => smsc.counts.binds === count && smsc.openConnections() === 0);
    await clock.whenWaiting(1);
    const pauseMs = clock.delaysMs.at(-1)!;
    pausesMs.push(pauseMs);
    clock.advance(pauseMs);
  }
  await states.until(() => states.states.at(-1) === 'bound');
  expect(pausesMs).toEqual([50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 15_000, 15_000]);
  expect(states.states).toEqual(['failing', 'bound']);
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
});

test('gives up a bind that is not answered', async () => {
  const { smsc, provider, clock } = await arrange({ isBoundAtOnce: false, bind: () => 'silent' });
  const outcome = send(provider, smscNumbers.accepted);
  await smsc.until(() => smsc.counts.binds === 1);
  await clock.whenWaiting(1);
  clock.advance(10_000);
  expect(await outcome).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: { diagnostic: 'binding as transceiver: the server did not answer in time' },
  });
});

test('says that nothing listens', async () => {
  const { smsc, provider, states, clock } = await arrange();
  await smsc.close();
  await states.until(() => states.states.at(-1) === 'opening');
  const outcome = send(provider, smscNumbers.accepted);
  clock.advance(50);
  expect(await outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(await provider.probe()).toMatch(/^connecting: .*ECONNREFUSED/);
});

test('speaks TLS to a certificate that it trusts, and to no other', async () => {
  const trusting = await arrange({ isSecure: true, authorities: certificateForTests });
  expect((await send(trusting.provider, smscNumbers.accepted)).kind).toBe('accepted');
  const insecure = await arrange({ isSecure: true, parameters: 'insecure=1' });
  expect((await send(insecure.provider, smscNumbers.accepted)).kind).toBe('accepted');
  const wary = await arrange({ isSecure: true, isBoundAtOnce: false });
  expect(await wary.provider.probe()).toMatch(/^connecting: .*certificate/);
  expect(wary.smsc.counts.binds).toBe(0);
});

test('asks a silent connection whether it lives, and makes a new one if it does not', async () => {
  const { smsc, provider, clock, states } = await arrange();
  clock.advance(29_999);
  await smsc.enquire();
  clock.advance(29_999);
  await smsc.enquire();
  expect(smsc.commands).not.toContain('enquire_link');
  clock.advance(30_000);
  await smsc.until(() => smsc.commands.filter((command) => command === 'enquire_link').length === 1);
  // Answered, so that the next question comes half a minute later.
  await smsc.enquire();
  smsc.isDeaf = true;
  clock.advance(30_000);
  clock.advance(10_000);
  await states.until(() => states.states.at(-1) === 'opening');
  smsc.isDeaf = false;
  clock.advance(50);
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
  expect(smsc.counts.binds).toBe(2);
});

test('keeps a connection that speaks, although its question is not answered', async () => {
  const { smsc, provider, clock } = await arrange();
  smsc.isDeaf = true;
  clock.advance(30_000);
  await smsc.until(() => smsc.commands.includes('enquire_link'));
  clock.advance(9_999);
  await smsc.enquire();
  clock.advance(1);
  smsc.isDeaf = false;
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
  expect(smsc.counts.binds).toBe(1);
});

test('waits longer each time for a message centre that takes its bind and hangs up, until one has lasted', async () => {
  const { smsc, clock, states } = await arrange();
  const dropAfter = async (lastedMs: number) => {
    clock.advance(lastedMs);
    smsc.drop();
    await states.until(() => states.states.at(-1) !== 'bound');
    await clock.whenWaiting(1);
    const pauseMs = clock.delaysMs.at(-1)!;
    clock.advance(pauseMs);
    await states.until(() => states.states.at(-1) === 'bound');
    return pauseMs;
  };
  const pausesMs: number[] = [];
  for (const lastedMs of [4_999, 0, 4_999, 5_000, 0]) pausesMs.push(await dropAfter(lastedMs));
  expect(pausesMs).toEqual([50, 100, 200, 50, 100]);
});

test('leaves no timer of a connection that ends while it is asked whether it lives', async () => {
  const { smsc, provider, clock, states } = await arrange();
  smsc.isDeaf = true;
  clock.advance(30_000);
  await smsc.until(() => smsc.commands.includes('enquire_link'));
  smsc.drop();
  await states.until(() => states.states.at(-1) === 'opening');
  smsc.isDeaf = false;
  // The pause before the next connection alone.
  expect(clock.timers()).toBe(1);
  clock.advance(50);
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
});

test('answers when it is asked whether it lives', async () => {
  const { smsc } = await arrange();
  await smsc.enquire();
  expect(smsc.commands).toContain('enquire_link_resp');
});

test('binds again when the far side has forgotten that it is bound', async () => {
  const { smsc, provider, states, clock } = await arrange({
    answer: ({ number }) => (number === 1 ? { status: 0x04 } : undefined),
  });
  expect(await send(provider, smscNumbers.accepted)).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
  });
  await states.until(() => states.states.at(-1) === 'opening');
  clock.advance(50);
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
  expect(smsc.counts.binds).toBe(2);
});

test('lets the far side leave when its answers are given, and binds again', async () => {
  const gate = createGate();
  const { smsc, provider, states, clock } = await arrange({
    answer: ({ number }) => (number === 1 ? gate.opened : 'accepted'),
  });
  const underWay = send(provider, smscNumbers.accepted);
  await smsc.until(() => smsc.counts.submits === 1);
  const unbound = smsc.unbind();
  await smsc.enquire();
  const next = send(provider, smscNumbers.accepted);
  await smsc.enquire();
  expect(smsc.counts.submits).toBe(1);
  expect(smsc.commands).not.toContain('unbind_resp');
  gate.open();
  expect((await underWay).kind).toBe('accepted');
  await unbound;
  await states.until(() => states.states.at(-1) === 'opening');
  clock.advance(50);
  expect((await next).kind).toBe('accepted');
});

test('unbinds when it closes, after everything has its answer', async () => {
  const gate = createGate();
  const { smsc, provider } = await arrange({
    parameters: 'window=1',
    answer: () => gate.opened,
    receipt: () => null,
  });
  const outcomes = Promise.all(Array.from({ length: 3 }, () => send(provider, smscNumbers.accepted)));
  const closed = provider.close();
  await smsc.until(() => smsc.counts.submits === 1);
  expect(smsc.commands).not.toContain('unbind');
  gate.open();
  expect((await outcomes).map(({ kind }) => kind)).toEqual(['accepted', 'accepted', 'accepted']);
  await closed;
  expect(smsc.commands.at(-1)).toBe('unbind');
});

test('does not wait longer than a minute to close', async () => {
  const { smsc, provider, clock } = await arrange({ parameters: 'window=1' });
  // Never confirmed, and in the way of the next.
  void send(provider, smscNumbers.accepted, { confirm: () => new Promise(() => undefined) });
  const waiting = send(provider, smscNumbers.accepted);
  const closed = provider.close();
  for (let second = 0; second < 59; second += 1) {
    clock.advance(1_000);
    await smsc.enquire();
  }
  expect(smsc.commands).not.toContain('unbind');
  clock.advance(1_000);
  await closed;
  expect(await waiting).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(smsc.commands).toContain('unbind');
});

test.each([
  [smscNumbers.accepted, { status: 'delivered', failure: null, diagnostic: 'stat:DELIVRD err:000' }],
  [smscNumbers.undelivered, { status: 'undelivered', failure: 'other', diagnostic: 'stat:UNDELIV err:027' }],
  [smscNumbers.expired, { status: 'expired', failure: 'expired', diagnostic: 'stat:EXPIRED err:004' }],
  [smscNumbers.rejected, { status: 'failed', failure: 'other', diagnostic: 'stat:REJECTD err:011' }],
  [smscNumbers.receiptBeforeAnswer, { status: 'delivered', failure: null }],
])('reports what became of a text: %s', async (number, expected) => {
  for (const hasReceiptParameters of [false, true]) {
    const { provider, intake } = await arrange({ hasReceiptParameters });
    await send(provider, number);
    await intake.until(() => intake.receipts.length === 1);
    expect(intake.receipts).toMatchObject([
      {
        providerMessageId: 'M1',
        reference: { organizationId: 'org', messageId: 'message', ordinal: 0 },
        to: number,
        senderName: 'Postillion',
        ...expected,
      },
    ]);
  }
});

test('gives texts names of their own where the message centre gives none', async () => {
  const { provider, intake } = await arrange({ messageId: () => '', receipt: () => null });
  const outcomes = await Promise.all(
    [0, 1].map((ordinal) =>
      send(provider, smscNumbers.accepted, {
        reference: { organizationId: 'org', messageId: 'message', ordinal },
      }),
    ),
  );
  expect(outcomes).toMatchObject([
    { kind: 'accepted', providerMessageId: 'message/0' },
    { kind: 'accepted', providerMessageId: 'message/1' },
  ]);
  expect(intake.receipts).toEqual([]);
});

test('does not wait for ever for the answer that names the text of a receipt', async () => {
  const { smsc, provider, intake, clock } = await arrange();
  const outcome = send(provider, smscNumbers.silent);
  await smsc.until(() => smsc.counts.submits === 1);
  await smsc.enquire();
  expect(intake.receipts).toEqual([]);
  clock.advance(5_000);
  await intake.until(() => intake.receipts.length === 1);
  expect(intake.receipts).toMatchObject([
    { providerMessageId: 'M1', reference: null, to: smscNumbers.silent, senderName: 'Postillion' },
  ]);
  clock.advance(25_000);
  expect((await outcome).kind).toBe('unknown');
});

test('knows a text by whatever way of writing its number a receipt has', async () => {
  for (const [messageId, receiptId, known] of [
    ['0000A1B2', '41394', 'a1b2'],
    ['a1b2', '41394', 'a1b2'],
    ['A1B2', '00a1b2', 'a1b2'],
    ['41394', 'A1B2', '41394'],
    ['41394', '0000041394', '41394'],
  ] as const) {
    const { provider, intake } = await arrange({ messageId: () => messageId, receiptId: () => receiptId });
    await send(provider, smscNumbers.accepted);
    await intake.until(() => intake.receipts.length === 1);
    expect(intake.receipts).toMatchObject([
      { providerMessageId: known, reference: { messageId: 'message' } },
    ]);
  }
});

test('passes on a receipt of a text that it does not know as it is given', async () => {
  const { smsc, intake } = await arrange();
  const status = await smsc.deliver({
    source_addr_ton: 1,
    source_addr_npi: 1,
    source_addr: '491510000001',
    destination_addr: '12345',
    esm_class: 4,
    data_coding: 3,
    short_message: 'id:77\u0007 sub:001 stat:DELIVRD err:000 text:id:78 stat:UNDELIV',
  });
  expect(status).toBe(0);
  expect(intake.receipts).toEqual([
    {
      providerMessageId: '77',
      reference: null,
      to: '+491510000001',
      senderName: '12345',
      status: 'delivered',
      failure: null,
      diagnostic: 'stat:DELIVRD err:000',
    },
  ]);
});

test('knows national numbers as those of the country that the URL names', async () => {
  const { smsc, intake } = await arrange({ parameters: 'country=49' });
  const numbers = {
    source_addr_ton: 2,
    source_addr: '01510000001',
    dest_addr_ton: 2,
    destination_addr: '1520000002',
  };
  await smsc.deliver({ ...numbers, short_message: 'Hi' });
  await smsc.deliver({ ...numbers, esm_class: 4, short_message: 'id:7 stat:DELIVRD err:000' });
  expect(intake.inbound).toMatchObject([{ from: '+491510000001', senderName: '491520000002' }]);
  expect(intake.receipts).toMatchObject([{ to: '+491510000001', senderName: '491520000002' }]);
});

test('takes no text for a receipt, whatever it says', async () => {
  const { smsc, intake } = await arrange();
  const text = 'id:M1 sub:001 dlvrd:000 stat:UNDELIV err:001 text:';
  await smsc.deliver({ source_addr: '+491510000001', destination_addr: '12345', short_message: text });
  expect(intake.receipts).toEqual([]);
  expect(intake.inbound).toMatchObject([{ from: '+491510000001', text }]);
});

test('says that it has something only when it is stored, and asks for it again when it is not', async () => {
  const { smsc, intake } = await arrange();
  const gate = createGate();
  intake.before = async () => {
    await gate.opened;
  };
  let status: number | null = null;
  const delivered = smsc
    .deliver({ source_addr: '491510000001', destination_addr: '12345', short_message: 'Hi' })
    .then((answer) => (status = answer));
  await smsc.enquire();
  expect(status).toBeNull();
  gate.open();
  expect(await delivered).toBe(0);
  intake.before = () => Promise.reject(new Error('no database'));
  expect(
    await smsc.deliver({ source_addr: '491510000001', destination_addr: '12345', short_message: 'Hi' }),
  ).toBe(0x64);
  expect(intake.inbound).toEqual([
    { providerMessageId: null, from: '+491510000001', senderName: '12345', text: 'Hi' },
  ]);
});

test('puts a text together that comes in parts, and answers when it is whole', async () => {
  const { smsc, intake } = await arrange();
  const part = (number: number, message: string) =>
    smsc.deliver({
      source_addr: '491510000001',
      destination_addr: '12345',
      data_coding: 8,
      short_message: { udh: Buffer.from([5, 0, 3, 9, 2, number]), message },
    });
  const second = part(2, 'мир');
  await smsc.enquire();
  expect(intake.inbound).toEqual([]);
  expect(await Promise.all([second, part(1, 'Привет, ')])).toEqual([0, 0]);
  expect(intake.inbound).toMatchObject([{ text: 'Привет, мир' }]);
});

test('gives what it has of a text when the rest does not come', async () => {
  const { smsc, intake, clock } = await arrange();
  const delivered = smsc.deliver({
    source_addr: '491510000001',
    destination_addr: '12345',
    short_message: { udh: Buffer.from([5, 0, 3, 9, 2, 1]), message: 'first' },
  });
  await smsc.enquire();
  clock.advance(5_000);
  expect(await delivered).toBe(0);
  expect(intake.inbound).toMatchObject([{ text: 'first' }]);
});

test('ends a connection on which something else than SMPP is spoken', async () => {
  const { smsc, provider, states, clock } = await arrange();
  smsc.write(Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n'));
  await states.until(() => states.states.at(-1) === 'opening');
  clock.advance(50);
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
});

test('says that it does not understand, and goes on', async () => {
  const { smsc, provider } = await arrange();
  const unknown = Buffer.from('00000010000001030000000000000001', 'hex');
  const malformed = Buffer.from('00000012000000050000000000000002ffff', 'hex');
  smsc.write(Buffer.concat([unknown, malformed]));
  await smsc.until(() => smsc.commands.filter((command) => command === 'generic_nack').length === 2);
  expect((await send(provider, smscNumbers.accepted)).kind).toBe('accepted');
});

test('refuses what SMPP cannot express, before it is confirmed', async () => {
  const { provider } = await arrange();
  const confirm = () => Promise.reject(new Error('confirmed'));
  for (const more of [
    { sender: { name: 'Größenwahn', type: 'alphanumeric' as const } },
    { text: 'я'.repeat(67 * 256) },
  ]) {
    expect(await send(provider, smscNumbers.accepted, { ...more, confirm })).toMatchObject({
      kind: 'rejected',
      reason: 'invalid_message',
    });
  }
});

test('puts off what exceeds its queue', async () => {
  const gate = createGate();
  const { provider } = await arrange({ parameters: 'window=1', answer: () => gate.opened });
  const outcomes = Promise.all(Array.from({ length: 12 }, () => send(provider, smscNumbers.accepted)));
  gate.open();
  expect((await outcomes).map(({ kind }) => kind)).toEqual([
    ...Array.from({ length: 11 }, () => 'accepted'),
    'deferred',
  ]);
});
