import PostalMime, { type Attachment, type Email } from 'postal-mime';
import { type Addresses, listAddresses, noAddresses } from './addresses.ts';

/** What a person wants to see of a message. Everything in it comes from outside. */
export type ParsedSource = {
  /** The address of the `From` header. */
  from: string | null;
  subject: string | null;
  addresses: Addresses;
  /** As they stand in the source, in their order, folded lines joined. */
  headers: { name: string; value: string }[];
  html: string | null;
  text: string | null;
  attachments: ParsedAttachment[];
};

export type ParsedAttachment = {
  filename: string | null;
  contentType: string;
  content: Uint8Array;
  /** Without its angle brackets. */
  contentId: string | null;
};

/** Never fails on any bytes: what cannot be read as mail is shown as far as it goes. */
export async function parseSource(channel: string, source: Buffer): Promise<ParsedSource> {
  if (channel !== 'email') return { ...nothing, text: source.toString('utf8') };
  return toParsedSource(await parseMail(source));
}

/** Only what the headers say, of a message whose beginning is at hand. */
export async function parseHead(channel: string, beginning: Buffer): Promise<ParsedSource> {
  if (channel !== 'email') return nothing;
  const end = beginning.indexOf('\r\n\r\n');
  const { from, subject, addresses, headers } = toParsedSource(
    await parseMail(end === -1 ? beginning : beginning.subarray(0, end + 4)),
  );
  return { ...nothing, from, subject, addresses, headers };
}

const nothing: ParsedSource = {
  from: null,
  subject: null,
  addresses: noAddresses,
  headers: [],
  html: null,
  text: null,
  attachments: [],
};

/** Deeper nesting, or longer headers, are not made by any sender that means well. */
const nestingDepthMax = 32;
const headersBytesMax = 1_048_576;

async function parseMail(source: Buffer): Promise<Email> {
  try {
    return await PostalMime.parse(source, {
      maxNestingDepth: nestingDepthMax,
      maxHeadersSize: headersBytesMax,
      // One message attached to another is an attachment, and not part of its text.
      rfc822Attachments: true,
    });
  } catch {
    // The limits above: what remains to be seen is the source.
    return { headers: [], headerLines: [], attachments: [] };
  }
}

function toParsedSource(email: Email): ParsedSource {
  return {
    from: email.from?.address ?? null,
    subject: email.subject ?? null,
    addresses: {
      from: listAddresses(email.from && [email.from]),
      to: listAddresses(email.to),
      cc: listAddresses(email.cc),
      bcc: listAddresses(email.bcc),
      reply_to: listAddresses(email.replyTo),
    },
    headers: email.headers.map(({ originalKey, value }) => ({ name: originalKey, value })),
    html: withoutAddedLineEnd(email.html),
    text: withoutAddedLineEnd(email.text),
    attachments: email.attachments.map(toAttachment),
  };
}

/** The parser ends every part with a line feed, whether it had one or not. */
function withoutAddedLineEnd(text: string | undefined): string | null {
  if (text === undefined) return null;
  return text.endsWith('\n') ? text.slice(0, -1) : text;
}

function toAttachment(attachment: Attachment): ParsedAttachment {
  const { content } = attachment;
  return {
    filename: attachment.filename,
    contentType: attachment.mimeType,
    content: typeof content === 'string' ? Buffer.from(content) : new Uint8Array(content),
    contentId: attachment.contentId?.replace(/^<|>$/g, '') ?? null,
  };
}
