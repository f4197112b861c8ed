import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, describe, expect, type TestContext, test } from 'vitest';
import type { InboundSms, SmsProvider } from '../../src/channels/sms/provider.ts';
import { createSmppProvider } from '../../src/channels/sms/providers/smpp/smpp.ts';
import { parseSmppUrl } from '../../src/channels/sms/providers/smpp/url.ts';
import { systemClock } from '../../src/platform/clock.ts';
import type { Log } from '../../src/platform/log.ts';
import { eventually } from '../support/email-journey.ts';

/**
 * Texts to a message centre that is not ours: `drive_smpp`, with which Kannel tests its own gateway.
 *
 * What it can check: both binds apart, our PDUs read by Kannel's strict reader, texts by the octets that it logs (up to
 * the first NUL, so not those of long texts, whose header has one: of these it counts the parts), what it delivers and
 * asks beside them, answers that name no text, and both unbinds. It marks what it delivers with a
 * receipted_message_id, though these are no receipts. What it cannot: it knows no transceivers, sends no receipts,
 * refuses nothing, and checks no credentials. Kannel's bearerbox is of no use here, since it is a client as we are.
 */
const driveSmpp = '/usr/lib/kannel/test/drive_smpp';

/** Where it looks for a bearerbox, whose answers it does not wait for; it panics if nothing listens there. */
const bearerboxPort = 13_001;

const deliveredCount = 600;

const open: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

/** Null if the port is taken. */
async function listen(port: number): Promise<Server | null> {
  const server = createServer((socket) => {
    socket.resume();
    socket.on('error', () => undefined);
    open.push(() => socket.destroy());
  });
  const isListening = await new Promise<boolean>((resolve) => {
    server.once('error', () => {
      resolve(false);
    });
    server.listen(port, '127.0.0.1', () => {
      resolve(true);
    });
  });
  return isListening ? server : null;
}

type Kannel = { port: number; ended: Promise<unknown[]>; readLog: () => string };

/** It ends when its first connection does, so that a test must not connect to see whether it listens. */
async function startKannel(context: TestContext): Promise<Kannel> {
  const bearerbox = await listen(bearerboxPort);
  if (bearerbox === null) return context.skip(`port ${bearerboxPort}, which drive_smpp needs, is taken`);
  open.push(() => bearerbox.close());
  const reserved = await listen(0);
  const { port } = reserved?.address() as AddressInfo;
  reserved?.close();
  const place = mkdtempSync(path.join(tmpdir(), 'postillion-kannel-'));
  open.push(() => {
    rmSync(place, { recursive: true, force: true });
  });
  const logFile = path.join(place, 'log');
  const kannel = spawn(
    driveSmpp,
    ['-v', '0', '-l', logFile, '-p', String(port), '-m', String(deliveredCount)],
    { cwd: place, stdio: 'ignore' },
  );
  open.push(() => kannel.kill('SIGKILL'));
  return {
    port,
    ended: once(kannel, 'exit'),
    // An octet is a character, whatever it means.
    readLog: () => readFileSync(logFile, 'latin1'),
  };
}

/** A provider, what it received, and a promise that resolves when both of its connections are bound. */
function createProvider(port: number) {
  const inbound: InboundSms[] = [];
  let boundCount = 0;
  let onChange = (): void => undefined;
  const until = (isTrue: () => boolean) =>
    new Promise<void>((resolve) => {
      onChange = () => {
        if (isTrue()) resolve();
      };
      onChange();
    });
  const note = ({ state }: { state?: string }) => {
    if (state === 'bound') boundCount += 1;
    onChange();
  };
  const provider: SmsProvider = createSmppProvider({
    url: parseSmppUrl(`smpp://postillion:secret@127.0.0.1:${port}?bind=separate&window=50`),
    clock: systemClock,
    random: () => 0,
    // Only what the provider uses of it.
    log: { debug: note, info: note, warn: note } as unknown as Log,
    intake: {
      takeReceipt: () => Promise.reject(new Error('a receipt, where there are none')),
      takeInbound: async (text) => {
        inbound.push(text);
        onChange();
      },
    },
  });
  open.push(() => provider.close());
  return { provider, inbound, until, boundCount: () => boundCount };
}

/** GSM's alphabet and ASCII are the same for these; Cyrillic letters have no octet that is NUL. */
const texts = Array.from({ length: 100 }, (_, at) => [
  { text: `Number ${at}: your code is 123456.`, parts: 1 },
  { text: `Заказ№${String(at).replace(/\d/g, (digit) => 'абвгдежзик'[Number(digit)] ?? '')}`, parts: 1 },
  { text: `${at} ${'A long text. '.repeat(20)}`, parts: 2 },
  { text: `${at} ${'Длинный. '.repeat(20)}`, parts: 3 },
]).flat();

/** As it stands in Kannel's log. */
function loggedOctets({ text, parts }: { text: string; parts: number }): string[] {
  if (parts > 1) return Array.from({ length: parts }, () => '\u0005');
  const isAscii = /^[\x20-\x7e]*$/.test(text);
  return [isAscii ? text : Buffer.from(text, 'utf16le').swap16().toString('latin1')];
}

describe.skipIf(!existsSync(driveSmpp))("Kannel's message centre", () => {
  test('takes our texts as they were written, and we take what it delivers meanwhile', async (context) => {
    const kannel = await startKannel(context);
    const { provider, inbound, until, boundCount } = createProvider(kannel.port);
    await until(() => boundCount() === 2);
    const outcomes = await Promise.all(
      texts.map(({ text }, at) =>
        provider.handOff({
          reference: { organizationId: 'org', messageId: `message-${at}`, ordinal: 0 },
          sender: { name: 'Postillion', type: 'alphanumeric' },
          to: '+491510000001',
          text,
          confirm: async () => undefined,
          signal: new AbortController().signal,
        }),
      ),
    );
    expect(outcomes.filter(({ kind }) => kind !== 'accepted')).toEqual([]);
    // It names none of them.
    const ids = outcomes.map((outcome) => outcome.kind === 'accepted' && outcome.providerMessageId);
    expect(new Set(ids).size).toBe(texts.length);

    await until(() => inbound.length === deliveredCount);
    expect(inbound.map(({ text }) => Number(text)).sort((a, b) => a - b)).toEqual(
      Array.from({ length: deliveredCount }, (_, at) => at + 1),
    );
    expect(new Set(inbound.map(({ from, senderName }) => `${from} ${senderName}`))).toEqual(
      new Set(['456 123']),
    );

    const handled = (type: string) =>
      kannel.readLog().split(`Handling SMPP PDU of type ${type}\n`).length - 1;
    await eventually(
      async () => handled('deliver_sm_resp'),
      (count) => count === deliveredCount,
    );
    await provider.close();
    expect(await kannel.ended).toEqual([0, null]);
    expect([handled('bind_transmitter'), handled('bind_receiver')]).toEqual([1, 1]);
    // It may end over the first before it reads the second.
    expect(handled('unbind')).toBeGreaterThanOrEqual(1);
    const log = kannel.readLog();
    const taken = [...log.matchAll(/submit_sm: short_message = <(.*)>\n/g)].map(([, octets]) => octets);
    expect(taken.sort()).toEqual(texts.flatMap(loggedOctets).sort());
    expect(log).not.toMatch(/ (WARNING|ERROR|PANIC): |Unhandled/);
  });
});
