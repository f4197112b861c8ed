import fc from 'fast-check';
import { expect, test } from 'vitest';
import { SmtpReplyReader } from './reply-reader.ts';
import type { SmtpReply } from './reply-reader.ts';

function readAll(pieces: Buffer[]): { replies: SmtpReply[]; fault: string | null } {
  const reader = new SmtpReplyReader();
  const replies: SmtpReply[] = [];
  for (const piece of pieces) {
    const fault = reader.read(piece, (reply) => {
      replies.push(reply);
    });
    if (fault !== null) return { replies, fault };
  }
  return { replies, fault: null };
}

test('replies are the same however the stream is cut', () => {
  const stream = Buffer.from('250 2.1.0 Ok\r\n250-one\r\n250-two\r\n250 three\r\n354\r\n550 5.1.1 Grüße\n');
  fc.assert(
    fc.property(fc.array(fc.nat(stream.length)), (cuts) => {
      const ends = [...cuts, stream.length].sort((a, b) => a - b);
      const pieces = ends.map((end, at) => stream.subarray(at === 0 ? 0 : ends[at - 1], end));
      expect(readAll(pieces)).toEqual({
        replies: [
          { code: 250, text: '2.1.0 Ok' },
          { code: 250, text: 'one\ntwo\nthree' },
          { code: 354, text: '' },
          { code: 550, text: '5.1.1 Grüße' },
        ],
        fault: null,
      });
    }),
  );
});

test.each([
  ['HTTP/1.1 400 Bad Request\r\n', 'the reply is not SMTP'],
  ['25 ok\r\n', 'the reply is not SMTP'],
  ['2500 ok\r\n', 'the reply is not SMTP'],
  ['150 ok\r\n', 'the reply is not SMTP'],
  ['650 ok\r\n', 'the reply is not SMTP'],
  ['\r\n', 'the reply is not SMTP'],
  ['250-a\r\n550 b\r\n', 'the reply changes its code between lines'],
  [`250 ${'a'.repeat(9_000)}\r\n`, 'the reply is too long'],
  [`250 ${'a'.repeat(9_000)}`, 'the reply is too long'],
  ['250-a\r\n'.repeat(101), 'the reply is too long'],
  [`250-${'a'.repeat(500)}\r\n`.repeat(20), 'the reply is too long'],
])('%j is refused', (stream, fault) => {
  expect(readAll([Buffer.from(stream)]).fault).toBe(fault);
});

test('a limit holds for each reply and not for all of them together', () => {
  const { replies, fault } = readAll([Buffer.from(`250 ${'a'.repeat(8_000)}\r\n`.repeat(10))]);
  expect([replies.length, fault]).toEqual([10, null]);
});

test('half a reply is known to be there', () => {
  const reader = new SmtpReplyReader();
  expect(reader.isAtReplyStart()).toBe(true);
  reader.read(Buffer.from('250-a\r\n'), () => undefined);
  expect(reader.isAtReplyStart()).toBe(false);
  reader.read(Buffer.from('250 b\r\n'), () => undefined);
  expect(reader.isAtReplyStart()).toBe(true);
});
