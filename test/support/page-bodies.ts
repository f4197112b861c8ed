import type { PageBody } from '../../src/platform/http/route.ts';

/** What a client gets that asks for no compression. */
export function bytesOf(body: PageBody): Buffer {
  return Buffer.from(typeof body === 'object' && 'kind' in body ? body.bytes : body);
}
