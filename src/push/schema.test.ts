import { expect, test } from 'vitest';
import { parseEndpoint } from '../channels/push/endpoint.ts';
import { isHttpsUrl } from './schema.ts';

test.each(['https://cdn.example.com/a.png', 'HTTPS://cdn.example.com', 'https://[::1]:8443/a?b#c'])(
  '%s has a host',
  (text) => {
    expect(isHttpsUrl(text)).toBe(true);
  },
);

test.each([
  'https:cdn.example.com/a.png',
  'https:/cdn.example.com/a.png',
  'https:///a.png',
  'https:///cdn.example.com/a.png',
  'https:\\\\cdn.example.com/a.png',
  'https://\\cdn.example.com/a.png',
  'https://?a.png',
  'https://#a.png',
  'https://',
  'http://cdn.example.com/a.png',
  '//cdn.example.com/a.png',
  ' https://cdn.example.com/a.png',
])('%j has none that every device would find, for an image as for a subscription', (text) => {
  expect(isHttpsUrl(text)).toBe(false);
  if (!text.startsWith(' ')) expect(parseEndpoint(text)).toBeNull();
});
