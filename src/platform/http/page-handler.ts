import type { FastifyInstance, FastifyRequest } from 'fastify';
import { networkOf } from '../network.ts';
import { type BodyPool, collectInPlace } from './body-pool.ts';
import type { PageRequest, WebPage } from './route.ts';

/** A request of a page, which has no key: who holds something is a network. */

/**
 * What proxies, tunnels and content delivery networks add: the standard ones (RFC 7239, RFC 9110 §7.6.3, RFC 8586), and
 * those of nginx's and Apache's documentation, Cloudflare, Akamai, Fastly, Fly, Amazon, Azure, Google and Envoy.
 */
const forwardingHeader =
  /^(forwarded|via|cdn-loop|true-client-ip|client-ip|x-(real-ip|client-ip|cluster-client-ip|remote-(addr|ip)|original-(host|forwarded-for|url|uri)|amzn-trace-id|cloud-trace-context|proxy-.+|arr-.+|azure-.+|envoy-.+|forwarded(-.+)?)|(cf|fastly|fly|akamai)-.+)$/;

/** A form of a few fields. */
const defaultFormBytesMax = 4_096;

export function addPage(app: FastifyInstance, page: WebPage, tools: BodyPool): void {
  const method = page.method ?? 'GET';
  app.route({
    method,
    url: page.path,
    config: { page },
    handler: async (request, reply) => {
      const { headers } = request;
      const posted = method === 'GET' ? nothingPosted : await readPosted(tools, request, page);
      try {
        const response = await page.handle({
          method: request.method,
          params: request.params as Record<string, string>,
          query: textsOnly(request.query as Record<string, unknown>),
          repeatedQuery: repeatedOf(request.query as Record<string, unknown>),
          form: posted.form,
          body: posted.body,
          header: (name) => {
            const value = headers[name];
            return Array.isArray(value) ? value.join(', ') : value;
          },
          remoteAddress: request.socket.remoteAddress ?? '',
          remotePort: request.socket.remotePort ?? 0,
          localAddress: request.socket.localAddress ?? '',
          localPort: request.socket.localPort ?? 0,
          httpVersion: request.raw.httpVersion,
          host: headers.host ?? '',
          userAgent: headers['user-agent'] ?? '',
          purpose: purposeHeaders.flatMap((name) => headers[name] ?? []).join(' '),
          isForwarded: Object.keys(headers).some((name) => forwardingHeader.test(name)),
        });
        return reply.code(response.statusCode).headers(response.headers).send(response.body);
      } finally {
        posted.release();
      }
    },
  });
}

const purposeHeaders = ['sec-purpose', 'purpose', 'x-purpose', 'x-moz'];

type Posted = Pick<PageRequest, 'form' | 'body'> & { release: () => void };

const nothingPosted: Posted = {
  form: new URLSearchParams(),
  body: Buffer.of(),
  release: () => undefined,
};

/** Bytes that are kept as they came are counted until they are released. */
async function readPosted(
  tools: BodyPool,
  request: FastifyRequest,
  { rawBytesMax, formBytesMax = defaultFormBytesMax }: WebPage,
): Promise<Posted> {
  const holder = networkOf(request.ip);
  const { blocks, release } = await collectInPlace(tools, request.raw, rawBytesMax ?? formBytesMax, holder);
  if (rawBytesMax !== undefined) return { ...nothingPosted, body: Buffer.concat(blocks), release };
  release();
  return { ...nothingPosted, form: new URLSearchParams(Buffer.concat(blocks).toString('utf8')) };
}

function textsOnly(query: Readonly<Record<string, unknown>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(query).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  );
}

function repeatedOf(query: Readonly<Record<string, unknown>>): string[] {
  return Object.keys(query).filter((name) => typeof query[name] !== 'string');
}
