import { expect, test } from 'vitest';
import type { ProviderApp } from '../../channels/provider-callbacks.ts';
import { PublicError, rateLimitExceeded } from '../../platform/http/errors.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createAppLookup } from './app-lookup.ts';

const app: ProviderApp = { accountId: '1', organizationId: 'o', appSecret: 's', verifyToken: 'v' };
const [site, another] = ['192.0.2.0/24', '198.51.100.0/24'];
const perMinute = 600;

function arrange() {
  const clock = createManualClock();
  const apps = new Map([
    ['known', app],
    ['late', app],
  ]);
  let count = 0;
  const lookUp = createAppLookup({ clock }, (token) => {
    count += 1;
    return Promise.resolve(apps.get(token) ?? null);
  });
  const lookUps = () => count;
  const askForMany = async (amount: number) => {
    for (let number = 0; number < amount; number += 1)
      await lookUp(`invented ${number}`, site).catch((cause: unknown) => {
        if (!(cause instanceof PublicError)) throw cause;
      });
  };
  return { clock, apps, lookUp, lookUps, askForMany };
}

test('a site that invents tokens has 600 look-ups in a minute, and takes none from other sites or from known tokens', async () => {
  const { clock, lookUp, lookUps, askForMany } = arrange();
  expect(await lookUp('known', site)).toBe(app);
  await askForMany(perMinute - 1);
  expect(lookUps()).toBe(perMinute);
  await askForMany(perMinute + 100);
  await expect(lookUp('one more', site)).rejects.toMatchObject({ definition: rateLimitExceeded });
  await expect(lookUp('late', site)).rejects.toMatchObject({ definition: rateLimitExceeded });
  expect(lookUps()).toBe(perMinute);
  expect(await lookUp('known', site)).toBe(app);
  expect(await lookUp('late', another)).toBe(app);
  expect(await lookUp('late', site)).toBe(app);
  clock.advance(60_000);
  expect(await lookUp('one more', site)).toBeNull();
});

test('a token that is nobody’s is looked up once a second, and takes nothing of its site’s share until then', async () => {
  const { clock, apps, lookUp, lookUps } = arrange();
  for (let number = 0; number < 2 * perMinute; number += 1) expect(await lookUp('missing', site)).toBeNull();
  expect(lookUps()).toBe(1);
  apps.set('missing', app);
  clock.advance(999);
  expect(await lookUp('missing', site)).toBeNull();
  clock.advance(1);
  expect(await lookUp('missing', site)).toBe(app);
});

test('an app that was taken away is nobody’s at once', async () => {
  const { apps, lookUp } = arrange();
  expect(await lookUp('known', site)).toBe(app);
  apps.delete('known');
  expect(await lookUp('known', site)).toBeNull();
});

test('a look-up that fails is tried again, and counts', async () => {
  let isAway = true;
  const lookUp = createAppLookup({ clock: createManualClock() }, () =>
    isAway ? Promise.reject(new Error('the database is away')) : Promise.resolve(app),
  );
  await expect(lookUp('known', site)).rejects.toThrow('away');
  isAway = false;
  expect(await lookUp('known', site)).toBe(app);
});
