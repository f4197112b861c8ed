import { encode } from 'dns-packet';
import type { Answer } from 'dns-packet';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { aliasesMax, decodeReply, encodeQuery, isReplyTo, rcodeOf, recordsMax } from './wire.ts';

const query = encodeQuery(4_711, { name: 'a.test', type: 'MX' }, true);

function addressRecord(name: string, ttl = 60): Answer {
  return { type: 'A', name, ttl, data: '192.0.2.1' };
}

function replyWith(answers: Answer[], authorities: Answer[] = []): Buffer {
  return encode({
    type: 'response',
    id: 4_711,
    questions: [{ name: 'a.test', type: 'MX' }],
    answers,
    authorities,
  });
}

describe('a reply', () => {
  it('answers the query with its id and question, whatever the case of the name', () => {
    const reply = replyWith([]);
    expect(isReplyTo(query, reply)).toBe(true);
    const upperCase = Buffer.from(reply);
    upperCase.write('A', 13, 'latin1');
    expect(isReplyTo(query, upperCase)).toBe(true);
  });

  it.each<[string, (reply: Buffer) => Buffer]>([
    ['another id', (reply) => change(reply, 1)],
    ['a query', (reply) => withFlags(reply, 0x0000)],
    ['another operation', (reply) => withFlags(reply, 0xa800)],
    ['another name', (reply) => change(reply, 13)],
    ['another type', (reply) => change(reply, 21)],
    ['another class', (reply) => change(reply, 23)],
    ['two questions', (reply) => change(reply, 5, 2)],
    ['no question', (reply) => change(reply, 5, 0)],
    ['half a header', (reply) => reply.subarray(0, 11)],
    ['half a question', (reply) => reply.subarray(0, 20)],
    ['nothing', () => Buffer.alloc(0)],
  ])('with %s is none', (_what, spoil) => {
    expect(isReplyTo(query, spoil(replyWith([])))).toBe(false);
  });

  it('may leave the question away where it only says that something failed', () => {
    const header = Buffer.alloc(12);
    header.writeUInt16BE(4_711, 0);
    header.writeUInt16BE(0x8001, 2);
    expect(isReplyTo(query, header)).toBe(true);
    header.writeUInt16BE(0x8003, 2);
    expect(isReplyTo(query, header)).toBe(false);
  });

  it('is read no further than the records that anyone is given', () => {
    const reply = decodeReply(replyWith(Array.from({ length: 3_000 }, () => addressRecord('a.test'))));
    expect(reply?.records.length).toBe(recordsMax + aliasesMax);
  });

  it('with a time to live beyond 31 bits is not to be kept', () => {
    const reply = decodeReply(replyWith([addressRecord('a.test', 0x80000000), addressRecord('a.test', 9)]));
    expect(reply?.records.map(({ ttlSeconds }) => ttlSeconds)).toEqual([0, 9]);
  });

  it('with records of another class has none', () => {
    const reply = decodeReply(replyWith([{ ...addressRecord('a.test'), class: 'CH' } as Answer]));
    expect(reply?.records).toEqual([]);
  });

  it('is read though something unreadable stands where it does not matter', () => {
    const reply = Buffer.concat([replyWith([addressRecord('a.test')]), Buffer.alloc(20, 0xff)]);
    reply.writeUInt16BE(1, 10);
    expect(decodeReply(reply)?.records.length).toBe(1);
  });

  it('with an endless chain of compression pointers is no message', () => {
    const reply = Buffer.concat([replyWith([]), Buffer.from('c018c01800010001000000000004c0000201', 'hex')]);
    reply.writeUInt16BE(1, 6);
    expect(decodeReply(reply)).toBeNull();
  });

  it('with counts that its octets cannot hold is no message', () => {
    const reply = replyWith([]);
    reply.fill(0xff, 6, 12);
    expect(decodeReply(reply)).toBeNull();
  });

  it('of any octets whatever is read or refused, and nothing is thrown', () => {
    const sound = replyWith(
      [
        { type: 'MX', name: 'a.test', ttl: 60, data: { preference: 10, exchange: 'mx.a.test' } },
        { type: 'TXT', name: 'a.test', ttl: 60, data: ['one', 'two'] },
        { type: 'CNAME', name: 'a.test', ttl: 60, data: 'b.test' },
        { type: 'AAAA', name: 'a.test', ttl: 60, data: '2001:db8::1' },
      ],
      [{ type: 'SOA', name: 'test', ttl: 60, data: { mname: 'ns.test', rname: 'root.test', minimum: 5 } }],
    );
    const spoiled = fc
      .tuple(
        fc.integer({ min: 12, max: sound.length }),
        fc.array(fc.tuple(fc.nat(sound.length - 1), fc.nat(255)), { maxLength: 8 }),
      )
      .map(([bytes, changes]) => {
        const message = Buffer.from(sound);
        for (const [at, octet] of changes) message[at] = octet;
        return message.subarray(0, bytes);
      });
    const random = fc.uint8Array({ minLength: 12, maxLength: 200 }).map((octets) => Buffer.from(octets));
    fc.assert(
      fc.property(fc.oneof(spoiled, random), (message) => {
        const rcode = rcodeOf(message);
        const reply = decodeReply(message);
        if (reply !== null) expect(reply.isNameUnknown).toBe(rcode === 3);
        isReplyTo(query, message);
      }),
      { numRuns: 1_000 },
    );
  });
});

function change(message: Buffer, at: number, octet = message[at]! ^ 0x02): Buffer {
  message[at] = octet;
  return message;
}

function withFlags(message: Buffer, flags: number): Buffer {
  message.writeUInt16BE(flags, 2);
  return message;
}
