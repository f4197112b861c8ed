import fc from 'fast-check';
import { expect, test } from 'vitest';
import { outcomeOf } from './answers.ts';

const remote = 'push.example.com';
const notificationId = '018f2f6e-0000-8000-8000-000000000001';

type Said = { status: number; body?: string | null; headers?: Record<string, string> };

function outcomeFor({ status, body = '', headers = {} }: Said, areCredentialsProven = true) {
  return outcomeOf(
    { kind: 'answered', status, headers, body },
    { notificationId, areCredentialsProven, remote, random: 0 },
  );
}

const googlePage =
  '<!DOCTYPE html>\n<html lang=en>\n  <title>Error 404 (Not Found)!!1</title>\n  <p>That’s all we know.';

test('a push is named by its Location, and by our own id where there is none or a strange one', () => {
  const location = 'https://push.example.com/m/gAAAAABn';
  expect(outcomeFor({ status: 201, headers: { location, ttl: '60' } })).toEqual({
    kind: 'accepted',
    providerMessageId: location,
    reply: { code: 201, enhancedCode: null, diagnostic: 'HTTP status 201', remote },
  });
  for (const strange of ['', 'a b', 'ü', `https://push.example.com/${'a'.repeat(1_000)}`])
    expect(outcomeFor({ status: 201, headers: { location: strange } })).toMatchObject({
      providerMessageId: notificationId,
    });
  expect(outcomeFor({ status: 202 })).toMatchObject({ kind: 'accepted', providerMessageId: notificationId });
  expect(outcomeFor({ status: 200, body: googlePage })).toMatchObject({ kind: 'accepted' });
});

test.each<[string, Said, string]>([
  [
    'Mozilla',
    { status: 410, body: '{"code":410,"errno":106,"message":"Invalid subscription"}' },
    'Invalid subscription',
  ],
  ['Apple', { status: 403, body: '{"reason":"BadJwtToken"}' }, 'BadJwtToken'],
  [
    'Google',
    { status: 410, body: 'push subscription has unsubscribed or expired.\n' },
    'push subscription has unsubscribed or expired.',
  ],
  ['a page', { status: 404, body: googlePage }, 'HTTP status 404'],
  ['nothing', { status: 410 }, 'HTTP status 410'],
  ['JSON of another form', { status: 400, body: '{"reason":1}' }, '{"reason":1}'],
  ['null', { status: 400, body: 'null' }, 'null'],
])('people read what %s says', (_, said, diagnostic) => {
  expect(outcomeFor(said)).toMatchObject({ reply: { diagnostic } });
});

test('whatever a service answers, it becomes an outcome with words that can be stored, and only success is accepted', () => {
  const bodies = fc.oneof(fc.string({ unit: 'binary', maxLength: 600 }), fc.json(), fc.constant(null));
  fc.assert(
    fc.property(
      fc.integer({ min: 100, max: 999 }),
      bodies,
      fc.dictionary(
        fc.constantFrom('location', 'retry-after'),
        fc.string({ unit: 'binary', maxLength: 1_100 }),
      ),
      fc.boolean(),
      (status, body, headers, isProven) => {
        const outcome = outcomeFor({ status, body, headers }, isProven);
        expect(outcome.reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
        expect(outcome.kind === 'accepted').toBe([200, 201, 202].includes(status));
        if (outcome.kind === 'accepted') expect(outcome.providerMessageId).toMatch(/^[\x21-\x7e]{1,1000}$/);
        if (outcome.kind === 'rejected' && outcome.reason === 'unregistered')
          expect([404, 410]).toContain(status);
      },
    ),
  );
});
