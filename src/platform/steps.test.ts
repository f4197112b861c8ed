import fc from 'fast-check';
import { expect, test } from 'vitest';
import { concatInSteps, runAtOnce, stepBytesMax } from './steps.ts';

test('what is joined in steps is what is joined at once', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 20 }), { maxLength: 8 }), (parts) => {
      expect(runAtOnce(concatInSteps(parts)).equals(Buffer.concat(parts))).toBe(true);
    }),
  );
});

test('no step copies more than two parts of a step, be it one large part or many small ones', () => {
  const total = 5 * stepBytesMax + 1;
  const whole = Buffer.alloc(total, 'postillion');
  const many = Array.from({ length: Math.ceil(total / 999) }, (_, index) =>
    whole.subarray(index * 999, (index + 1) * 999),
  );
  for (const parts of [[whole], many, [Buffer.alloc(0), whole, Buffer.alloc(0)]]) {
    const steps = concatInSteps(parts);
    let count = 1;
    let step = steps.next();
    for (; step.done !== true; step = steps.next()) count += 1;
    expect(step.value.equals(whole)).toBe(true);
    expect(count).toBeGreaterThanOrEqual(3);
  }
});
