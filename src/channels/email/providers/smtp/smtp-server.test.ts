import fc from 'fast-check';
import { SMTPServer } from 'smtp-server';
import type { SMTPServerOptions } from 'smtp-server';
import { afterEach, expect, test } from 'vitest';
import {
  certificateForTests,
  privateKeyForTests,
} from '../../../../../test/support/certificate-for-tests.ts';
import { systemClock } from '../../../../platform/clock.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type { EmailProvider } from '../../provider.ts';
import { createSmtpProvider } from './smtp.ts';

/** Against a server that others wrote, so that our idea of SMTP is not only our own. */

type Received = {
  envelopeFrom: string;
  recipient: string;
  content: Buffer;
  isSecure: boolean;
  user: unknown;
};

const open: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

async function arrange(
  options: SMTPServerOptions & { userinfo?: string; parameters?: string } = {},
): Promise<{ provider: EmailProvider; received: Received[] }> {
  const received: Received[] = [];
  const server = new SMTPServer({
    cert: certificateForTests,
    key: privateKeyForTests,
    authOptional: true,
    disableReverseLookup: true,
    logger: false,
    onAuth: ({ username, password }, _session, callback) => {
      if (username === 'post' && password === 'geheim') callback(null, { user: username });
      else callback(new Error('wrong'));
    },
    onData: (stream, session, callback) => {
      const chunks: Buffer[] = [];
      stream.on('data', (chunk: Buffer) => chunks.push(chunk));
      stream.on('end', () => {
        const { mailFrom, rcptTo } = session.envelope;
        received.push({
          envelopeFrom: mailFrom === false ? '' : mailFrom.address,
          recipient: rcptTo[0]!.address,
          content: Buffer.concat(chunks),
          isSecure: session.secure,
          user: session.user,
        });
        callback(null, `queued as N${received.length}`);
      });
    },
    ...options,
  });
  const port = await new Promise<number>((resolve) => {
    const listener = server.listen(0, '127.0.0.1', () => {
      resolve((listener.address() as { port: number }).port);
    });
  });
  open.push(() => new Promise<void>((resolve) => server.close(resolve)));
  const provider = createSmtpProvider({
    url: `smtp://${options.userinfo ?? ''}127.0.0.1:${port}?connections=2&${options.parameters ?? 'tls=off'}`,
    clock: systemClock,
    heloName: 'client.test',
    authorities: certificateForTests,
  });
  open.push(() => provider.close());
  return { provider, received };
}

function send(provider: EmailProvider, content: readonly Uint8Array[]): Promise<SendOutcome> {
  return provider.handOff({
    reference: { organizationId: 'org', messageId: 'message', ordinal: 0 },
    envelopeFrom: 'bounces@send.example.test',
    recipient: 'someone@example.test',
    content,
    confirm: async () => undefined,
    signal: new AbortController().signal,
  });
}

const message = Buffer.from('Subject: hello\r\n\r\n.dot\r\n');

test('plain', async () => {
  const { provider, received } = await arrange();
  expect(await send(provider, [message])).toMatchObject({ kind: 'accepted', providerMessageId: 'N1' });
  expect(received).toMatchObject([
    {
      envelopeFrom: 'bounces@send.example.test',
      recipient: 'someone@example.test',
      content: message,
      isSecure: false,
    },
  ]);
});

test('STARTTLS, with the certificate checked', async () => {
  const { provider, received } = await arrange({ parameters: 'tls=required' });
  expect((await send(provider, [message])).kind).toBe('accepted');
  expect(received).toMatchObject([{ content: message, isSecure: true }]);
});

test.each(['PLAIN', 'LOGIN'])('AUTH %s over STARTTLS', async (method) => {
  const { provider, received } = await arrange({
    userinfo: 'post:geheim@',
    parameters: 'tls=required',
    authMethods: [method],
  });
  expect((await send(provider, [message])).kind).toBe('accepted');
  expect(received).toMatchObject([{ user: 'post', isSecure: true }]);
});

test.each(['PLAIN', 'LOGIN'])('a wrong password by AUTH %s', async (method) => {
  const { provider, received } = await arrange({
    userinfo: 'post:falsch@',
    parameters: 'tls=required',
    authMethods: [method],
  });
  expect(await send(provider, [message])).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(received).toEqual([]);
});

test.each(['tls=off', 'tls=required'])('30 MB with %s', async (parameters) => {
  const { provider, received } = await arrange({ parameters });
  const chunk = Buffer.alloc(1_000_000 * 3, `.${'x'.repeat(97)}\r\n`);
  const content = Array.from({ length: 10 }, () => chunk);
  expect((await send(provider, content)).kind).toBe('accepted');
  expect(received[0]!.content.equals(Buffer.concat(content))).toBe(true);
});

test('any lines arrive as they were, however they were cut, and each message as one', async () => {
  const { provider, received } = await arrange();
  const line = fc
    .array(fc.constantFrom('.', '..', 'a', ' ', '=', 'QUIT', 'x'.repeat(200)), { maxLength: 4 })
    .map((parts) => `${parts.join('')}\r\n`);
  const cutMessage = fc
    .tuple(fc.array(line, { minLength: 1, maxLength: 20 }), fc.array(fc.nat(2_000), { maxLength: 10 }))
    .map(([lines, cuts]) => cut(Buffer.from(lines.join('')), cuts));
  await fc.assert(
    fc.asyncProperty(fc.array(cutMessage, { minLength: 1, maxLength: 5 }), async (messages) => {
      received.length = 0;
      await Promise.all(messages.map((content) => send(provider, content)));
      const sorted = (contents: Buffer[]) => contents.map((content) => content.toString('latin1')).sort();
      expect(sorted(received.map(({ content }) => content))).toEqual(
        sorted(messages.map((c) => Buffer.concat(c))),
      );
    }),
    { numRuns: 100 },
  );
});

function cut(content: Buffer, cuts: number[]): Buffer[] {
  const ends = [...cuts.map((at) => at % (content.length + 1)), content.length].sort((a, b) => a - b);
  return ends.map((end, at) => content.subarray(at === 0 ? 0 : ends[at - 1], end));
}
