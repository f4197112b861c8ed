import { describe, expect, it } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { InboundSms } from '../../provider.ts';
import { InboundTexts, isText } from './inbound.ts';
import type { ShortMessage } from './pdu.ts';

function arrange(country: string | null = null) {
  const taken: InboundSms[] = [];
  const clock = createManualClock();
  let failure: Error | null = null;
  const texts = new InboundTexts(clock, country, async (inbound) => {
    if (failure !== null) throw failure;
    taken.push(inbound);
  });
  return {
    taken,
    clock,
    texts,
    failWith: (error: Error | null) => {
      failure = error;
    },
  };
}

function message(octets: Buffer, more: Partial<ShortMessage> = {}): ShortMessage {
  return {
    source: { ton: 1, npi: 1, address: '491510000001' },
    destination: { ton: 3, npi: 0, address: '12345' },
    esmClass: 0,
    validityPeriod: '',
    registeredDelivery: 0,
    dataCoding: 0,
    octets,
    receiptedMessageId: null,
    messageState: null,
    messagePayload: null,
    ...more,
  };
}

function part(header: readonly number[], text: string | Buffer, more: Partial<ShortMessage> = {}) {
  return message(Buffer.concat([Buffer.from([header.length, ...header]), Buffer.from(text)]), {
    esmClass: 0x40,
    ...more,
  });
}

describe('InboundTexts', () => {
  it.each([
    ['GSM', 0x00, '48006913751b65', 'H@i\u0393u€'],
    ['Latin-1 where GSM was promised', 0x00, '5ae9', 'Zé'],
    ['Latin-1', 0x03, 'fc', 'ü'],
    ['Cyrillic', 0x06, 'bfe0d8', 'При'],
    ['UCS-2', 0x08, '041fd83ddc4b', 'П👋'],
    ['UCS-2 of class 1', 0x19, '041f', 'П'],
    ['GSM of class 1', 0xf1, '00', '@'],
    ['half a pair, and an octet too many', 0x08, '0041d83d00', 'A\ufffd'],
    ['control characters', 0x03, '41000742090d0a430d44', 'AB\t\nC\nD'],
  ])('reads %s', async (_name, dataCoding, hex, text) => {
    const { taken, texts } = arrange();
    await texts.add(message(Buffer.from(hex, 'hex'), { dataCoding }));
    expect(taken).toEqual([{ providerMessageId: null, from: '+491510000001', senderName: '12345', text }]);
  });

  it('reads a text from the field for long ones, and no more of it than a text can have', async () => {
    const { taken, texts } = arrange();
    await texts.add(message(Buffer.alloc(0), { messagePayload: Buffer.alloc(60_000, 'x'), dataCoding: 3 }));
    expect(taken[0]!.text).toBe('x'.repeat(4_000));
  });

  it.each([
    [1, '491510000001', '+491510000001'],
    [0, '491510000001', '+491510000001'],
    [0, '+4915100', '+4915100'],
    [2, '00491510000001', '+491510000001'],
    [2, '1510000001', '1510000001'],
    [0, '015100000010', '015100000010'],
    [0, '12345', '12345'],
    [5, 'Some\u0007body', 'Some body'],
    [1, '12345', '12345'],
  ])('knows a number of type %i, %s, as %s', async (ton, address, from) => {
    const { taken, texts } = arrange();
    await texts.add(message(Buffer.from('x'), { source: { ton, npi: 1, address } }));
    expect(taken[0]!.from).toBe(from);
  });

  it.each([
    ['49', 2, '1510000001', '+491510000001'],
    ['49', 2, '015100000010', '+4915100000010'],
    ['49', 0, '015100000010', '+4915100000010'],
    ['49', 0, '1510000001', '+491510000001'],
    ['49', 0, '491510000001', '+491510000001'],
    ['49', 0, '00331510000001', '+331510000001'],
    ['49', 1, '33151000000', '+33151000000'],
    ['49', 2, '0033151000000', '+33151000000'],
    ['49', 2, '12345', '12345'],
    ['49', 0, '123456', '123456'],
    ['49', 0, '0', '0'],
    ['49', 2, '0'.repeat(9), '0'.repeat(9)],
    ['49', 3, '1510000001', '1510000001'],
    ['49', 5, 'Somebody', 'Somebody'],
    ['45', 0, '12345678', '+4512345678'],
    ['39', 2, '0612345678', '+390612345678'],
    ['39', 0, '0612345678', '+390612345678'],
    ['39', 0, '3931234567', '+393931234567'],
    ['225', 0, '0712345678', '+2250712345678'],
    ['7', 2, '89161234567', '+79161234567'],
    ['7', 0, '89161234567', '+79161234567'],
    ['7', 0, '9161234567', '+79161234567'],
    ['7', 2, '8121234567', '+78121234567'],
    ['7', 0, '79161234567', '+79161234567'],
    ['36', 2, '06301234567', '+36301234567'],
    ['36', 0, '301234567', '+36301234567'],
    ['375', 0, '80291234567', '+375291234567'],
    ['993', 2, '865123456', '+99365123456'],
    ['993', 2, '65123456', '+99365123456'],
    ['1', 0, '4155550123', '+14155550123'],
    ['1', 2, '4155550123', '+14155550123'],
    ['1', 2, '14155550123', '+14155550123'],
    ['1', 0, '14155550123', '+14155550123'],
    ['1', 2, '5550123', '5550123'],
    ['1', 2, '0415555012', '0415555012'],
    ['1', 0, '491510000001', '+491510000001'],
    ['1', 2, '123456', '123456'],
  ])('knows a number in country %s, of type %i, %s, as %s', async (country, ton, address, number) => {
    const { taken, texts } = arrange(country);
    const from = { ton, npi: 1, address };
    await texts.add(message(Buffer.from('x'), { source: from, destination: from }));
    expect(taken).toMatchObject([{ from: number, senderName: number.replace('+', '') }]);
  });

  it.each([
    ['61', 0, '19123456', '6119123456', '19123456'],
    ['1', 2, '8005550123', '18005550123', '8005550123'],
    ['49', 2, '08001234', '498001234', '08001234'],
    ['49', 0, '72345', '72345', undefined],
    [null, 0, '19123456', '19123456', undefined],
  ])(
    'in country %s, says how a sender of type %i was written: %s',
    async (country, ton, address, name, written) => {
      const { taken, texts } = arrange(country);
      await texts.add(message(Buffer.from('STOP'), { destination: { ton, npi: 1, address } }));
      expect(taken.map((text) => [text.senderName, text.senderNameAsWritten])).toEqual([[name, written]]);
    },
  );

  it('puts parts together in whatever order they come, by references of one octet or two', async () => {
    for (const header of [
      (number: number) => [0, 3, 7, 3, number],
      (number: number) => [5, 1, 0, 8, 4, 1, 7, 3, number],
    ]) {
      const { taken, texts } = arrange();
      await Promise.all([
        texts.add(part(header(3), 'c')),
        texts.add(part(header(1), Buffer.from([0x61, 0x1b]))),
        texts.add(part(header(2), 'eb')),
      ]);
      expect(taken.map(({ text }) => text)).toEqual(['a€bc']);
    }
  });

  it('keeps texts of different people, or with different references, apart', async () => {
    const { taken, texts, clock } = arrange();
    const source = { ton: 1, npi: 1, address: '491510000002' };
    const added = Promise.all([
      texts.add(part([0, 3, 7, 2, 1], 'a1')),
      texts.add(part([0, 3, 7, 2, 2], 'b2', { source })),
      texts.add(part([0, 3, 8, 2, 2], 'c2')),
    ]);
    expect(taken).toEqual([]);
    clock.advance(5_000);
    await added;
    expect(taken.map(({ text }) => text).sort()).toEqual(['a1', 'b2', 'c2']);
  });

  it('lets none of the parts be forgotten when the whole cannot be stored', async () => {
    const { texts, failWith } = arrange();
    failWith(new Error('no database'));
    const results = await Promise.allSettled([
      texts.add(part([0, 3, 7, 2, 1], 'a')),
      texts.add(part([0, 3, 7, 2, 2], 'b')),
    ]);
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  });

  it('takes a part that is delivered again for the same, and answers both', async () => {
    const { taken, texts } = arrange();
    await Promise.all([
      texts.add(part([0, 3, 7, 2, 1], 'a')),
      texts.add(part([0, 3, 7, 2, 1], 'a')),
      texts.add(part([0, 3, 7, 2, 2], 'b')),
    ]);
    expect(taken.map(({ text }) => text)).toEqual(['ab']);
  });

  it('holds no more than it has room for', async () => {
    const { taken, texts } = arrange();
    const held = Array.from({ length: 500 }, (_, at) =>
      texts.add(part([8, 4, at >> 8, at & 0xff, 2, 1], 'x')),
    );
    await texts.add(part([8, 4, 9, 9, 2, 1], 'alone'));
    expect(taken.map(({ text }) => text)).toEqual(['alone']);
    texts.flush();
    await Promise.all(held);
    expect(taken).toHaveLength(501);
    const again = Promise.all([texts.add(part([0, 3, 7, 2, 1], 'a')), texts.add(part([0, 3, 7, 2, 2], 'b'))]);
    await again;
    expect(taken.at(-1)).toMatchObject({ text: 'ab' });
  });

  it.each([
    ['a header longer than the message', Buffer.from([200, 1, 2])],
    ['a part beyond the last', Buffer.from([5, 0, 3, 7, 2, 3, 0x78])],
    ['a part before the first', Buffer.from([5, 0, 3, 7, 2, 0, 0x78])],
    ['an element that is cut off', Buffer.from([2, 0, 3, 0x78])],
    ['nothing', Buffer.alloc(0)],
  ])('gives at once what has %s', async (_name, octets) => {
    const { taken, texts } = arrange();
    await texts.add(message(octets, { esmClass: 0x40 }));
    expect(taken).toHaveLength(1);
  });
});

describe('isText', () => {
  it.each([
    [0x00, true],
    [0x02, false],
    [0x04, false],
    [0x08, true],
    [0xf1, true],
    [0xf5, false],
  ])('knows data coding %i', (dataCoding, expected) => {
    expect(isText(message(Buffer.alloc(1), { dataCoding }))).toBe(expected);
  });
});
