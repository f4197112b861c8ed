import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { connect, type Socket } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { createTransport } from 'nodemailer';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApiKey } from '../../src/accounts/accounts.ts';
import {
  certificateForTests,
  expiredCertificateForTests,
  privateKeyForTests,
} from '../support/certificate-for-tests.ts';
import { type Transaction, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { createManualClock } from '../support/manual-clock.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

/** Connections by which emails come in: with TLS, cut off anywhere, silent, too many. */

const clock = createManualClock();
let server: TestServer;
let directory: string;
let files: { certificateFile: string; keyFile: string };

beforeAll(async () => {
  directory = await mkdtemp(path.join(tmpdir(), 'postillion-submission-'));
  files = { certificateFile: path.join(directory, 'cert.pem'), keyFile: path.join(directory, 'key.pem') };
  await writeFile(files.certificateFile, expiredCertificateForTests);
  await writeFile(files.keyFile, privateKeyForTests);
  server = await startTestServer({
    clock,
    submission: { host: '127.0.0.1', port: 0, tlsPort: 0, certificate: files },
  });
});
afterAll(async () => {
  await server.stop();
  await rm(directory, { recursive: true });
});

type Client = { socket: Socket; ask: (line: string) => Promise<string>; reply: () => Promise<string> };

function speak(socket: Socket): Client {
  let text = '';
  let isClosed = false;
  let wake: () => void = () => undefined;
  socket.setEncoding('latin1');
  socket.on('data', (chunk: string) => {
    text += chunk;
    wake();
  });
  socket.on('error', () => undefined);
  socket.on('close', () => {
    isClosed = true;
    wake();
  });
  const reply = async (): Promise<string> => {
    // Ends with a reply, or the connection.
    for (;;) {
      const found = /^(?:\d{3}-.*\r\n)*\d{3}(?: .*)?\r\n/.exec(text);
      if (found !== null) {
        text = text.slice(found[0].length);
        return found[0].trimEnd();
      }
      if (isClosed) return 'closed';
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  return {
    socket,
    reply,
    ask: (line) => {
      socket.write(`${line}\r\n`, 'latin1');
      return reply();
    },
  };
}

async function dial(localAddress = '127.0.0.1'): Promise<Client> {
  const client = speak(connect({ port: server.submission!.port!, host: '127.0.0.1', localAddress }));
  await client.reply();
  await client.ask('EHLO client.test');
  return client;
}

function plain(key: string): string {
  return `AUTH PLAIN ${Buffer.from(`\0anyone\0${key}`).toString('base64')}`;
}

async function begin(): Promise<Client> {
  const client = await dial();
  await client.ask(plain(server.key));
  await client.ask('MAIL FROM:<a@b.test>');
  await client.ask('RCPT TO:<ada@example.com>');
  expect(await client.ask('DATA')).toMatch(/^354/);
  return client;
}

const message = (id: string) =>
  `From: Acme <hello@postillion.test>\r\nTo: ada@example.com\r\nSubject: ${id}\r\nMessage-ID: <${id}@client.test>\r\n\r\nHi\r\n.\r\n`;

async function countEmails(subject: string): Promise<number> {
  const { body } = await server.request<{ data: unknown[] }>('GET', `/v1/email?limit=100&search=${subject}`);
  return body.data.length;
}

const mail = { from: 'Acme <hello@postillion.test>', to: 'ada@example.com', subject: 'Hello', text: 'Hi' };

describe('with TLS', () => {
  test.each([
    ['STARTTLS', () => ({ port: server.submission!.port!, requireTLS: true })],
    ['TLS from the beginning', () => ({ port: server.submission!.tlsPort!, secure: true })],
  ])('an email comes in by %s', async (_name, options) => {
    const transport = createTransport({
      host: '127.0.0.1',
      auth: { user: 'anyone', pass: server.key },
      tls: { rejectUnauthorized: false },
      ...options(),
    });
    expect((await transport.sendMail(mail)).response).toMatch(/^250 2\.0\.0 queued as/);
    transport.close();
  });

  const certificateShown = async (): Promise<string> => {
    const socket: TLSSocket = connectTls({
      port: server.submission!.tlsPort!,
      host: '127.0.0.1',
      rejectUnauthorized: false,
    });
    const client = speak(socket);
    await client.reply();
    const { subject } = socket.getPeerCertificate();
    socket.end();
    return String(subject.CN);
  };

  test('a certificate that is replaced is shown from then on, and one that cannot be used never', async () => {
    expect(await certificateShown()).toBe('Postillion tests, expired');
    await writeFile(files.certificateFile, 'half of a file');
    clock.advance(10_000);
    expect(await certificateShown()).toBe('Postillion tests, expired');
    await writeFile(files.certificateFile, certificateForTests);
    expect(await certificateShown()).toBe('Postillion tests, expired');
    clock.advance(10_000);
    expect(await certificateShown()).toBe('Postillion tests only');
  });

  test('what was said before TLS is forgotten', async () => {
    const client = await dial();
    await client.ask(plain(server.key));
    expect(await client.ask('STARTTLS')).toMatch(/^220/);
    const secured = speak(connectTls({ socket: client.socket, rejectUnauthorized: false }));
    await secured.ask('EHLO client.test');
    expect(await secured.ask('MAIL FROM:<a@b.test>')).toMatch(/^530/);
    secured.socket.destroy();
  });
});

test('a connection that is cut at any octet of a message: it is sent once if it comes again, and never without its end', async () => {
  const whole = message('cut');
  for (let length = 0; length <= whole.length; length += 1) {
    const client = await begin();
    const closed = new Promise((resolve) => client.socket.once('close', resolve));
    client.socket.write(whole.slice(0, length), 'latin1', () => client.socket.destroy());
    await closed;
  }
  // The last one had its end: whether it was taken before its client was gone, it is there once now.
  const before = await countEmails('cut');
  expect(before).toBeLessThanOrEqual(1);
  let answers: string[] = [];
  // The first may still be under way, and is told to come again.
  for (let tries = 0; tries < 50 && answers.length < 2; tries += 1) {
    const client = await begin();
    client.socket.write(whole, 'latin1');
    const answer = await client.reply();
    expect(answer).toMatch(/^250 2\.0\.0 queued as|^451 4\.3\.2 An earlier request/);
    if (answer.startsWith('250')) answers = [...answers, answer];
    client.socket.destroy();
  }
  expect(answers).toHaveLength(2);
  expect(answers[1]).toBe(answers[0]);
  expect(await countEmails('cut')).toBe(1);
});

describe('too many', () => {
  test('wrong keys of one address end its connection', async () => {
    const answers = [];
    for (let time = 0; time < 6; time += 1) {
      const client = await dial('127.0.0.9');
      answers.push((await client.ask(plain(`pst_wrong_${time}`))).slice(0, 9));
      client.socket.destroy();
    }
    expect(answers).toEqual([...Array.from({ length: 5 }, () => '535 5.7.8'), '421 4.7.0']);
    const other = await dial('127.0.0.9');
    expect(await other.ask(plain(server.key))).toMatch(/^235/);
    other.socket.destroy();
  });

  test('connections of one key are refused, and one that has ended makes room', async () => {
    const clients: Client[] = [];
    for (let index = 0; index < 20; index += 1) {
      const client = await dial(`127.0.0.${20 + (index % 4)}`);
      expect(await client.ask(plain(server.key))).toMatch(/^235/);
      clients.push(client);
    }
    const refused = await dial();
    expect(await refused.ask(plain(server.key))).toMatch(
      /^421 4\.3\.2 This API key has 20 connections already/,
    );
    expect(await clients[0]!.ask('QUIT')).toMatch(/^221/);
    clients[0]!.socket.destroy();
    let answer = '';
    for (let tries = 0; tries < 50 && !answer.startsWith('235'); tries += 1) {
      const client = await dial();
      answer = await client.ask(plain(server.key));
      client.socket.destroy();
    }
    expect(answer).toMatch(/^235/);
    for (const { socket } of clients) socket.destroy();
  });
});

/** Resolves when a statement waits for the lock that `transaction` holds. */
async function waitingForLocks(transaction: Transaction): Promise<void> {
  await expect
    .poll(() =>
      transaction.rows(
        unpreparedStatement(
          `select true as waits from pg_locks where not granted and relation = 'api_keys'::regclass`,
        ),
      ),
    )
    .not.toEqual([]);
}

test('clients that leave while their key is looked up take no places of it', async () => {
  const { key } = await createApiKey(server.installation, {
    organizationId: server.organizationId,
    name: 'Hasty',
    scopes: ['email:send'],
    expiresAt: null,
  });
  const hasty = await Promise.all(Array.from({ length: 25 }, () => dial('127.0.0.30')));
  await server.installation.database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement('lock table api_keys in access exclusive mode'));
    for (const { socket } of hasty) socket.write(`${plain(key)}\r\n`);
    await waitingForLocks(transaction);
    for (const { socket } of hasty) socket.resetAndDestroy();
    await expect.poll(() => server.submission!.held()).toBe(0);
  });
  await expect.poll(() => server.submission!.held()).toBe(0);
  const clients: Client[] = [];
  for (let index = 0; index < 20; index += 1) {
    const client = await dial('127.0.0.31');
    expect(await client.ask(plain(key))).toMatch(/^235/);
    clients.push(client);
  }
  for (const { socket } of clients) socket.destroy();
});

test('a client that falls silent in the middle of a message is sent away, and holds nothing any more', async () => {
  const client = await begin();
  client.socket.write('Subject: ');
  await expect.poll(() => server.held().routesArriving).toBe(1);
  clock.advance(11_000);
  expect(await client.reply()).toMatch(/^421 4\.4\.2/);
  expect(server.held().routesArriving).toBe(0);
  client.socket.destroy();
});

test('a message that is larger than allowed is refused by its size, or when it has come', async () => {
  const client = await dial();
  await client.ask(plain(server.key));
  expect(await client.ask('MAIL FROM:<a@b.test> SIZE=40000000')).toMatch(/^552 5\.3\.4/);
  client.socket.destroy();
  const other = await begin();
  const line = `${'x'.repeat(998)}\r\n`.repeat(1_000);
  for (let sent = 0; sent < 32; sent += 1) other.socket.write(line, 'latin1');
  other.socket.write('.\r\n');
  expect(await other.reply()).toMatch(/^552 5\.3\.4 The request body must be at most 31457280 bytes/);
  expect(server.held().routesBytes).toBe(0);
  other.socket.destroy();
}, 60_000);
