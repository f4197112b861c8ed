import { expect, test } from 'vitest';
import { isMachineRequest, isTooQuick } from './machine-engagement.ts';

const chrome =
  'Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36';
const get = { method: 'GET', userAgent: chrome, purpose: '' };

test.each([
  chrome,
  'Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148',
  'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15',
  'Mozilla/5.0 (Linux; Android 13; CUBOT X70) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Mobile Safari/537.36',
  'Mozilla/5.0 (Windows NT 10.0; rv:128.0) Gecko/20100101 Thunderbird/128.1.0',
  'Microsoft Office/16.0 (Windows NT 10.0; Microsoft Outlook 16.0.17928; Pro)',
  'Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 10.0; Win64; x64; Trident/7.0; Microsoft Outlook 16.0; ms-office)',
  'Mozilla/5.0 (Windows NT 5.1; rv:11.0) Gecko Firefox/11.0 (via ggpht.com GoogleImageProxy)',
  'YahooMailProxy; https://help.yahoo.com/kb/yahoo-mail-proxy-SLN28749.html',
])('a person reads mail with %s', (userAgent) => {
  expect(isMachineRequest({ ...get, userAgent })).toBe(false);
});

test.each([
  '',
  '-',
  'Mozilla/5.0',
  'Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/42.0.2311.135 Safari/537.36 Edge/12.246 Mozilla/5.0',
  'Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/42.0.2311.135 Safari/537.36 Edge/12.246 Gmail-content-sampling',
  'Mozilla/5.0 (Windows NT 6.1; WOW64) AppleWebKit/534+ (KHTML, like Gecko) BingPreview/1.0b',
  'Barracuda Sentinel (EE)',
  'Microsoft Office Existence Discovery',
  'Mozilla/5.0 (compatible; Proofpoint URL Defense)',
  'Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)',
  'Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)',
  'facebookexternalhit/1.1',
  'curl/8.5.0',
  'python-requests/2.32.3',
  'Go-http-client/1.1',
  'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/142.0.0.0 Safari/537.36',
])('a machine calls itself %j', (userAgent) => {
  expect(isMachineRequest({ ...get, userAgent })).toBe(true);
});

test.each([
  { method: 'HEAD' },
  { purpose: 'prefetch' },
  { purpose: 'prefetch;prerender' },
  { purpose: 'preview' },
])('a request with %o is a machine', (changes) => {
  expect(isMachineRequest({ ...get, ...changes })).toBe(true);
});

test('nobody opens a message within a second of its hand-off, or before its outcome is written', () => {
  const handedOffAt = new Date('2026-11-21T12:00:00.000Z');
  const after = (ms: number) => new Date(handedOffAt.getTime() + ms);
  expect([-50, 0, 999, 1_000, 60_000].map((ms) => isTooQuick(after(ms), handedOffAt))).toEqual([
    true,
    true,
    true,
    false,
    false,
  ]);
  expect(isTooQuick(after(60_000), null)).toBe(true);
});
