/**
 * What a worker makes of each way in which an attempt ends, against a channel that does what a test says. The clock
 * stands still.
 */
import { beforeEach, describe, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { messageChannels } from '../../../test/support/channels.ts';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { createPigeons } from '../../../test/support/pigeons.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { type ByteBudget, createByteBudget } from '../../platform/byte-budget.ts';
import { systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { createSecrets, UnknownKeyError } from '../../platform/secrets.ts';
import { createWakeup, type Wakeup } from '../../platform/wakeup.ts';
import {
  type Attempt,
  type ChannelDelivery,
  type DeliverySession,
  type Job,
  smallContentBytesMax,
} from '../channel.ts';
import { handOffJob } from './hand-off.ts';
import { type LeaseSession, openLeaseSession } from './lease-session.ts';
import type { Settled } from './settlement-writer.ts';

const epoch = 7;
const contentBytesMax = 1_000_000;
const newId = createShuffledIds(systemClock);
const organizationId = newId();
const { channel } = createPigeons();
const facts = { isShared: true, hasAttachments: false };
const reply = { code: null, enhancedCode: null, diagnostic: 'in its own words', remote: null };
const arrived: Attempt = {
  kind: 'outcome',
  outcome: { kind: 'accepted', providerMessageId: 'ring 7', reply: null },
  facts,
};
const unavailable: Attempt = {
  kind: 'outcome',
  outcome: { kind: 'deferred', reason: 'provider_unavailable', reply },
  facts,
};
const postponed: Attempt = {
  kind: 'outcome',
  outcome: { kind: 'postponed', retryAfterMs: 4_000, reply },
  facts,
};

let database: Database;
let clock: ManualClock;
let lost: AbortController;
let stopping: AbortController;
let wakeup: Wakeup;
let budget: ByteBudget;
/** What the database does instead of what it is asked for. */
let fault: { asked?: Error; announced?: Error };
/** Called when an announcement is about to be stored. */
let onAnnouncing: () => void;
/** How many the hand-offs have run. */
let statements: number;
/** Jobs that the channel was given, and those of them that left. */
let tried: Job[];
let sent: Job[];
let logged: { level: string; fields: object }[];
/** The lines of attempts. */
let attempts: { level: string; fields: object }[];

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  clock = createManualClock();
  lost = new AbortController();
  stopping = new AbortController();
  wakeup = createWakeup(clock);
  budget = createByteBudget(contentBytesMax);
  fault = {};
  onAnnouncing = () => undefined;
  statements = 0;
  tried = [];
  sent = [];
  logged = [];
  attempts = [];
  await run('truncate hand_offs, workers cascade');
  await run("insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now())", [epoch]);
});

function run(text: string, values: readonly unknown[] = []): Promise<unknown[]> {
  return database.rows(unpreparedStatement(text), values);
}

function aJob(more: Partial<Job> = {}): Job {
  const isCampaign = more.contactId !== undefined;
  return {
    organizationId,
    messageId: newId(),
    ordinal: 0,
    channel,
    policy: channel.policyOf({ isCampaign }),
    isCampaign,
    address: '+491701234567',
    addressKey: '+491701234567',
    ...untried,
    acceptedAt: new Date(clock.nowMs()),
    ...more,
  };
}

type HandOff = DeliverySession['handOff'];

const carry: HandOff = async (job, permit) => {
  await permit.confirm();
  sent.push(job);
  return arrived;
};

/** A hand-off that stands still until `goOn`, and says when it is begun. */
function createGate(): { handOff: HandOff; begun: Promise<'begun'>; goOn: () => void } {
  let goOn: () => void = () => undefined;
  let begin: (state: 'begun') => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    goOn = resolve;
  });
  const begun = new Promise<'begun'>((resolve) => {
    begin = resolve;
  });
  return {
    handOff: async () => {
      begin('begun');
      await passed;
      return arrived;
    },
    begun,
    goOn: () => goOn(),
  };
}

/** A session whose channel does `handOff`; one channel for each `accountOf` that is given. */
function openSession(
  handOff: HandOff,
  accountsOf: readonly ChannelDelivery['accountOf'][] = [(job) => job.organizationId],
): LeaseSession {
  const guarded: Database = {
    ...database,
    rows: (statement, values) => {
      statements += 1;
      return fault.asked === undefined ? database.rows(statement, values) : Promise.reject(fault.asked);
    },
    together: (organizationIds, statements) => {
      onAnnouncing();
      return fault.announced === undefined
        ? database.together(organizationIds, statements)
        : Promise.reject(fault.announced);
    },
  };
  const note = (level: string) => (fields: object, message?: string) =>
    void (message === 'attempt' ? attempts : logged).push({ level, fields });
  return openLeaseSession(
    {
      database: guarded,
      channels: messageChannels,
      clock,
      log: {
        ...silentLog,
        debug: note('debug'),
        info: note('info'),
        warn: note('warn'),
        error: note('error'),
      },
      newId,
      random: () => 0.5,
      secrets: createSecrets('a secret of the tests, and of nothing else'),
      onCampaignProgress: () => undefined,
      onContactsChanged: () => undefined,
      contentBytesMax,
      deliveries: accountsOf.map((accountOf) => ({
        channel,
        provider: 'loft',
        concurrency: 4,
        accountOf,
        isReportedById: false,
        begin: () => ({
          prepare: () => Promise.resolve(),
          handOff: (job, permit) => {
            tried.push(job);
            return handOff(job, permit);
          },
        }),
      })),
    },
    { epoch, signal: lost.signal, release: () => Promise.resolve() },
    { wakeup, budget, stopping: stopping.signal },
  );
}

function handOff(session: LeaseSession, job: Job, channelIndex = 0): Promise<Settled> {
  return handOffJob(session, session.channelSessions[channelIndex]!, job);
}

const dueIn = (pauseMs: number) => new Date(clock.nowMs() + pauseMs);

/** Of what is given back as it was. */
const untouched = (pauseMs = 0) => ({
  status: null,
  dropReason: null,
  wasHandedOff: false,
  isAmbiguous: false,
  requeue: { dueAt: dueIn(pauseMs), attempts: 0, crashes: 0, setAsideAt: null },
});
/** Of what counts as the death of a worker that had sent nothing. */
const crashed = () => ({
  wasHandedOff: false,
  isAmbiguous: false,
  requeue: { dueAt: dueIn(0), attempts: 0, crashes: 1 },
});
/** Of what may have been sent. */
const uncertain = () => ({
  wasHandedOff: true,
  isAmbiguous: true,
  requeue: { dueAt: dueIn(60_000), attempts: 1, crashes: 0 },
});
const dropped = { dropReason: 'unsubscribed', wasHandedOff: false, requeue: null };

test('what the channel says of an attempt is what is settled, with what it knows of the message', async () => {
  const settle = async (result: Attempt) =>
    handOff(
      openSession(() => Promise.resolve(result)),
      aJob(),
    );
  expect(await settle(arrived)).toMatchObject({
    settlement: { status: 'sent', providerMessageId: 'ring 7', wasHandedOff: true, requeue: null },
    message: facts,
  });
  expect(await settle({ kind: 'objected', objection: 'suppressed', facts })).toMatchObject({
    settlement: { status: null, dropReason: 'suppressed', wasHandedOff: false, requeue: null },
    message: facts,
  });
  expect(
    await settle({ kind: 'failed', reason: 'storm', diagnostic: 'too windy', facts: null }),
  ).toMatchObject({
    settlement: { status: 'failed', failure: { class: 'storm', diagnostic: 'too windy' }, requeue: null },
    message: null,
  });
  expect(await settle({ kind: 'released', pauseMs: 3_000, facts })).toMatchObject({
    settlement: untouched(3_000),
    message: facts,
  });
  expect(await settle(postponed)).toMatchObject({ settlement: untouched(4_000), message: facts });
});

describe('the line of an attempt', () => {
  const deferred: Attempt = {
    kind: 'outcome',
    outcome: { kind: 'deferred', reason: 'storm', retryAfterMs: 5_000, reply: { ...reply, code: 452 } },
    facts,
  };

  test('says whose it is, how it ended and what follows, and nothing of address or reply', async () => {
    const job = aJob({ ordinal: 3, attempts: 1, ambiguities: 1 });
    const session = openSession(() => {
      clock.advance(1_500);
      return Promise.resolve(deferred);
    });
    await handOff(session, job);
    expect(attempts).toEqual([
      {
        level: 'info',
        fields: {
          organization_id: organizationId,
          message_id: job.messageId,
          ordinal: 3,
          channel: channel.name,
          provider: 'loft',
          class: 'transactional',
          attempt: 2,
          outcome: 'deferred',
          reason: 'storm',
          code: 452,
          possible_duplicate: true,
          next_attempt_at: dueIn(5_000),
          ms: 1_500,
        },
      },
    ]);
    const line = JSON.stringify(attempts);
    expect(line).not.toContain(job.address);
    expect(line).not.toContain(reply.diagnostic);
  });

  test.each<[string, Attempt | Error | null]>([
    ['accepted', arrived],
    ['unavailable', unavailable],
    ['postponed', postponed],
    ['dropped', { kind: 'objected', objection: 'suppressed', facts }],
    ['failed', { kind: 'failed', reason: 'storm', diagnostic: 'too windy', facts: null }],
    ['released', { kind: 'released', pauseMs: 3_000, facts }],
    ['crashed', new Error('cannot be built')],
    ['postponed', new UnknownKeyError(3, null)],
    ['unknown', null],
  ])('says %s', async (outcome, result) => {
    const session = openSession(async (_job, { confirm }) => {
      if (result instanceof Error) throw result;
      if (result !== null) return result;
      await confirm();
      throw new Error('cut off');
    });
    await handOff(session, aJob());
    expect(attempts.map(({ fields }) => fields)).toMatchObject([{ outcome }]);
  });

  test('is written of one recipient of a campaign in a hundred, at each of its attempts, and of all for debugging', async () => {
    const session = openSession(carry);
    const levels = async (attempted: number) => {
      attempts = [];
      for (let ordinal = 0; ordinal < 250; ordinal += 1)
        await handOff(session, aJob({ contactId: newId(), ordinal, attempts: attempted }));
      return attempts.map(({ level, fields }) => [level, (fields as { ordinal: number }).ordinal]);
    };
    const written = await levels(0);
    expect(written).toHaveLength(250);
    expect(written.filter(([level]) => level === 'info')).toEqual([
      ['info', 0],
      ['info', 100],
      ['info', 200],
    ]);
    expect(await levels(1)).toEqual(written);
  });

  test('is not written of what was not tried', async () => {
    const session = openSession(carry);
    session.end();
    await handOff(session, aJob());
    expect(attempts).toEqual([]);
  });
});

test('what leaves was announced under its claim before', async () => {
  const job = aJob({ claimNumber: 12 });
  let announced: unknown[] = [];
  const session = openSession(async (_job, permit) => {
    await permit.confirm();
    announced = await run('select message_ids, claim_numbers::integer[] from hand_offs where epoch = $1', [
      epoch,
    ]);
    return arrived;
  });
  expect(await handOff(session, job)).toMatchObject({ settlement: { status: 'sent' } });
  expect(announced).toEqual([{ message_ids: [job.messageId], claim_numbers: [12] }]);
});

test('messages with a policy of their own are settled by it, and leave room for those that follow', async () => {
  const policy = { ...channel.policyOf({ isCampaign: false }), acceptedStatus: 'delivered' as const };
  const session = openSession(async (job, permit) => {
    await carry(job, permit);
    return { ...arrived, facts: { ...facts, policy } };
  });
  // More than may be announced at a time.
  for (let count = 1; count <= 20; count += 1) {
    const settled = await handOff(session, aJob());
    expect(settled).toMatchObject({ settlement: { status: 'delivered' } });
    const settling = session.channelSessions[0]!.ledger.settle(settled);
    await clock.whenWaiting(1);
    clock.advance(1_000);
    expect(await settling).toBe(true);
    expect(sent).toHaveLength(count);
  }
});

describe('once nothing more may be handed off', () => {
  const ends: [string, (session: LeaseSession) => void][] = [
    ['the lease is lost', () => lost.abort()],
    ['the worker is stopping', () => stopping.abort()],
    ['the session is over', ({ end }) => end()],
  ];

  test.each(ends)('since %s, what was not begun goes back untried', async (_reason, end) => {
    const session = openSession(carry);
    end(session);
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched(), message: null });
    expect(tried).toEqual([]);
  });

  test.each(ends)('since %s, what is being announced does not leave', async (_reason, end) => {
    const session = openSession(carry);
    onAnnouncing = () => {
      end(session);
    };
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched() });
    expect([tried.length, sent.length]).toEqual([1, 0]);
  });

  test.each(ends)('since %s, what breaks off before it is announced is no crash', async (_reason, end) => {
    const heard: boolean[] = [];
    const session = openSession((_job, { signal }) => {
      end(session);
      heard.push(signal.aborted);
      return Promise.reject(new Error('broken off'));
    });
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched() });
    expect(heard).toEqual([true]);
    expect(logged).toEqual([]);
  });

  test.each(ends)('since %s, what breaks off after it was announced may have left', async (_reason, end) => {
    const session = openSession(async (_job, permit) => {
      await permit.confirm();
      end(session);
      throw new Error('broken off');
    });
    expect(await handOff(session, aJob())).toMatchObject({ settlement: uncertain() });
  });
});

test('a worker that was buried without hearing of it sends nothing', async () => {
  const session = openSession(async (job, permit) => {
    await run('delete from workers where epoch = $1', [epoch]);
    return carry(job, permit);
  });
  expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched() });
  expect([tried.length, sent.length]).toEqual([1, 0]);
});

describe('what cannot be asked of the database, or told it, does not leave, and goes back as it was', () => {
  const away = new DatabaseUnavailableError('away');
  const broken = new Error('out of shared memory');

  test('before it is begun', async () => {
    fault = { asked: away };
    expect(await handOff(openSession(carry), aJob())).toMatchObject({ settlement: untouched() });
    expect(tried).toEqual([]);
  });

  test('while it is built', async () => {
    const session = openSession(() => Promise.reject(away));
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched() });
  });

  test.each([
    ['asked whether it is wanted', away, { asked: away }],
    ['asked whether it is wanted', broken, { asked: broken }],
    ['announced', away, { announced: away }],
    ['announced', broken, { announced: broken }],
  ])('while it is %s: %s', async (_step, _cause, made) => {
    const session = openSession((job, permit) => {
      clock.advance(2_000);
      fault = made;
      return carry(job, permit);
    });
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched() });
    expect([tried.length, sent.length]).toEqual([1, 0]);
  });
});

describe('an attempt that breaks', () => {
  const unknownKey = new UnknownKeyError(3, null);

  test.each([
    ['of itself', new Error('a fault of our own'), crashed],
    ['since its key is not known here', unknownKey, () => untouched(60_000)],
  ])('before it is announced, %s, sends nothing', async (_reason, cause, expected) => {
    const session = openSession(() => Promise.reject(cause));
    expect(await handOff(session, aJob())).toMatchObject({ settlement: expected(), message: null });
    expect(logged).toEqual([{ level: 'error', fields: { err: cause } }]);
  });

  test.each([
    ['of itself', new Error('a fault of our own')],
    ['since its key is not known here', unknownKey],
    ['since the database is away', new DatabaseUnavailableError('away')],
  ])('after it was announced, %s, may have sent', async (_reason, cause) => {
    const session = openSession(async (_job, permit) => {
      await permit.confirm();
      throw cause;
    });
    expect(await handOff(session, aJob())).toMatchObject({ settlement: uncertain(), message: null });
  });
});

describe('whoever unsubscribes', () => {
  async function insertContact(): Promise<string> {
    const id = newId();
    await run(
      `insert into contacts (organization_id, id, external_id, created_at, updated_at)
       values ($1, $2, $2::uuid::text, now(), now())`,
      [organizationId, id],
    );
    return id;
  }
  const unsubscribe = (id: string) =>
    run('update contacts set unsubscribed_channels = array[$2] where id = $1', [id, channel.name]);

  test('while a job waits in memory for two seconds gets nothing, and in less nobody is asked again', async () => {
    const contactId = await insertContact();
    const session = openSession(carry);
    const jobs = [aJob({ contactId }), aJob({ contactId })] as const;
    expect(await session.objections.find(jobs)).toEqual(new Map());
    await unsubscribe(contactId);
    clock.advance(1_900);
    expect(await handOff(session, jobs[0])).toMatchObject({ settlement: { status: 'sent' } });
    clock.advance(100);
    expect(await handOff(session, jobs[1])).toMatchObject({ settlement: dropped });
    expect([tried, sent]).toEqual([[jobs[0]], [jobs[0]]]);
  });

  test('is looked for by 250 jobs in as many statements as by one', async () => {
    const contactId = await insertContact();
    await unsubscribe(contactId);
    const session = openSession(carry);
    const countStatements = async (jobCount: number) => {
      statements = 0;
      const jobs = Array.from({ length: jobCount }, () => aJob({ contactId }));
      const ends = await Promise.all(jobs.map((job) => handOff(session, job)));
      expect(ends).toMatchObject(jobs.map(() => ({ settlement: dropped })));
      return statements;
    };
    const ofOne = await countStatements(1);
    expect(ofOne).toBeGreaterThan(0);
    expect(await countStatements(250)).toBe(ofOne);
    expect(tried).toEqual([]);
  });

  test('on the way, of two seconds or more, to what carries it gets nothing', async () => {
    const contactId = await insertContact();
    const passMs = [1_900, 2_000];
    const session = openSession(async (job, permit) => {
      clock.advance(passMs.shift()!);
      await unsubscribe(contactId);
      return carry(job, permit);
    });
    const [fast, slow] = [aJob({ contactId }), aJob({ contactId })];
    expect(await handOff(session, fast)).toMatchObject({ settlement: { status: 'sent' } });
    await run("update contacts set unsubscribed_channels = '{}' where id = $1", [contactId]);
    expect(await handOff(session, slow)).toMatchObject({ settlement: dropped, message: null });
    expect([tried, sent]).toEqual([[fast, slow], [fast]]);
    expect(logged).toEqual([]);
  });
});

describe('while a provider is away', () => {
  let answer: HandOff;

  /** A session whose channels have found out that their provider is away, by five jobs of the organization. */
  async function openTripped(...accountsOf: ChannelDelivery['accountOf'][]): Promise<LeaseSession> {
    const session = openSession(
      (job, permit) => answer(job, permit),
      accountsOf.length === 0 ? undefined : accountsOf,
    );
    answer = () => Promise.resolve(unavailable);
    for (let failure = 1; failure <= 5; failure += 1)
      expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched() });
    answer = carry;
    return session;
  }

  /** Begins a job as the probe. */
  async function probe(session: LeaseSession): Promise<{ goOn: () => Promise<Settled> }> {
    const gate = createGate();
    answer = gate.handOff;
    const ending = handOff(session, aJob());
    expect(await Promise.race([gate.begun, ending])).toBe('begun');
    return {
      goOn: () => {
        gate.goOn();
        return ending;
      },
    };
  }

  test('jobs of the account that failed are put off untried, and those of others leave', async () => {
    const session = await openTripped();
    expect(tried).toHaveLength(5);
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched(1_000 + 30_000) });
    expect(tried).toHaveLength(5);
    const other = aJob({ organizationId: newId() });
    expect(await handOff(session, other)).toMatchObject({ settlement: { status: 'sent' } });
    expect(sent).toEqual([other]);
  });

  test('by one account for all, jobs of everybody go back, and those of other channels leave', async () => {
    const session = await openTripped(null, null);
    expect(await handOff(session, aJob({ organizationId: newId() }))).toMatchObject({
      settlement: untouched(),
    });
    expect(tried).toHaveLength(5);
    expect(await handOff(session, aJob(), 1)).toMatchObject({ settlement: { status: 'sent' } });
  });

  test('one job after the pause finds out whether it is back, and the log says of whom', async () => {
    const session = await openTripped();
    const whose = { channel: channel.name, account: organizationId };
    expect(logged).toEqual([{ level: 'error', fields: { ...whose, diagnostic: reply.diagnostic } }]);
    clock.advance(1_000);
    const { goOn } = await probe(session);
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched(1_000 + 30_000) });
    expect(await goOn()).toMatchObject({ settlement: { status: 'sent' } });
    expect(logged.slice(1)).toEqual([{ level: 'info', fields: whose }]);
    answer = carry;
    expect(await handOff(session, aJob())).toMatchObject({ settlement: { status: 'sent' } });
  });

  test('one that finds it away still makes the pause longer', async () => {
    const session = await openTripped();
    clock.advance(1_000);
    answer = () => Promise.resolve(unavailable);
    await handOff(session, aJob());
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched(2_000 + 30_000) });
    expect(tried).toHaveLength(6);
  });

  test.each<[string, HandOff]>([
    ['is dropped', () => Promise.resolve({ kind: 'objected', objection: 'suppressed', facts: null })],
    ['fails', () => Promise.resolve({ kind: 'failed', reason: 'other', diagnostic: 'gone', facts: null })],
    ['is released', () => Promise.resolve({ kind: 'released', pauseMs: 0, facts: null })],
    ['is postponed', () => Promise.resolve(postponed)],
    ['breaks', () => Promise.reject(new Error('a fault of our own'))],
    [
      'breaks after it was announced',
      async (_job, permit) => {
        await permit.confirm();
        throw new Error('a fault of our own');
      },
    ],
    [
      'cannot be announced',
      (job, permit) => {
        fault = { announced: new DatabaseUnavailableError('away') };
        return carry(job, permit);
      },
    ],
  ])('a probe that %s tells nothing of it, and the next job is one', async (_end, ends) => {
    const session = await openTripped();
    clock.advance(1_000);
    answer = ends;
    await handOff(session, aJob());
    fault = {};
    clock.advance(1_000);
    const { goOn } = await probe(session);
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched(1_000 + 30_000) });
    expect(await goOn()).toMatchObject({ settlement: { status: 'sent' } });
  });

  test('what is postponed meanwhile hides no failure in a row', async () => {
    const session = openSession((job, permit) => answer(job, permit));
    for (const result of [unavailable, unavailable, postponed, unavailable, unavailable, unavailable]) {
      answer = () => Promise.resolve(result);
      await handOff(session, aJob());
    }
    answer = carry;
    expect(await handOff(session, aJob())).toMatchObject({ settlement: untouched(1_000 + 30_000) });
    expect(sent).toEqual([]);
  });
});

describe('of the memory for contents', () => {
  const large = smallContentBytesMax + 1;

  test('a small message takes nothing, a large one its bytes, and one beyond all of it takes all', async () => {
    const held: number[] = [];
    const session = openSession(() => {
      held.push(budget.held());
      return Promise.resolve(arrived);
    });
    for (const contentBytes of [smallContentBytesMax, large, contentBytesMax * 2]) {
      const ending = handOff(session, aJob({ contentBytes })).then(() => 'handed off');
      const waiting = clock.whenWaiting(1).then(() => 'waits');
      expect(await Promise.race([ending, waiting])).toBe('handed off');
    }
    expect(held).toEqual([0, large, contentBytesMax]);
    expect(budget.held()).toBe(0);
  });

  test.each<[string, HandOff]>([
    ['breaks', () => Promise.reject(new Error('a fault of our own'))],
    [
      'breaks after it was announced',
      async (_job, permit) => {
        await permit.confirm();
        throw new Error('a fault of our own');
      },
    ],
    [
      'must not leave any more',
      (job, permit) => {
        lost.abort();
        return carry(job, permit);
      },
    ],
  ])('what a message took that %s is given back', async (_end, ends) => {
    await handOff(openSession(ends), aJob({ contentBytes: large }));
    expect([tried.length, budget.held()]).toEqual([1, 0]);
  });

  test('one that is larger than what is left waits for those before it, and is begun when they end', async () => {
    const gates = new Map<Job, ReturnType<typeof createGate>>();
    const session = openSession((job, permit) => gates.get(job)!.handOff(job, permit));
    const begin = (contentBytes: number) => {
      const job = aJob({ contentBytes });
      const gate = createGate();
      gates.set(job, gate);
      const ending = handOff(session, job);
      const end = async () => {
        gate.goOn();
        await ending;
        wakeup.wake();
      };
      // One that waits has set itself a time.
      return { state: () => Promise.race([gate.begun, clock.whenWaiting(1).then(() => 'waits')]), end };
    };
    const [first, second] = [begin(large), begin(large)];
    expect([await first.state(), await second.state()]).toEqual(['begun', 'begun']);
    const larger = begin(contentBytesMax * 2);
    expect(await larger.state()).toBe('waits');
    await first.end();
    expect(await larger.state()).toBe('waits');
    await second.end();
    expect(await larger.state()).toBe('begun');
    const last = begin(large);
    expect(await last.state()).toBe('waits');
    await larger.end();
    expect(await last.state()).toBe('begun');
    await last.end();
    expect(budget.held()).toBe(0);
  });

  test('what waits for it when nothing more may be handed off goes back untried', async () => {
    const giveBack = budget.take(contentBytesMax)!;
    const session = openSession(carry);
    const ending = handOff(session, aJob({ contentBytes: large }));
    await clock.whenWaiting(1);
    lost.abort();
    giveBack();
    wakeup.wake();
    expect(await ending).toMatchObject({ settlement: untouched() });
    expect([tried.length, budget.held()]).toEqual([0, 0]);
  });
});
