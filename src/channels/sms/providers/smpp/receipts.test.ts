import { describe, expect, it } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { ShortMessage } from './pdu.ts';
import { isAcknowledgement, isReceipt, readReceipt } from './receipts.ts';
import { SentTexts } from './sent-texts.ts';

function receipt(text: string, more: Partial<ShortMessage> = {}): ShortMessage {
  return {
    source: { ton: 1, npi: 1, address: '491510000001' },
    destination: { ton: 5, npi: 0, address: 'Postillion' },
    esmClass: 0x04,
    validityPeriod: '',
    registeredDelivery: 0,
    dataCoding: 0,
    octets: Buffer.from(text, 'latin1'),
    receiptedMessageId: null,
    messageState: null,
    messagePayload: null,
    ...more,
  };
}

function read(message: ShortMessage) {
  return readReceipt({ clock: createManualClock(), sent: new SentTexts(), country: null }, message);
}

describe('readReceipt', () => {
  it.each([
    ['SCHEDULED', 'sent', null],
    ['ENROUTE', 'sent', null],
    ['BUFFERED', 'sent', null],
    ['ACCEPTD', 'sent', null],
    ['ACCEPTED', 'sent', null],
    ['DELIVRD', 'delivered', null],
    ['delivered', 'delivered', null],
    ['EXPIRED', 'expired', 'expired'],
    ['DELETED', 'failed', 'other'],
    ['UNDELIV', 'undelivered', 'other'],
    ['UNDELIVERABLE', 'undelivered', 'other'],
    ['UNKNOWN', 'undelivered', 'other'],
    ['REJECTD', 'failed', 'other'],
    ['REJECTED', 'failed', 'other'],
    ['FAILED', 'undelivered', 'other'],
  ])('reads the word %s as %s', async (word, status, failure) => {
    expect(await read(receipt(`id:7 stat:${word} err:000`))).toMatchObject({ status, failure });
  });

  it.each([
    [0, 'sent'],
    [1, 'sent'],
    [2, 'delivered'],
    [3, 'expired'],
    [4, 'failed'],
    [5, 'undelivered'],
    [6, 'sent'],
    [7, 'undelivered'],
    [8, 'failed'],
  ])('reads the state %i as %s, without any words', async (messageState, status) => {
    const message = receipt('', { messageState, receiptedMessageId: '7' });
    expect(await read(message)).toMatchObject({
      providerMessageId: '7',
      status,
      diagnostic: `message_state ${messageState}`,
    });
  });

  it.each([
    ['UCS-2', (text: string) => Buffer.from(text, 'utf16le').swap16()],
    ['UCS-2 with a byte order mark', (text: string) => Buffer.from(`\ufeff${text}`, 'utf16le').swap16()],
    ['UCS-2 with its octets the other way round', (text: string) => Buffer.from(text, 'utf16le')],
    ['ASCII all the same', (text: string) => Buffer.from(text, 'latin1')],
  ])('reads words that are said to be UCS-2 and are %s', async (_name, encode) => {
    const words = 'id:0A1b sub:001 dlvrd:001 stat:UNDELIV err:011 text:Łódź stat:DELIVRD';
    expect(await read(receipt('', { dataCoding: 8, octets: encode(words) }))).toMatchObject({
      providerMessageId: 'a1b',
      status: 'undelivered',
      diagnostic: 'stat:UNDELIV err:011',
    });
  });

  it('trusts the parameters rather than the words', async () => {
    const message = receipt('id:8 stat:UNDELIV err:001', { messageState: 2, receiptedMessageId: '7' });
    expect(await read(message)).toMatchObject({ providerMessageId: '7', status: 'delivered' });
  });

  it.each([
    'id:7 sub:001 dlvrd:001 submit date:2611220101 done date:2611220102 stat:DELIVRD err:000 Text:id:8 stat:EXPIRED',
    'ID:7 STAT:DELIVRD ERR:000 TEXT:',
    'id: 7 stat: DELIVRD err: 000',
    'stat:DELIVRD err:000 id:7',
  ])('reads %s', async (text) => {
    expect(await read(receipt(text))).toMatchObject({
      providerMessageId: '7',
      status: 'delivered',
      diagnostic: 'stat:DELIVRD err:000',
    });
  });

  it.each(['', 'hello', 'id:7', 'stat:DELIVRD', 'id:7 stat:SOMETHING', 'text:id:7 stat:DELIVRD'])(
    'makes nothing of %j',
    async (text) => {
      expect(await read(receipt(text))).toBeNull();
    },
  );

  it('makes untrusted words fit to be stored', async () => {
    const message = receipt(`id:7 stat:DELIVRD err:\u0001${'x'.repeat(800)}`);
    expect((await read(message))?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
  });
});

describe('what kind of message it is', () => {
  it.each([
    [0x00, false, false],
    [0x04, true, false],
    [0x44, true, false],
    [0x20, true, false],
    [0x08, false, true],
    [0x10, false, true],
    [0x40, false, false],
  ])('is known by esm_class %i', (esmClass, isTold, isAnswer) => {
    expect(isReceipt(receipt('', { esmClass }))).toBe(isTold);
    expect(isAcknowledgement(receipt('', { esmClass }))).toBe(isAnswer);
  });

  it.each([
    ['stat:DELIVRD', '7', null, true],
    ['', '7', 2, true],
    ['Stop', '7', null, false],
    ['Stop', '', null, false],
    ['id:7 stat:DELIVRD', null, null, false],
  ])('is known, without an esm_class, by %j with id %j and state %j', (text, id, messageState, isTold) => {
    const message = receipt(text, { esmClass: 0, receiptedMessageId: id, messageState });
    expect(isReceipt(message)).toBe(isTold);
  });
});
