/** Names that look harmless to a check, and are programs once a mail client has read, shown and saved them. */
import fc from 'fast-check';
import PostalMime from 'postal-mime';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { compileEmail, fillEmail, isRefusedAttachment, listChunks } from '../../src/channels/email/email.ts';
import { anEmail, countOf, type ErrorBody, post } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

const content = Buffer.from('MZ').toString('base64');

test.each([
  'invoice.exe\u2028',
  'invoice.exe\u2029',
  'invoice.exe\u1680.',
  'invoice.exe\uf029',
  'invoice.ex\u0301e',
  'invoice%2eexe',
  'invoice.one',
  'macros.docm',
])('%j is refused, and nothing is stored', async (filename) => {
  const response = await post<ErrorBody>(server, anEmail({ attachments: [{ filename, content }] }));
  expect(response.body).toEqual({
    status_code: 400,
    name: 'attachment_rejected',
    message: `The attachment ${JSON.stringify(filename)} is of a type that is not accepted; nothing was sent.`,
  });
  expect(await countOf(server, 'messages')).toBe(0);
});

test('a name of which no character would be written is refused', async () => {
  const attachments = [{ filename: '\u202e\u2028', content }];
  const response = await post<ErrorBody>(server, anEmail({ attachments }));
  expect([response.status, response.body.message]).toEqual([
    422,
    'attachments[0].filename must be a file name without control characters',
  ]);
});

/** The name under which a mail client on Windows saves: without invisible characters, trailing dots and spaces. */
function saveAs(filename: string): string {
  return filename
    .replace(/[\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}]/gu, '')
    .replace(/[\s.]+$/u, '')
    .toLowerCase();
}

test('no accepted name is a program when a mail client saves it, whatever is strewn over it', async () => {
  const noise = fc.string({
    unit: fc.oneof(
      fc.constantFrom(
        '\u2028',
        '\u2029',
        '\u202e',
        '\u2066',
        '\u1680',
        '\u00a0',
        '\u180e',
        '\ufeff',
        '.',
        ' ',
      ),
      fc
        .string({ unit: 'binary', minLength: 1, maxLength: 1 })
        .filter((unit) => !/[\p{Cc}\p{Cs}]/u.test(unit)),
    ),
    maxLength: 3,
  });
  await fc.assert(
    fc.asyncProperty(fc.array(noise, { minLength: 6, maxLength: 6 }), async (noises) => {
      const filename = ['bill', '.', 'e', 'x', 'e', ''].map((part, at) => `${part}${noises[at]!}`).join('');
      if (isRefusedAttachment(filename, 'application/pdf')) return;
      const saved = saveAs(await writeAndRead(filename));
      expect(saved.endsWith('.exe'), JSON.stringify(filename)).toBe(false);
    }),
    { numRuns: 2_000 },
  );
});

/** The name as it arrives in a message. */
async function writeAndRead(filename: string): Promise<string> {
  const compiled = compileEmail(
    {
      messageId: 'a@example.com',
      from: { address: 'a@example.com', name: null },
      replyTo: null,
      to: ['b@example.com'],
      cc: [],
      subject: null,
      html: null,
      text: 'x',
      attachments: [{ filename, contentType: 'application/pdf', contentId: null, content: Buffer.from('x') }],
      headers: [],
    },
    { personalised: false, isSigned: false },
  );
  const filled = fillEmail(compiled, { date: new Date(0), values: {}, personal: null });
  if (typeof filled === 'string') throw new Error(filled);
  const parsed = await PostalMime.parse(Buffer.concat(listChunks(filled)));
  return parsed.attachments[0]?.filename ?? '';
}
