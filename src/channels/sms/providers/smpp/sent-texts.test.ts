import { describe, expect, it } from 'vitest';
import { canonicalIdentifier, SentTexts } from './sent-texts.ts';

const to = '+491510000001';
const reference = { organizationId: 'org', messageId: 'message', ordinal: 0 };

function add(sent: SentTexts, providerMessageId: string, number = to): void {
  sent.add({
    providerMessageId: canonicalIdentifier(providerMessageId),
    reference,
    to: number,
    senderName: 'Postillion',
  });
}

describe('SentTexts', () => {
  it.each([
    ['a1b2', '41394'],
    ['A1B2', '41394'],
    ['0000A1B2', '41394'],
    ['00000000a1b2', '41394'],
    ['41394', 'a1b2'],
    ['41394', '0000A1B2'],
    ['0000041394', 'A1B2'],
    ['0000041394', '41394'],
    ['41394', '0000041394'],
    ['a1b2', 'A1B2'],
    ['A1B2', '0000a1b2'],
    ['0000A1b2', 'a1B2'],
    ['41394', '0000A1B2'],
    ['0', '0000'],
    ['0198C0DE-0000-7000-8000-00000000000A', '0198c0de-0000-7000-8000-00000000000a'],
    ['00Msg-7x', 'mSG-7X'],
  ])('finds %s by %s', (providerMessageId, identifier) => {
    const sent = new SentTexts();
    add(sent, providerMessageId);
    expect(sent.find(identifier, to)).toEqual({
      providerMessageId: canonicalIdentifier(providerMessageId),
      text: expect.objectContaining({ reference }) as unknown,
    });
  });

  it.each([
    ['A1B2', '0000a1b2'],
    ['0000041394', '41394'],
    ['0198C0DE-0000-7000-8000-00000000000A', '0198c0de-0000-7000-8000-00000000000a'],
  ])('knows %s and %s under one identifier, whatever else it knows', (answered, reported) => {
    expect(new SentTexts().find(reported, to).providerMessageId).toBe(canonicalIdentifier(answered));
  });

  it('keeps apart identifiers that are no numbers and differ in capitals alone', () => {
    const sent = new SentTexts();
    add(sent, 'xAb');
    add(sent, 'XaB');
    expect([sent.find('xAb', to), sent.find('XaB', to)].map((found) => found.providerMessageId)).toEqual([
      'xAb',
      'XaB',
    ]);
    expect(sent.find('xab', '+491510000009')).toEqual({ providerMessageId: 'xab', text: null });
  });

  it('does not take the text of another number for one with the same digits', () => {
    const sent = new SentTexts();
    add(sent, '10', '+491510000002');
    expect(sent.find('16', to)).toEqual({ providerMessageId: '16', text: null });
    add(sent, '16');
    expect(sent.find('10', to)).toMatchObject({ providerMessageId: '16' });
  });

  it('finds a text by its own identifier when the number is written in a way of its own', () => {
    const sent = new SentTexts();
    add(sent, 'M1');
    expect(sent.find('M1', '0151000001').text).not.toBeNull();
  });

  it('learns how identifiers are written, for texts that it does not know', () => {
    const sent = new SentTexts();
    expect(sent.find('4660', to).providerMessageId).toBe('4660');
    add(sent, '0000A1B2');
    sent.find('41394', to);
    expect(sent.find('4660', to)).toEqual({ providerMessageId: '1234', text: null });
  });

  it('takes identifiers as they are given again as soon as one is known as it is given', () => {
    const sent = new SentTexts();
    add(sent, '0000A1B2');
    sent.find('41394', to);
    sent.find('0000A1B2', to);
    expect(sent.find('4660', to).providerMessageId).toBe('4660');
  });

  it.each(['', 'x', '9'.repeat(400), 'f'.repeat(400), '٣'])('survives %s', (identifier) => {
    expect(new SentTexts().find(identifier, to).providerMessageId).toBe(identifier);
  });

  it('forgets the oldest, and only those', () => {
    const sent = new SentTexts();
    for (let number = 0; number <= 20_000; number += 1) add(sent, `M${number}`);
    expect(sent.find('M0', to).text).toBeNull();
    expect(sent.find('M1', to).text).not.toBeNull();
    // An identifier that is given once more is the newest.
    add(sent, 'M1');
    add(sent, 'M0');
    expect(sent.find('M2', to).text).toBeNull();
    expect(sent.find('M1', to).text).not.toBeNull();
  });

  it('keeps what differs in capitals alone from the oldest, which it forgets', () => {
    const sent = new SentTexts();
    for (const identifier of ['xAb', 'XaB', 'yAb']) add(sent, identifier);
    for (let number = 0; number < 20_000; number += 1) add(sent, `M${number}`);
    expect(sent.find('xab', to)).toEqual({ providerMessageId: 'xab', text: null });
    const later = new SentTexts();
    for (const identifier of ['xAb', 'XaB']) add(later, identifier);
    for (let number = 0; number < 19_999; number += 1) add(later, `M${number}`);
    expect(later.find('xab', to).providerMessageId).toBe('XaB');
  });

  it('lets a receipt wait for the answers of its number that are due, and for no others', async () => {
    const sent = new SentTexts();
    const endFirst = sent.begin(to);
    const endOther = sent.begin('+491510000002');
    let isAnswered = false;
    const answered = sent.whenAnswered(to)!.then(() => (isAnswered = true));
    const endLater = sent.begin(to);
    expect(sent.whenAnswered('+491510000003')).toBeNull();
    await Promise.resolve();
    expect(isAnswered).toBe(false);
    endFirst();
    expect(await answered).toBe(true);
    expect(sent.whenAnswered(to)).not.toBeNull();
    endLater();
    expect(sent.whenAnswered(to)).toBeNull();
    endOther();
  });
});
