import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Clock } from '../clock.ts';
import { siteOf } from '../network.ts';
import { sha256 } from '../secrets.ts';
import type { Shares } from '../shares.ts';
import { wordFor } from '../wording.ts';
import { type BodyPool, collectInPlace } from './body-pool.ts';
import { chooseForm, isKnownToClient } from './constant-content.ts';
import { overloaded, PublicError, rateLimitExceeded } from './errors.ts';
import { createLocalRateLimiter, type LocalRateLimiter } from './local-rate-limit.ts';
import type { RateVerdict } from './rate-limit.ts';
import { defaultPageRate, type PageRequest, type PageResponse, type WebPage } from './route.ts';
import { holdUnsent } from './unsent.ts';

/** A request of a page, which has no key: who holds something is a site. */

/**
 * What proxies, tunnels and content delivery networks add: the standard ones (RFC 7239, RFC 9110 §7.6.3, RFC 8586), and
 * those of nginx's and Apache's documentation, Cloudflare, Akamai, Fastly, Fly, Amazon, Azure, Google and Envoy.
 */
const forwardingHeader =
  /^(forwarded|via|cdn-loop|true-client-ip|client-ip|x-(real-ip|client-ip|cluster-client-ip|remote-(addr|ip)|original-(host|forwarded-for|url|uri)|amzn-trace-id|cloud-trace-context|proxy-.+|arr-.+|azure-.+|envoy-.+|forwarded(-.+)?)|(cf|fastly|fly|akamai)-.+)$/;

/** A form of a few fields. */
const defaultFormBytesMax = 4_096;

/** `holder` of a share is a site. */
export type PageTools = BodyPool & {
  unsent: Shares;
  /** Counts a request, and says whether there were too many like it. */
  count: (page: WebPage, request: FastifyRequest) => RateVerdict;
};

export function addPage(app: FastifyInstance, page: WebPage, tools: PageTools): void {
  const method = page.method ?? 'GET';
  app.route({
    method,
    url: page.path,
    config: { page },
    // A page reads its body whatever it is called: mail providers send an empty type, or one that is none.
    onRequest: async ({ headers, mediaType }) => {
      if (!mediaType) delete headers['content-type'];
    },
    handler: async (request, reply) => {
      const rate = tools.count(page, request);
      if (!rate.isWithin) throw tooOften(rate);
      const asked = readAsked(request);
      const refusal = (await page.refuse?.(asked)) ?? null;
      if (refusal !== null) return sendPage(tools, request, reply, refusal);
      const posted = method === 'GET' ? nothingPosted : await readPosted(tools, request, page);
      try {
        const response = await page.handle({ ...asked, form: posted.form, body: posted.body });
        return await sendPage(tools, request, reply, response);
      } finally {
        posted.release();
      }
    },
  });
}

export function tooOften({ limit, resetSeconds }: RateVerdict): PublicError {
  return new PublicError(
    rateLimitExceeded,
    `The limit of ${limit} requests in 60 seconds is reached. Try again in ${resetSeconds} ${wordFor(resetSeconds, 'second')}.`,
    { 'retry-after': `${resetSeconds}` },
  );
}

/** How many sites or tokens are remembered in a minute. */
const subjectsMax = 50_000;

/** Pages of the same rate are counted together. */
export function createPageCounter(clock: Clock): PageTools['count'] {
  const limiters = new Map<string, LocalRateLimiter>();
  return ({ rate = defaultPageRate }, request) => {
    const { by, perMinute } = rate;
    const name = `${by} ${perMinute}`;
    let limiter = limiters.get(name);
    if (limiter === undefined) {
      limiter = createLocalRateLimiter({ clock }, { limit: perMinute, subjectsMax });
      limiters.set(name, limiter);
    }
    const { token } = request.params as { token?: string };
    // A digest: what is given for a token may have any length.
    const isByToken = by === 'token' && token !== undefined;
    return limiter.count(isByToken ? sha256(token).toString('base64') : siteOf(request.ip));
  };
}

async function sendPage(
  { unsent }: PageTools,
  request: FastifyRequest,
  reply: FastifyReply,
  { statusCode, headers, body }: PageResponse,
): Promise<FastifyReply> {
  reply.headers(headers);
  if (typeof body === 'string' || Buffer.isBuffer(body)) {
    const bytes = Buffer.from(body);
    if (!holdUnsent(reply.raw, unsent, siteOf(request.ip), bytes.length))
      throw overloaded('Too many responses are waiting to be read at the moment.');
    return reply.code(statusCode).send(bytes);
  }
  const { bytes, encoding, etag } = await chooseForm(body, request.headers['accept-encoding']);
  reply.headers({ etag, vary: 'accept-encoding' });
  if (statusCode === 200 && isKnownToClient(etag, request.headers['if-none-match']))
    return reply.removeHeader('content-type').code(304).send();
  if (encoding !== null) reply.header('content-encoding', encoding);
  return reply.code(statusCode).send(bytes);
}

/** A request as a page sees it before its body was read. */
function readAsked(request: FastifyRequest): PageRequest {
  const { headers } = request;
  return {
    method: request.method,
    params: request.params as Record<string, string>,
    query: textsOnly(request.query as Record<string, unknown>),
    repeatedQuery: repeatedOf(request.query as Record<string, unknown>),
    form: nothingPosted.form,
    body: nothingPosted.body,
    header: (name) => {
      const value = headers[name];
      return Array.isArray(value) ? value.join(', ') : value;
    },
    remoteAddress: request.socket.remoteAddress ?? '',
    remotePort: request.socket.remotePort ?? 0,
    site: siteOf(request.ip),
    localAddress: request.socket.localAddress ?? '',
    localPort: request.socket.localPort ?? 0,
    httpVersion: request.raw.httpVersion,
    host: headers.host ?? '',
    userAgent: headers['user-agent'] ?? '',
    purpose: purposeHeaders.flatMap((name) => headers[name] ?? []).join(' '),
    isForwarded: Object.keys(headers).some((name) => forwardingHeader.test(name)),
  };
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
  const holder = siteOf(request.ip);
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
