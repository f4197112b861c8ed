import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';
import { sha256 } from '../secrets.ts';

/**
 * Content that is the same for whoever asks, such as a page or a script: compressed once, at the first request for it, and
 * named by its digest, so that a client that has it gets 304. All responses share the same buffers.
 */
export type ConstantContent = {
  kind: 'constant';
  bytes: Buffer;
  /** The forms that a client may prefer; empty for what is compressed already, such as images. */
  compressed: () => Promise<ReadonlyMap<string, Buffer>>;
  /** Base64url, without quotes. */
  digest: string;
};

/** What is shorter fits into one packet as it is. */
const compressedBytesMin = 1_024;

/** Beyond it Brotli takes seconds for a megabyte, to save a few per cent more. */
const brotliQuality = 9;

export function createConstantContent(
  content: string | Buffer,
  { isCompressible = true }: { isCompressible?: boolean } = {},
): ConstantContent {
  const bytes = Buffer.from(content);
  let compressed: Promise<ReadonlyMap<string, Buffer>> | undefined;
  return {
    kind: 'constant',
    bytes,
    compressed: () => {
      compressed ??= isCompressible && bytes.length >= compressedBytesMin ? compress(bytes) : noForms;
      return compressed;
    },
    digest: sha256(bytes).toString('base64url'),
  };
}

const noForms = Promise.resolve(new Map<string, Buffer>());

async function compress(bytes: Buffer): Promise<ReadonlyMap<string, Buffer>> {
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: brotliQuality,
    [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
  };
  const [br, gzipped] = await Promise.all([
    promisify(brotliCompress)(bytes, { params }),
    promisify(gzip)(bytes, { level: constants.Z_BEST_COMPRESSION }),
  ]);
  return new Map([
    ['br', br],
    ['gzip', gzipped],
  ]);
}

/** A form of the content: `encoding` is null for the content as it is; `etag` is that of this form (RFC 9110 §8.8.3). */
export type ContentForm = { bytes: Buffer; encoding: string | null; etag: string };

/** The form that a client likes best by its `Accept-Encoding`; without that header, the content as it is. */
export async function chooseForm(
  content: ConstantContent,
  acceptEncoding: string | undefined,
): Promise<ContentForm> {
  const { bytes, digest } = content;
  const asItIs = { bytes, encoding: null, etag: `"${digest}"` };
  if (acceptEncoding === undefined) return asItIs;
  const forms = await content.compressed();
  const weightOf = readWeights(acceptEncoding);
  let [chosen, best]: [ContentForm, number] = [asItIs, weightOf('identity') ?? leastWeight];
  for (const [encoding, form] of forms) {
    const weight = weightOf(encoding) ?? 0;
    // The shorter forms come first, and what is as good as it is costs more bytes.
    const isBetter = chosen.encoding === null ? weight > 0 && weight >= best : weight > best;
    if (isBetter) [chosen, best] = [{ bytes: form, encoding, etag: `"${digest}-${encoding}"` }, weight];
  }
  return chosen;
}

/** `identity` is acceptable though nobody names it, but less than whatever is named (RFC 9110 §12.5.3). */
const leastWeight = 0.0001;

/** What is not named has the weight of `*`, or none. Names are compared without case; `x-gzip` is gzip (§8.4.1.3). */
function readWeights(acceptEncoding: string): (encoding: string) => number | undefined {
  const weights = new Map<string, number>();
  for (const part of acceptEncoding.toLowerCase().split(',')) {
    const [name = '', ...parameters] = part.split(';').map((text) => text.trim());
    const quality = parameters.find((text) => text.startsWith('q='))?.slice('q='.length) ?? '1';
    // Whatever is not a weight says that the encoding is not wanted.
    weights.set(
      name === 'x-gzip' ? 'gzip' : name,
      /^(0(\.\d{0,3})?|1(\.0{0,3})?)$/.test(quality) ? Number(quality) : 0,
    );
  }
  return (encoding) => weights.get(encoding) ?? weights.get('*');
}

/** Whether the client has this form already: compared weakly, as `If-None-Match` is (RFC 9110 §13.1.2). */
export function isKnownToClient(etag: string, ifNoneMatch: string | undefined): boolean {
  if (ifNoneMatch === undefined) return false;
  return ifNoneMatch.split(',').some((entry) => {
    const given = entry.trim().replace(/^W\//, '');
    return given === '*' || given === etag;
  });
}
