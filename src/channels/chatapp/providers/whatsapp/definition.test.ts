import { expect, test } from 'vitest';
import { findVersionShortcoming, parseGraphVersion, usualGraphVersion } from './graph-versions.ts';
import { parseWhatsAppUrl } from './url.ts';
import { whatsapp } from './definition.ts';

const at = (day: string) => Date.parse(`${day}T00:00:00Z`);

test.each([
  ['v24.0', '2027-11-19', null],
  ['v24.0', '2027-11-20', 'switches off'],
  ['v24.0', '2028-02-17', 'switches off'],
  ['v24.0', '2028-02-18', 'has switched off'],
  ['v99.0', '2050-01-01', null],
  ['constructor', '2050-01-01', null],
])('of the version %s on %s it is told: %j', (version, day, found) => {
  const shortcoming = findVersionShortcoming(version, at(day));
  expect(shortcoming?.found ?? null).toEqual(found === null ? null : expect.stringContaining(found));
});

test('the version that is taken if none is set is one whose end is known', () => {
  expect(whatsapp.settings.POSTILLION_WHATSAPP_GRAPH_VERSION.default).toBe(usualGraphVersion);
  expect(findVersionShortcoming(usualGraphVersion, at('2099-01-01'))).not.toBeNull();
});

test.each(['', '25', 'v25', 'v25.0/..', 'V25.0', 'v25.0 '])('%j is no version', (setting) => {
  expect(() => parseGraphVersion(setting)).toThrow(/POSTILLION_WHATSAPP_GRAPH_VERSION/);
});

test.each([
  ['https://graph.facebook.com', 'https://graph.facebook.com'],
  ['https://graph.facebook.com/', 'https://graph.facebook.com'],
  ['http://127.0.0.1:8080', 'http://127.0.0.1:8080'],
  ['http://[::1]:8080', 'http://[::1]:8080'],
])('%s is where the API is', (url, origin) => {
  expect(parseWhatsAppUrl(url)).toBe(origin);
});

test.each([
  'graph.facebook.com',
  'http://graph.facebook.com',
  'http://127.0.0.1.example.com',
  'ftp://127.0.0.1',
  'https://graph.facebook.com/v25.0',
  'https://user:password@graph.facebook.com',
  'https://graph.facebook.com?x=1',
])('%s is refused', (url) => {
  expect(() => parseWhatsAppUrl(url)).toThrow(/^POSTILLION_WHATSAPP_URL must/);
});

const settings = {
  POSTILLION_WHATSAPP_URL: 'https://graph.facebook.com',
  POSTILLION_WHATSAPP_GRAPH_VERSION: 'v99.0',
  POSTILLION_WHATSAPP_APP_SECRET: '',
  POSTILLION_WHATSAPP_VERIFY_TOKEN: '',
};

test.each([
  [{}, null],
  [{ POSTILLION_WHATSAPP_APP_SECRET: 's', POSTILLION_WHATSAPP_VERIFY_TOKEN: 'v' }, null],
  [{ POSTILLION_WHATSAPP_APP_SECRET: 's' }, 'Set POSTILLION_WHATSAPP_VERIFY_TOKEN as well.'],
  [{ POSTILLION_WHATSAPP_VERIFY_TOKEN: 'v' }, 'Set POSTILLION_WHATSAPP_APP_SECRET as well.'],
])('an app of the installation needs both of its settings: %j', async (more, advice) => {
  const shortcoming = await whatsapp.findShortcoming?.({ ...settings, ...more }, 'https://post.test');
  expect(shortcoming?.advice ?? null).toBe(advice);
});
