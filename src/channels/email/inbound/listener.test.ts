import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import fc from 'fast-check';
import { createTransport } from 'nodemailer';
import pino from 'pino';
import { afterEach, expect, test } from 'vitest';
import { createManualClock } from '../../../../test/support/manual-clock.ts';
import { systemClock } from '../../../platform/clock.ts';
import { silentLog } from '../../../platform/log.ts';
import {
  type InboundListener,
  type InboundListenerOptions,
  type InboundMail,
  startInboundListener,
} from './listener.ts';
import { createPlaces } from '../smtp-listening/places.ts';

const open: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

async function arrange(
  options: Partial<InboundListenerOptions> = {},
): Promise<InboundListener & { received: InboundMail[] }> {
  const received: InboundMail[] = [];
  const listener = await startInboundListener({
    host: '127.0.0.1',
    port: 0,
    hostName: 'bounces.example.test',
    clock: systemClock,
    log: silentLog,
    accepts: async (recipient) => !recipient.startsWith('nobody'),
    receive: async (mail) => {
      received.push(mail);
    },
    ...options,
  });
  open.push(listener.stop);
  return { ...listener, received };
}

/** A client that sends exactly the lines it is given. */
type Client = {
  socket: Socket;
  /** The next reply, whole and without its last line end; rejects when the connection ends first. */
  reply: () => Promise<string>;
  /** Sends one line and resolves to the reply. */
  ask: (line: string) => Promise<string>;
};

async function dial(port: number, localAddress = '127.0.0.1'): Promise<Client> {
  const socket = connect({ port, host: '127.0.0.1', localAddress });
  open.push(async () => socket.destroy());
  let text = '';
  let end: Error | null = null;
  let wake: () => void = () => undefined;
  socket.setEncoding('latin1');
  socket.on('data', (chunk: string) => {
    text += chunk;
    wake();
  });
  socket.on('error', () => undefined);
  socket.on('close', () => {
    end = new Error('the connection has ended');
    wake();
  });
  const reply = async (): Promise<string> => {
    for (;;) {
      const found = /^(?:\d{3}-.*\r\n)*\d{3}(?: .*)?\r\n/.exec(text);
      if (found !== null) {
        text = text.slice(found[0].length);
        return found[0].trimEnd();
      }
      if (end !== null) throw end;
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  const ask = (line: string) => {
    socket.write(`${line}\r\n`);
    return reply();
  };
  return { socket, reply, ask };
}

async function greet(port: number, localAddress?: string): Promise<Client> {
  const client = await dial(port, localAddress);
  expect(await client.reply()).toMatch(/^220 bounces\.example\.test /);
  expect(await client.ask('EHLO client.example.test')).toMatch(/^250-/);
  return client;
}

async function beginData(client: Client, recipient = 'bounce-a@send.example.test'): Promise<void> {
  expect(await client.ask('MAIL FROM:<>')).toMatch(/^250 /);
  expect(await client.ask(`RCPT TO:<${recipient}>`)).toMatch(/^250 /);
  expect(await client.ask('DATA')).toMatch(/^354 /);
}

function textOf(mail: InboundMail | undefined): string {
  return Buffer.from(mail!.source).toString('latin1');
}

/** Something that a test lets happen. */
function createGate(): { passed: Promise<void>; open: () => void } {
  let pass: () => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    pass = resolve;
  });
  return { passed, open: () => pass() };
}

test('a mail that another program sends arrives whole', async () => {
  const { port, received } = await arrange();
  const transport = createTransport({ host: '127.0.0.1', port, ignoreTLS: true });
  await transport.sendMail({
    envelope: { from: '', to: ['Bounce-A@Send.Example.TEST', 'bounce-b@xn--bcher-kva.example.test'] },
    raw: 'Subject: returned\r\n\r\n.a dot\r\n..two dots\r\n',
  });
  transport.close();
  expect(received.map(({ recipient }) => recipient)).toEqual([
    'Bounce-A@send.example.test',
    'bounce-b@xn--bcher-kva.example.test',
  ]);
  for (const mail of received) expect(textOf(mail)).toBe('Subject: returned\r\n\r\n.a dot\r\n..two dots\r\n');
});

test('neither authentication nor TLS is offered or given', async () => {
  const { port } = await arrange();
  const client = await dial(port);
  await client.reply();
  expect((await client.ask('EHLO client.example.test')).split('\r\n')).toEqual([
    '250-bounces.example.test',
    '250-PIPELINING',
    '250-8BITMIME',
    '250-SMTPUTF8',
    '250-ENHANCEDSTATUSCODES',
    '250 SIZE 41943040',
  ]);
  for (const command of [
    'AUTH PLAIN AGEAYg==',
    'STARTTLS',
    'VRFY someone',
    'XCLIENT ADDR=127.0.0.1',
    'WIZ x',
  ])
    expect(await client.ask(command)).toMatch(/^500 /);
});

test('no client is answered before its mail is received', async () => {
  const begun = createGate();
  const gate = createGate();
  const { port } = await arrange({
    receive: async () => {
      begun.open();
      await gate.passed;
    },
  });
  const client = await greet(port);
  await beginData(client);
  let isAnswered = false;
  const answer = client.ask('Subject: x\r\n\r\nx\r\n.').then((reply) => {
    isAnswered = true;
    return reply;
  });
  await begun.passed;
  expect(isAnswered).toBe(false);
  gate.open();
  expect(await answer).toMatch(/^250 2\.6\.0 /);
});

test('an unknown recipient is refused, and a failure on our side makes the sender try later', async () => {
  let isBroken = true;
  const { port, received } = await arrange({
    accepts: async (recipient) => {
      if (recipient.startsWith('broken')) throw new Error('no database');
      return !recipient.startsWith('nobody');
    },
    receive: async (mail) => {
      if (isBroken) throw new Error('no database');
      received.push(mail);
    },
  });
  const client = await greet(port);
  expect(await client.ask('MAIL FROM:<>')).toMatch(/^250 2\.1\.0 /);
  expect(await client.ask('RCPT TO:<nobody@send.example.test>')).toMatch(/^550 5\.1\.1 /);
  expect(await client.ask('RCPT TO:<broken@send.example.test>')).toMatch(/^451 4\.3\.0 /);
  expect(await client.ask('RCPT TO:<"quoted part"@send.example.test>')).toMatch(/^5/);
  expect(await client.ask('RCPT TO:<a@[127.0.0.1]>')).toMatch(/^550 /);
  expect(await client.ask('DATA')).toMatch(/^503 /);
  expect(await client.ask('RCPT TO:<bounce-a@send.example.test>')).toMatch(/^250 /);
  expect(await client.ask('DATA')).toMatch(/^354 /);
  expect(await client.ask('Subject: x\r\n\r\n1\r\n.')).toMatch(/^451 4\.3\.0 /);
  expect(received).toEqual([]);
  isBroken = false;
  await beginData(client);
  expect(await client.ask('Subject: x\r\n\r\n2\r\n.')).toMatch(/^250 /);
  expect(received.map(textOf)).toEqual(['Subject: x\r\n\r\n2\r\n']);
});

/** Calls when our side has seen that a client closed its own. */
function watchHalfClosed(onEnd: () => void): void {
  const watch = (message: unknown) => {
    (message as { socket: Socket }).socket.once('end', onEnd); // As Node documents it.
  };
  subscribe('net.server.socket', watch);
  open.push(async () => unsubscribe('net.server.socket', watch));
}

test.each([
  ['a message', 'Subject: x\r\n\r\nx\r\n', 'Subject: x\r\n\r\nx\r\n'],
  ['one with dots', `Subject: x\r\n\r\n${'..\r\n'.repeat(50)}`, `Subject: x\r\n\r\n${'.\r\n'.repeat(50)}`],
])(
  'a client that sends QUIT behind %s and closes its side, as Exim does, is answered all the same',
  async (_what, sent, expected) => {
    const gate = createGate();
    const received: InboundMail[] = [];
    const { port } = await arrange({
      receive: async (mail) => {
        await gate.passed;
        received.push(mail);
      },
    });
    watchHalfClosed(gate.open);
    const client = await greet(port);
    await beginData(client);
    client.socket.end(`${sent}.\r\nQUIT\r\n`);
    expect(await client.reply()).toMatch(/^250 2\.6\.0 /);
    expect(await client.reply()).toMatch(/^221 /);
    await expect(client.reply()).rejects.toThrow('has ended');
    expect(received.map(textOf)).toEqual([expected]);
  },
);

test('a client that closes its side without QUIT is answered, and its connection ends', async () => {
  const gate = createGate();
  const { port } = await arrange({ receive: () => gate.passed });
  watchHalfClosed(gate.open);
  const client = await greet(port);
  await beginData(client);
  client.socket.end('x\r\n.\r\nNOOP\r\n');
  expect(await client.reply()).toMatch(/^250 2\.6\.0 /);
  expect(await client.reply()).toMatch(/^250 2\.0\.0 /);
  await expect(client.reply()).rejects.toThrow('has ended');
});

test('a failure that comes after the client has closed its side is told, so that it tries later', async () => {
  const gate = createGate();
  const { port } = await arrange({
    receive: async () => {
      await gate.passed;
      throw new Error('no database');
    },
  });
  watchHalfClosed(gate.open);
  const client = await greet(port);
  await beginData(client);
  client.socket.end('x\r\n.\r\nQUIT\r\n');
  expect(await client.reply()).toMatch(/^451 /);
});

test('if one of several recipients fails, the sender hears of no success', async () => {
  const seen: string[] = [];
  const { port } = await arrange({
    receive: async ({ recipient }) => {
      seen.push(recipient);
      if (recipient.startsWith('second')) throw new Error('no database');
    },
  });
  const client = await greet(port);
  await client.ask('MAIL FROM:<>');
  await client.ask('RCPT TO:<first@send.example.test>');
  await beginDataAfter(client, 'second@send.example.test');
  expect(await client.ask('x\r\n.')).toMatch(/^451 /);
  expect(seen).toEqual(['first@send.example.test', 'second@send.example.test']);
});

async function beginDataAfter(client: Client, recipient: string): Promise<void> {
  expect(await client.ask(`RCPT TO:<${recipient}>`)).toMatch(/^250 /);
  expect(await client.ask('DATA')).toMatch(/^354 /);
}

test('a message to many spellings of one address is received once', async () => {
  const { port, received } = await arrange();
  const client = await greet(port);
  await client.ask('MAIL FROM:<>');
  for (const localPart of ['abuse', 'Abuse', 'ABUSE', 'fbl'])
    expect(await client.ask(`RCPT TO:<${localPart}@send.example.test>`)).toMatch(/^250 /);
  await beginDataAfter(client, 'aBuse@Send.example.test');
  expect(await client.ask('x\r\n.')).toMatch(/^250 /);
  expect(received.map(({ recipient }) => recipient.toLowerCase())).toEqual([
    'abuse@send.example.test',
    'fbl@send.example.test',
  ]);
});

test('postmaster needs no domain, even if our own name is none', async () => {
  const { port, received } = await arrange({ hostName: 'Machine' });
  const client = await dial(port);
  await client.reply();
  await client.ask('EHLO client.example.test');
  await beginData(client, 'Postmaster');
  expect(await client.ask('x\r\n.')).toMatch(/^250 /);
  expect(received[0]!.recipient).toBe('postmaster@machine');
});

test('postmaster needs no domain', async () => {
  const { port, received } = await arrange();
  const client = await greet(port);
  await beginData(client, 'Postmaster');
  expect(await client.ask('x\r\n.')).toMatch(/^250 /);
  expect(received[0]!.recipient).toBe('postmaster@bounces.example.test');
});

/** Each is content with what some servers take for the end of a message, and a second message after it. */
const forgedEnds = [
  '\n.\n',
  '\n.\r\n',
  '\r\n.\n',
  '\r.\r',
  '\r.\r\n',
  '\r\n.\r',
  '\n.\r',
  '\r\n\0.\r\n',
  '\r\n.\0\r\n',
];

test.each(forgedEnds)('%j ends no message', async (forged) => {
  const { port, received } = await arrange();
  const client = await greet(port);
  await beginData(client);
  const smuggled = 'MAIL FROM:<>\r\nRCPT TO:<bounce-b@send.example.test>\r\nDATA\r\nSubject: forged\r\n';
  expect(await client.ask(`Subject: x\r\n\r\nx${forged}${smuggled}\r\n.`)).toMatch(/^250 /);
  expect(await client.ask('NOOP')).toMatch(/^250 /);
  expect(received).toHaveLength(1);
  expect(textOf(received[0])).toContain('Subject: forged');
});

test('one message in is one message, wherever its octets are torn apart', async () => {
  const { port, received } = await arrange();
  const content = fc
    .array(fc.constantFrom('\r', '\n', '.', 'a', '\r\n', '\r\n.', 'QUIT\r\n', 'DATA\r\n'), { maxLength: 30 })
    .map((pieces) => pieces.join(''));
  const client = await greet(port);
  await fc.assert(
    fc.asyncProperty(content, fc.nat(20), async (text, at) => {
      received.length = 0;
      await beginData(client);
      const stuffed = `${`\r\n${text}`.replaceAll('\r\n.', '\r\n..').slice(2)}\r\n.\r\n`;
      client.socket.write(stuffed.slice(0, at));
      await new Promise((resolve) => setImmediate(resolve));
      client.socket.write(stuffed.slice(at));
      expect(await client.reply()).toMatch(/^250 /);
      expect(received).toHaveLength(1);
      // smtp-server takes the second dot away after a bare line feed, too.
      expect(textOf(received[0]).replaceAll('.', '')).toBe(`${text}\r\n`.replaceAll('.', ''));
    }),
    // As many as one connection may send.
    { numRuns: 100 },
  );
});

test('of a large message the first megabyte is kept, and of one too large nothing', async () => {
  const { port, received } = await arrange();
  const client = await greet(port);
  const line = `${'a'.repeat(998)}\r\n`;
  expect(await client.ask('MAIL FROM:<> SIZE=41943040')).toMatch(/^250 /);
  expect(await client.ask('RCPT TO:<bounce-a@send.example.test>')).toMatch(/^250 /);
  expect(await client.ask('DATA')).toMatch(/^354 /);
  client.socket.write(line.repeat(36_700));
  expect(await client.ask('.')).toMatch(/^250 /);
  expect(received).toHaveLength(1);
  expect(textOf(received[0])).toBe(line.repeat(1_100).slice(0, 1_048_576));

  await beginData(client);
  client.socket.write(line.repeat(42_000));
  expect(await client.ask('.')).toMatch(/^552 5\.3\.4 /);
  expect(await client.ask('MAIL FROM:<> SIZE=41943041')).toMatch(/^552 5\.3\.4 /);
  expect(received).toHaveLength(1);
});

test('a client that goes away in the middle of a message has sent none', async () => {
  const lines: string[] = [];
  const cutOff = createGate();
  const log = pino(
    {},
    {
      write: (line: string) => {
        lines.push(line);
        if (line.includes('cut_off')) cutOff.open();
      },
    },
  );
  const { port, received } = await arrange({ log });
  const client = await greet(port);
  await beginData(client);
  client.socket.write('Subject: x\r\n\r\nhalf of it\r\n');
  client.socket.end();
  await cutOff.passed;
  expect(received).toEqual([]);
});

test('no line of the log holds an address or a word of a message', async () => {
  const lines: string[] = [];
  const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) });
  const { port } = await arrange({ log });
  const client = await greet(port);
  await client.ask('MAIL FROM:<sender@example.test>');
  await client.ask('RCPT TO:<nobody@send.example.test>');
  await beginDataAfter(client, 'bounce-a@send.example.test');
  await client.ask('Subject: secret\r\n\r\nsecret\r\n.');
  await client.ask('QUIT');
  expect(lines.map((line) => JSON.parse(line) as unknown)).toMatchObject([
    { bytes: 27, recipients: 1, decision: 'received' },
  ]);
  expect(lines.join('')).not.toMatch(/@|secret|bounce-a/);
});

test('a message has at most 100 recipients', async () => {
  const { port } = await arrange();
  const client = await greet(port);
  await client.ask('MAIL FROM:<>');
  for (let at = 0; at < 100; at += 1)
    expect(await client.ask(`RCPT TO:<r${at}@send.example.test>`)).toMatch(/^250 /);
  expect(await client.ask('RCPT TO:<one-more@send.example.test>')).toMatch(/^452 4\.5\.3 /);
});

test('a connection carries some 100 MB, and the next one as much again', async () => {
  const { port, received } = await arrange();
  const client = await greet(port);
  const content = `${'a'.repeat(998)}\r\n`.repeat(36_000);
  for (let count = 1; count <= 3; count += 1) {
    await beginData(client);
    client.socket.write(content);
    expect(await client.ask('.')).toMatch(/^250 /);
  }
  expect(await client.ask('MAIL FROM:<>')).toMatch(/^421 /);
  await beginData(await greet(port));
  expect(received).toHaveLength(3);
});

test('a connection has at most 100 messages', async () => {
  const { port, received } = await arrange();
  const client = await greet(port);
  for (let at = 0; at < 100; at += 1) {
    await beginData(client);
    expect(await client.ask('x\r\n.')).toMatch(/^250 /);
  }
  expect(await client.ask('MAIL FROM:<>')).toMatch(/^421 /);
  expect(received).toHaveLength(100);
});

test('a client that guesses at recipients is disconnected', async () => {
  const { port } = await arrange();
  const client = await greet(port);
  await client.ask('MAIL FROM:<>');
  for (let at = 0; at < 20; at += 1)
    expect(await client.ask(`RCPT TO:<nobody${at}@send.example.test>`)).toMatch(/^550 /);
  expect(await client.ask('RCPT TO:<nobody@send.example.test>')).toMatch(/^421 /);
});

test('a command without an end is not waited for', async () => {
  const { port } = await arrange();
  const client = await greet(port);
  client.socket.write('N'.repeat(10_000));
  expect(await client.reply()).toMatch(/^421 /);
});

/** No silence ends anything while a test runs. */
const patient = { idleMs: 60_000, stepMs: 60_000, patienceMs: 60_000, lifetimeMs: 60_000, stopMs: 1_000 };

test('silent connections of one address keep no other address out, and not even its own for long', async () => {
  const { port, received } = await arrange({ timeouts: patient });
  const silent = await Promise.all(Array.from({ length: 20 }, () => greet(port)));
  for (let at = 0; at < 30; at += 1) expect(await (await dial(port)).reply()).toMatch(/^421 4\.3\.2 /);
  const other = await greet(port, '127.0.0.2');
  await beginData(other);
  expect(await other.ask('x\r\n.')).toMatch(/^250 /);
  expect(received).toHaveLength(1);
  expect(await silent[0]!.ask('NOOP')).toMatch(/^250 /);

  const hasty = await arrange({ timeouts: { ...patient, patienceMs: 0 } });
  const first = await greet(hasty.port);
  await Promise.all(Array.from({ length: 19 }, () => greet(hasty.port)));
  await greet(hasty.port);
  expect(await first.reply()).toMatch(/^421 4\.3\.2 /);
});

test('a few addresses that hold everything give way to one that has nothing, which keeps what it has', async () => {
  const { port, received } = await arrange({ timeouts: patient });
  const hold = (count: number, address: string) =>
    Promise.all(Array.from({ length: count }, () => greet(port, address)));
  await hold(18, '127.0.0.1');
  await hold(17, '127.0.0.2');
  // In the middle of a message, where an octet now and then would keep others out for as long.
  for (const client of await hold(15, '127.0.0.3')) await beginData(client);
  const other = await greet(port, '127.0.0.4');
  await beginData(other);
  for (const address of ['127.0.0.1', '127.0.0.2', '127.0.0.3', '127.0.0.5']) {
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        await (await dial(port, address)).reply();
      }),
    );
  }
  expect(await other.ask('x\r\n.')).toMatch(/^250 /);
  expect(received).toHaveLength(1);
});

test('where fifty addresses hold one place each, one that is silent for too long gives way', async () => {
  for (const [patienceMs, reply] of [
    [60_000, /^421 4\.3\.2 /],
    [0, /^220 /],
  ] as const) {
    const { port } = await arrange({ timeouts: { ...patient, patienceMs } });
    await Promise.all(Array.from({ length: 50 }, (_, at) => greet(port, `127.${at + 1}.0.1`)));
    expect(await (await dial(port, '127.100.0.1')).reply()).toMatch(reply);
  }
});

/** Commands that cost a client nothing, and are no step. */
const idleTalk = [
  'NOOP',
  'RSET',
  'MAIL FROM:<>',
  'RSET',
  'EHLO client.example.test',
  'HELO client.example.test',
];

/** Says something that is no step, and its answer is waited for, so that it was heard before the clock moves on. */
async function talkIdly(clients: readonly Client[], turn: number): Promise<void> {
  await Promise.all(clients.map((client) => client.ask(idleTalk[turn % idleTalk.length]!)));
}

test('fifty addresses of one /24 that always say something, and never name a recipient, keep no client out', async () => {
  const clock = createManualClock();
  const { port, received } = await arrange({ clock });
  const all = await Promise.all(Array.from({ length: 50 }, (_, at) => greet(port, `127.0.1.${at + 1}`)));
  const firstEnded = Promise.race(all.map((client) => once(client.socket, 'close').then(() => client)));
  const returnMail = async (client: Client) => {
    await beginData(client);
    expect(await client.ask('x\r\n.')).toMatch(/^250 /);
  };

  // Of another /24: at once.
  await returnMail(await greet(port, '127.0.2.1'));
  // That took the place of one, which comes back by another address of its own, and gets none for it.
  const loser = await firstEnded;
  expect(await loser.reply()).toMatch(/^421 4\.3\.2 /);
  expect(await (await dial(port, '127.0.1.100')).reply()).toMatch(/^421 4\.3\.2 /);

  // Of their own: as soon as it is seen that they do not get on.
  for (let turn = 0; turn < 3; turn += 1) {
    clock.advance(4_000);
    await talkIdly(
      all.filter((client) => client !== loser),
      turn,
    );
  }
  await returnMail(await greet(port, '127.0.1.200'));
  expect(received).toHaveLength(2);
});

test('fifty /64s of one /48 count as one site, and a place of theirs is had at once', () => {
  const places = createPlaces({ placesMax: 50, placesPerNetworkMax: 20, patienceMs: 5_000 });
  for (let at = 0; at < 50; at += 1) places.take({ remoteAddress: `2001:db8:1:${at.toString(16)}::1` }, 0);
  const taken = places.take({ remoteAddress: '2001:db8:2::1' }, 1);
  expect(taken?.displaced?.site).toBe('2001:db8:1::/48');
  // The site has 49 now, and none of its 65,536 networks gets one more.
  expect(places.take({ remoteAddress: '2001:db8:1:ffff::1' }, 2)).toBeNull();
});

test.each([
  ['commands that are no step', idleTalk],
  [
    'one recipient after the other',
    Array.from({ length: 6 }, (_, at) => `RCPT TO:<a${at}@send.example.test>`),
  ],
])('a client that takes no step is disconnected, whatever it says: %s', async (_what, lines) => {
  const clock = createManualClock();
  const { port } = await arrange({ clock, timeouts: { ...patient, stepMs: 60_000, lifetimeMs: 600_000 } });
  const client = await greet(port);
  await client.ask('MAIL FROM:<>');
  await client.ask('RCPT TO:<bounce-a@send.example.test>');
  for (const line of lines) {
    clock.advance(9_000);
    expect(await client.ask(line)).toMatch(/^250/);
  }
  clock.advance(9_000);
  expect(await client.reply()).toMatch(/^421 4\.4\.2 /);
});

test('a slow client that gets on is waited for, and so is one whose messages we take long over', async () => {
  const clock = createManualClock();
  const begun = createGate();
  const gate = createGate();
  const { port, received } = await arrange({
    clock,
    timeouts: { ...patient, stepMs: 60_000, lifetimeMs: 600_000 },
    receive: async (mail) => {
      begun.open();
      await gate.passed;
      received.push(mail);
    },
  });
  const client = await greet(port);
  clock.advance(59_000);
  await beginData(client);
  clock.advance(59_000);
  const answer = client.ask(`${'x'.repeat(1_100)}\r\n.`);
  await begun.passed;
  clock.advance(130_000);
  gate.open();
  expect(await answer).toMatch(/^250 /);
  clock.advance(59_000);
  await beginData(client);
  clock.advance(40_000);
  expect(await client.ask('x\r\n.')).toMatch(/^250 /);
  clock.advance(40_000);
  expect(await client.ask('NOOP')).toMatch(/^250 /);
  expect(received).toHaveLength(2);
});

test('the time in which we look for a recipient is not the time of the client', async () => {
  const clock = createManualClock();
  const begun = createGate();
  const gate = createGate();
  const { port } = await arrange({
    clock,
    timeouts: { ...patient, stepMs: 60_000, lifetimeMs: 600_000 },
    accepts: async () => {
      begun.open();
      await gate.passed;
      return false;
    },
  });
  const client = await greet(port);
  await client.ask('MAIL FROM:<>');
  const answer = client.ask('RCPT TO:<nobody@send.example.test>');
  await begun.passed;
  clock.advance(130_000);
  gate.open();
  expect(await answer).toMatch(/^550 /);
  clock.advance(59_000);
  expect(await client.ask('NOOP')).toMatch(/^250 /);
  clock.advance(1_000);
  expect(await client.reply()).toMatch(/^421 4\.4\.2 /);
});

test('a client that waits for our answer is not silent', async () => {
  const begun = createGate();
  const gate = createGate();
  const { port } = await arrange({
    timeouts: { ...patient, patienceMs: 0, stepMs: 60_000 },
    receive: async () => {
      begun.open();
      await gate.passed;
    },
  });
  const waiting = await greet(port);
  await beginData(waiting);
  const answer = waiting.ask('x\r\n.');
  await begun.passed;
  for (let at = 0; at < 30; at += 1) await (await dial(port)).reply();
  gate.open();
  expect(await answer).toMatch(/^250 /);
});

test('a client that says nothing is disconnected', async () => {
  const { port } = await arrange({ timeouts: { ...patient, idleMs: 50 } });
  const client = await dial(port);
  const first = await client.reply();
  // The greeting itself may come first, or too late for so short a time.
  expect(first.startsWith('421 ') ? first : await client.reply()).toMatch(/^421 /);
});

test('a client that says something and takes no step is disconnected', async () => {
  const { port } = await arrange({ timeouts: { ...patient, stepMs: 300 } });
  const client = await greet(port);
  const talk = async () => {
    for (;;) {
      const reply = await client.ask('NOOP');
      if (!reply.startsWith('250')) return reply;
    }
  };
  expect(await talk()).toMatch(/^421 4\.4\.2 /);
});

test('no connection lives for ever, even if it always has something to say', async () => {
  const { port } = await arrange({ timeouts: { ...patient, lifetimeMs: 300 } });
  const client = await greet(port);
  const talk = async () => {
    for (;;) await client.ask('NOOP');
  };
  await expect(talk()).rejects.toThrow('has ended');
});

test('what is under way when the listener is stopped is answered; nothing more is taken', async () => {
  const begun = createGate();
  const gate = createGate();
  const { port, stop } = await arrange({
    receive: async () => {
      begun.open();
      await gate.passed;
    },
  });
  const idle = await greet(port);
  const busy = await greet(port);
  await beginData(busy);
  const answer = busy.ask('x\r\n.');
  await begun.passed;
  const stopped = stop();
  expect(await idle.reply()).toMatch(/^421 /);
  gate.open();
  expect(await answer).toMatch(/^250 /);
  expect(await busy.reply()).toMatch(/^421 /);
  await stopped;
  await expect(dial(port).then((client) => client.reply())).rejects.toThrow('has ended');
});

test('a message that never ends does not keep the listener from stopping', async () => {
  const { port, stop } = await arrange({
    receive: () => new Promise(() => undefined),
    timeouts: { ...patient, stopMs: 50 },
  });
  const client = await greet(port);
  await beginData(client);
  client.socket.write('x\r\n.\r\n');
  const half = await greet(port);
  await beginData(half);
  await stop();
  await expect(client.reply().then(() => client.reply())).rejects.toThrow('has ended');
});

test('a client that never closes its side is cut off all the same', async () => {
  const { port, stop } = await arrange({ timeouts: { ...patient, stopMs: 50 } });
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  open.push(async () => socket.destroy());
  await once(socket, 'data');
  await stop();
  const failed = once(socket, 'error').catch((error: NodeJS.ErrnoException) => [error]);
  socket.write('NOOP\r\n');
  socket.write('NOOP\r\n');
  expect((await failed)[0]).toMatchObject({ code: expect.stringMatching(/^(?:ECONNRESET|EPIPE)$/) });
});

test('a port that is taken is reported', async () => {
  const other = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  open.push(async () => other.close());
  const { port } = other.address() as { port: number };
  await expect(arrange({ port })).rejects.toThrow('EADDRINUSE');
});
