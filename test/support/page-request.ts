import type { PageRequest } from '../../src/platform/http/route.ts';

/** Of a browser on this machine, without a cookie or a body. */
export const localRequest: PageRequest = {
  params: {},
  query: {},
  repeatedQuery: [],
  remoteAddress: '127.0.0.1',
  host: '127.0.0.1:8025',
  remotePort: 50_000,
  localAddress: '127.0.0.1',
  localPort: 8025,
  httpVersion: '1.1',
  isForwarded: false,
  site: '127.0.0.0/24',
  method: 'GET',
  form: new URLSearchParams(),
  body: Buffer.of(),
  header: () => undefined,
  userAgent: '',
  purpose: '',
};
