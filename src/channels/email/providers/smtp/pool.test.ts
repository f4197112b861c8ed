import { setImmediate as turn } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { startSmtpSink } from '../../../../../test/support/smtp-sink.ts';
import { createAbortWatch } from '../../../abort-watch.ts';
import { openSmtpConnection } from './opening.ts';
import { ownWords } from './outcomes.ts';
import { SmtpPool } from './pool.ts';
import { parseSmtpUrl } from './url.ts';

/** A pool of any number of connections to a sink, of which so many are idle by now, each for a second longer than the next. */
async function arrange(idle: number) {
  const clock = createManualClock();
  const sink = await startSmtpSink();
  const target = parseSmtpUrl(`smtp://127.0.0.1:${sink.port}`);
  let places = 0;
  const pool = new SmtpPool(
    { clock, abortWatch: createAbortWatch() },
    {
      handOffsPerConnectionMax: 1_000,
      idleTimeoutMs: 60_000,
      takePlace: () => ((places += 1), true),
      freePlace: () => {
        places -= 1;
      },
      isCrowded: () => false,
      open: (signal) =>
        openSmtpConnection(clock, target, { heloName: 'client.test', authorities: null, signal }),
      refuse: () => ({
        kind: 'deferred',
        reason: 'provider_unavailable',
        reply: ownWords('no connection', target.host),
      }),
    },
  );
  onTestFinished(async () => {
    await pool.close();
    await sink.close();
    expect(places).toBe(0);
  });

  const whenIdle = async (count: number) => {
    while (pool.counts().idle !== count) await turn();
  };
  /** Returns the connection that carried the message. */
  const send = async (name: string, confirm: () => Promise<void> = () => Promise.resolve()) => {
    const outcome = await pool.handOff({
      reference: { organizationId: 'org', messageId: 'message', ordinal: 0 },
      envelopeFrom: 'bounces@send.example.test',
      recipient: `${name}@example.test`,
      content: [Buffer.from('Subject: hello\r\n\r\nHello\r\n')],
      confirm,
      signal: new AbortController().signal,
    });
    expect(outcome.kind).toBe('accepted');
    return sink.messages.find(({ recipients }) => recipients.includes(`${name}@example.test`))!.connection;
  };

  const confirmed = new Map<number, () => void>();
  const sending = Array.from({ length: idle }, (_, index) =>
    send(`${index}`, () => new Promise((resolve) => confirmed.set(index, resolve))),
  );
  // Each has a connection of its own, since none of the others is free.
  while (confirmed.size < idle) await turn();
  const connections: number[] = [];
  for (const [index, sent] of sending.entries()) {
    confirmed.get(index)!();
    connections.push(await sent);
    await whenIdle(index + 1);
    clock.advance(1_000);
  }
  return { pool, sink, send, connections, whenIdle };
}

test('a hand-off takes the connection that was used last, so that the others grow old', async () => {
  const { send, connections, whenIdle } = await arrange(3);
  expect(await send('first')).toBe(connections[2]);
  await whenIdle(3);
  expect(await send('second')).toBe(connections[2]);
});

test('the connection is dropped that was idle for longest, once it was for long enough, and no other', async () => {
  const { pool, sink, send, connections, whenIdle } = await arrange(3);
  expect(pool.dropIdle(3_001)).toBe(false);
  for (const [index, idleMs] of [3_000, 2_000].entries()) {
    const left = sink.reached('quit');
    expect(pool.dropIdle(idleMs)).toBe(true);
    expect((await left).connection).toBe(connections[index]);
    expect(await send(`after-${index}`)).toBe(connections[2]);
    await whenIdle(2 - index);
  }
  // It was used just now.
  expect(pool.dropIdle(1)).toBe(false);
  expect(pool.counts()).toEqual({ open: 1, opening: 0, idle: 1, waiting: 0 });
});
