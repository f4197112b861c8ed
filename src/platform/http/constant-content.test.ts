import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { chooseForm, createConstantContent, isKnownToClient } from './constant-content.ts';

const text = 'A page that is the same for everybody. '.repeat(100);
const page = createConstantContent(text);

test.each([
  [undefined, null],
  ['', null],
  ['gzip', 'gzip'],
  ['br', 'br'],
  ['gzip, deflate, br, zstd', 'br'],
  ['GZIP', 'gzip'],
  ['x-gzip', 'gzip'],
  ['*', 'br'],
  ['identity', null],
  ['gzip;q=1.0, br;q=0.5', 'gzip'],
  ['gzip ; q=0.5 , br ; q=0.5', 'br'],
  ['br;q=0, gzip;q=0.001', 'gzip'],
  ['br;q=0, *', 'gzip'],
  ['identity;q=1, *;q=0.5', null],
  ['identity;q=0.5, gzip;q=0.8', 'gzip'],
  ['*;q=0', null],
  ['br;q=2, gzip;q=', null],
  ['br;q=0.0001, gzip;q=nan', null],
  [','.repeat(10_000), null],
])('of Accept-Encoding %j the form is %j', async (acceptEncoding, encoding) => {
  expect((await chooseForm(page, acceptEncoding)).encoding).toBe(encoding);
});

test('every form holds the same text, is shorter than it, and has a tag of its own', async () => {
  const forms = await Promise.all(['identity', 'gzip', 'br'].map((encoding) => chooseForm(page, encoding)));
  const [asItIs, gzipped, brotli] = forms.map(({ bytes }) => bytes) as [Buffer, Buffer, Buffer];
  expect(asItIs.toString()).toBe(text);
  expect(gunzipSync(gzipped).toString()).toBe(text);
  expect(brotliDecompressSync(brotli).toString()).toBe(text);
  expect(Math.max(gzipped.length, brotli.length)).toBeLessThan(asItIs.length / 10);
  expect(new Set(forms.map(({ etag }) => etag)).size).toBe(3);
});

test('it is compressed once, and all responses share its bytes', async () => {
  const forms = await Promise.all(Array.from({ length: 300 }, () => chooseForm(page, 'br')));
  expect(new Set(forms.map(({ bytes }) => bytes)).size).toBe(1);
});

test('what is short, or compressed already, is sent as it is', async () => {
  expect((await chooseForm(createConstantContent('short'), 'br, gzip')).encoding).toBeNull();
  const image = createConstantContent(Buffer.alloc(5_000), { isCompressible: false });
  expect((await chooseForm(image, 'br, gzip')).encoding).toBeNull();
});

test('another text has another tag, and the same text the same one', async () => {
  const tagOf = async (content: string) => (await chooseForm(createConstantContent(content), undefined)).etag;
  expect(await tagOf('one')).toBe(await tagOf('one'));
  expect(await tagOf('one')).not.toBe(await tagOf('two'));
});

test.each([
  [undefined, false],
  ['"a"', true],
  ['W/"a"', true],
  ['"b", W/"a"', true],
  ['*', true],
  ['"b"', false],
  ['a', false],
  ['', false],
])('of If-None-Match %j, whether the client has "a" is %j', (ifNoneMatch, isKnown) => {
  expect(isKnownToClient('"a"', ifNoneMatch)).toBe(isKnown);
});
