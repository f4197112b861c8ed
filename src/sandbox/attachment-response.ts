import type { PageResponse } from '../platform/http/route.ts';
import { respond } from './page.ts';
import type { ParsedAttachment } from './parsed-source.ts';

/**
 * An attachment as it may be looked at. Everything in it comes from outside, its type too: only pictures that can hold
 * no script are shown as what they are, and text of any kind as plain text. All else is saved.
 */
export function respondAttachment(attachment: ParsedAttachment, isDownload: boolean): PageResponse {
  const shownAs = isDownload ? null : shownTypeOf(attachment.contentType);
  const response = respond(
    shownAs ?? 'application/octet-stream',
    Buffer.from(attachment.content),
    contentPolicy,
  );
  const disposition = shownAs === null ? 'attachment' : 'inline';
  return {
    ...response,
    headers: {
      ...response.headers,
      'content-disposition': `${disposition}; ${fileNameParameters(attachment.filename)}`,
    },
  };
}

/** `sandbox` takes scripts and the origin from it, also where a browser takes it for something else. */
const contentPolicy =
  "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";

/** SVG is none of them: it can hold scripts. */
const pictureTypes = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/avif']);

/** The type that an attachment is shown as, or null for one that is only saved. */
export function shownTypeOf(contentType: string): string | null {
  const type = contentType.toLowerCase();
  if (pictureTypes.has(type)) return type;
  return type.startsWith('text/') || type === 'application/json' ? 'text/plain; charset=utf-8' : null;
}

const nameLengthMax = 200;

/** RFC 6266 §4.3: in ASCII for those that know no better, and in UTF-8 (RFC 8187). No path, no control character. */
function fileNameParameters(filename: string | null): string {
  const name = [...(filename ?? 'attachment')]
    .filter((character) => !/[\p{C}/\\]/u.test(character))
    .slice(0, nameLengthMax)
    .join('');
  const given = name.trim() === '' ? 'attachment' : name;
  const ascii = given.replaceAll(/[^ !#-[\]-~]/g, '_');
  const encoded = encodeURIComponent(given).replaceAll(
    /['()*]/g,
    (character) => `%${character.codePointAt(0)?.toString(16).toUpperCase() ?? ''}`,
  );
  return `filename="${ascii}"; filename*=UTF-8''${encoded}`;
}
