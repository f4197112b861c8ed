import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { eventTypes, objectOf } from './event-types.ts';
import { fitEvent, inFormat, type ThinEvent, writeEvent } from './formats.ts';
import type { WebhookEvent } from './schema.ts';

const id = '01a1fe91-55e0-7000-8000-000000000038';

const anEvent = (type: WebhookEvent['type'], data: object): WebhookEvent => ({
  id: '01a1fe91-55e0-7000-8000-000000000037',
  type,
  timestamp: '2026-11-21T14:44:00.000Z',
  sequence: 7,
  data,
});

const paths = new Set(
  Object.entries(
    (JSON.parse(readFileSync('openapi.json', 'utf8')) as { paths: Record<string, object> }).paths,
  ).flatMap(([path, methods]) => ('get' in methods ? [path] : [])),
);

/** Of which the API has no record. */
const withoutRecord = new Set(['event', 'organization']);

test('a thin event says where the record is, for every type that has one, and nothing of what is in it', () => {
  for (const type of eventTypes) {
    const object = objectOf(type);
    const full = anEvent(type, {
      object,
      id,
      subject: 'Your parcel',
      ...(object === 'campaign' && { channel: 'sms' }),
    });
    const thin = inFormat('thin', full) as ThinEvent;
    const { url } = thin.related_object;
    const { data: _data, ...rest } = full;
    expect(thin).toEqual({ ...rest, related_object: { object, id, url } });
    if (withoutRecord.has(object)) expect(url).toBeNull();
    else expect(paths).toContain(url?.replace(id, '{id}'));
    expect(inFormat('full', full)).toBe(full);
  }
  const gone = inFormat('thin', anEvent('campaign.sent', { object: 'campaign', id })) as ThinEvent;
  expect(gone.related_object).toEqual({ object: 'campaign', id, url: null });
});

test.each([
  ['ASCII', 'a', 1],
  ['octets and not characters', 'ü', 2],
])('an event of more than 20 kB has the ids alone: %s', (_what, character, bytes) => {
  const data = (length: number) => ({
    object: 'email',
    id,
    campaign_id: id,
    subject: character.repeat(length),
  });
  const rest = Buffer.byteLength(JSON.stringify(anEvent('email.sent', data(0))));
  const most = Math.floor((20_000 - rest) / bytes);
  const fitting = anEvent('email.sent', data(most));
  expect(fitEvent(fitting)).toBe(fitting);
  expect(fitEvent(anEvent('email.sent', data(most + 1)))).toEqual(
    anEvent('email.sent', { object: 'email', id, campaign_id: id, data_truncated: true }),
  );
});

test('of a large event it stays known whom it is about', () => {
  const large = 'x'.repeat(20_000);
  const told = { address: 'ada@example.com', contact_id: id, device_id: null, status: 'bounced' };
  const message = { object: 'email', id, metadata: { order_id: large }, recipient: told };
  const segment = { object: 'segment', id, name: large, contact: { object: 'contact', id, properties: {} } };
  expect(fitEvent(anEvent('email.bounced', message)).data).toEqual({
    ...{ object: 'email', id, recipient: { contact_id: id, device_id: null }, data_truncated: true },
  });
  expect(fitEvent(anEvent('segment.entered', segment)).data).toEqual({
    ...{ object: 'segment', id, contact: { object: 'contact', id }, data_truncated: true },
  });
});

test('the body of a request is the event, its ids, or where it is', () => {
  const small = anEvent('email.sent', { object: 'email', id });
  const large = anEvent('email.sent', { object: 'email', id, subject: 'x'.repeat(20_000) });
  const read = (...given: Parameters<typeof writeEvent>) =>
    JSON.parse(writeEvent(...given).toString()) as object;
  expect(read('full', small)).toEqual(small);
  expect(read('full', large)).toEqual(fitEvent(large));
  expect([read('thin', small), read('thin', large)]).toEqual([
    inFormat('thin', small),
    inFormat('thin', small),
  ]);
});
