import { Tokenizer } from 'htmlparser2';
import { linkTrap } from '../platform/http/page-response.ts';
import type { ParsedAttachment, ParsedSource } from './parsed-source.ts';

/** Pictures of one message that are shown; together, since each place that refers to one carries a copy. */
const inlineBytesMax = 20 * 1_048_576;

/**
 * The HTML part as the frame shows it: its own pictures (RFC 2392) are put into it, what opens connections is
 * disarmed, all else is left as it is.
 */
export function buildFrame({ html, attachments }: ParsedSource): string {
  return `${embedImages(disarmConnections(html ?? ''), attachments)}\n${linkTrap}`;
}

/**
 * A frame within the message opens a connection before the policy refuses its address (seen with Chromium 156), and
 * so tells the sender who is looking; the standard lets `<link rel="preconnect">` do the same. Nothing that the policy
 * lets through needs either. A tag can only begin with these very letters, so that replacing them misses none, where
 * a parser that differs from the browser's could.
 */
function disarmConnections(html: string): string {
  return html.replaceAll(/<(link|i?frame|fencedframe)(?=[\s/>])/gi, '<x-$1');
}

function embedImages(html: string, attachments: readonly ParsedAttachment[]): string {
  const images = new Map(
    attachments.flatMap((attachment) =>
      attachment.contentId !== null && imageType.test(attachment.contentType)
        ? [[attachment.contentId, attachment] as const]
        : [],
    ),
  );
  if (images.size === 0) return html;

  const urls = new Map<string, string>();
  const urlOf = (contentId: string): string | null => {
    const image = images.get(contentId);
    if (image === undefined) return null;
    const url = urls.get(contentId) ?? toDataUrl(image);
    urls.set(contentId, url);
    return url;
  };
  const pieces: string[] = [];
  let copiedTo = 0;
  let bytesLeft = inlineBytesMax;
  for (const { contentId, start, end } of findReferences(html)) {
    const url = urlOf(contentId);
    if (url === null || url.length > bytesLeft) continue;
    bytesLeft -= url.length;
    pieces.push(html.slice(copiedTo, start), `="${url}"`);
    copiedTo = end;
  }
  return [...pieces, html.slice(copiedTo)].join('');
}

/** Media types that fit into an attribute, and that a browser takes for a picture. */
const imageType = /^image\/[a-z0-9.+-]{1,64}$/i;

function toDataUrl({ contentType, content }: ParsedAttachment): string {
  return `data:${contentType};base64,${Buffer.from(content).toString('base64')}`;
}

/** `start` is after the attribute's name, `end` after its closing quote. */
type Reference = { contentId: string; start: number; end: number };

const imageAttributes = new Set(['src', 'background']);

/** Every `src="cid:…"` and `background="cid:…"`, with the content id that it refers to. */
function findReferences(html: string): Reference[] {
  const references: Reference[] = [];
  let attribute = { name: '', end: 0, value: '' };
  const ignore = () => undefined;
  const tokenizer = new Tokenizer(
    { xmlMode: false, decodeEntities: true },
    {
      onattribname: (start, end) => {
        attribute = { name: html.slice(start, end).toLowerCase(), end, value: '' };
      },
      onattribdata: (start, end) => {
        attribute.value += html.slice(start, end);
      },
      onattribentity: (codePoint) => {
        attribute.value += String.fromCodePoint(codePoint);
      },
      onattribend: (_quote, end) => {
        if (!imageAttributes.has(attribute.name) || !/^cid:/i.test(attribute.value)) return;
        references.push({
          contentId: decodeContentId(attribute.value.slice('cid:'.length)),
          start: attribute.end,
          end,
        });
      },
      oncdata: ignore,
      onclosetag: ignore,
      oncomment: ignore,
      ondeclaration: ignore,
      onend: ignore,
      onopentagend: ignore,
      onopentagname: ignore,
      onprocessinginstruction: ignore,
      onselfclosingtag: ignore,
      ontext: ignore,
      ontextentity: ignore,
    },
  );
  tokenizer.write(html);
  tokenizer.end();
  return references;
}

/** RFC 2392 §2: content ids are percent-encoded in URLs. */
function decodeContentId(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
