import { addressParser, type Address } from 'postal-mime';
import {
  findHeaderIssues,
  foldAddress,
  isContentId,
  parseAddress,
  parseNamedAddress,
  writeNamedAddress,
} from '../channels/email/email.ts';
import { escapeHtml } from '../channels/placeholders.ts';
import { defaultJsonLimits, readJson } from '../platform/http/json-text.ts';
import {
  type Head,
  type HeaderField,
  headLengthOf,
  readTextValue,
  splitHead,
  valueOf,
  valuesOf,
} from './header-fields.ts';
import { type MessageFile, type MessageParts, readParts, type TextBlock } from './message-parts.ts';

/**
 * A message that was submitted, as the body of `POST /email/send` that says the same. It has no rules of its own: what the
 * body may be is judged by whoever judges bodies. It refuses only what a body has no words for.
 */

export type Translation = {
  kind: 'translated';
  /** As JSON would give it. */
  body: Record<string, unknown>;
  /** That of its option. */
  idempotencyKey: string | null;
  /** As it was written, with its angle brackets. */
  messageId: string | null;
};

/** A sentence for the client. */
export type Untranslatable = { kind: 'untranslatable'; problem: string };

/** What programs write is a few kilobytes. Of longer ones reading the addresses alone would take a second. */
const headLengthMax = 262_144;
const addressesLengthMax = 32_768;

/** `recipients` are those of the envelope. Never throws. */
export function translateMessage(
  source: Buffer,
  recipients: readonly string[],
): Translation | Untranslatable {
  if (headLengthOf(source) > headLengthMax)
    return refuse(`The header must have at most ${headLengthMax} bytes.`);
  const head = splitHead(source.toString('latin1'));
  if (head === null) return refuse('The header has a line that is no field.');
  const problem = findRepeatedField(head);
  if (problem !== null) return refuse(problem);
  const options = readOptions(head.fields);
  if ('problem' in options) return refuse(options.problem);
  const parts = readParts(head);
  if ('problem' in parts) return refuse(parts.problem);
  const addresses = readAddresses(head, recipients);
  if ('problem' in addresses) return refuse(addresses.problem);
  const subject = readTextValue(valueOf(head, 'subject'));
  const headers = readHeaders(head.fields);
  const { idempotencyKey = null, ...fields } = options.fields;
  const content = 'template_id' in fields ? {} : joinBlocks(parts.blocks);
  const attachments = listAttachments(parts, content.html ?? '');
  const messageId = valueOf(head, 'message-id');
  return {
    kind: 'translated',
    body: {
      ...addresses.fields,
      ...(subject !== '' && { subject }),
      ...content,
      ...(attachments.length > 0 && { attachments }),
      ...(headers !== null && { headers }),
      ...fields,
    },
    idempotencyKey: typeof idempotencyKey === 'string' ? idempotencyKey : null,
    messageId: messageId === '' ? null : messageId,
  };
}

function refuse(problem: string): Untranslatable {
  return { kind: 'untranslatable', problem };
}

/** RFC 5322 §3.6: readers differ in which one they take, and so would we. */
function findRepeatedField(head: Head): string | null {
  const repeated = ['From', 'To', 'Cc', 'Reply-To', 'Subject', 'Message-ID', 'Content-Type'].find(
    (name) => valuesOf(head, name.toLowerCase()).length > 1,
  );
  return repeated === undefined ? null : `The header must have one ${repeated} field.`;
}

type Read<Fields> = { fields: Fields } | { problem: string };

/** Those who are named in To and Cc are shown there, and all others are not shown. */
function readAddresses(head: Head, recipients: readonly string[]): Read<Record<string, unknown>> {
  const long = ['From', 'To', 'Cc', 'Reply-To'].find(
    (name) => valueOf(head, name.toLowerCase()).length > addressesLengthMax,
  );
  if (long !== undefined) return { problem: `${long} must have at most ${addressesLengthMax} characters.` };
  const [from, ...moreFrom] = listMailboxes(valueOf(head, 'from'));
  if (from === undefined || moreFrom.length > 0) return { problem: 'From must be one address.' };
  const [replyTo, ...moreReplyTo] = listMailboxes(valueOf(head, 'reply-to'));
  if (moreReplyTo.length > 0) return { problem: 'Reply-To must be one address.' };

  const shown = new Map<string, { field: 'to' | 'cc'; name: string }>();
  for (const field of ['to', 'cc'] as const) {
    for (const mailbox of listMailboxes(valueOf(head, field))) {
      const key = keyOf(mailbox.address);
      if (!shown.has(key)) shown.set(key, { field, name: mailbox.name });
    }
  }
  const listed: Record<'to' | 'cc' | 'bcc', string[]> = { to: [], cc: [], bcc: [] };
  for (const recipient of recipients) {
    const { field = 'bcc', name = '' } = shown.get(keyOf(recipient)) ?? {};
    listed[field].push(writeMailbox({ name, address: recipient }));
  }
  // Somebody must be named. Whoever gets the only copy may see that it is for them.
  if (listed.to.length === 0 && listed.cc.length > 0) listed.to = listed.cc.splice(0);
  if (listed.to.length === 0 && listed.bcc.length === 1) listed.to = listed.bcc.splice(0);
  const { to, cc, bcc } = listed;
  return {
    fields: {
      from: from.address,
      from_name: nameOf(from),
      to,
      ...(cc.length > 0 && { cc }),
      ...(bcc.length > 0 && { bcc }),
      ...(replyTo !== undefined && { reply_to: writeMailbox(replyTo) }),
    },
  };
}

type Mailbox = { name: string; address: string };

function listMailboxes(value: string): Mailbox[] {
  const flatten = (address: Address): Mailbox[] =>
    address.group === undefined
      ? [{ name: address.name, address: (address.address ?? '').trim() }]
      : address.group.flatMap(flatten);
  return addressParser(value)
    .flatMap(flatten)
    .filter(({ address, name }) => address !== '' || name !== '');
}

/** By which a name in the header and a recipient of the envelope are the same person. */
function keyOf(address: string): string {
  return parseAddress(address)?.normalised ?? foldAddress(address);
}

/** A sender has a name. Of a bare address mail programs show what stands before the `@`. */
function nameOf({ name, address }: Mailbox): string {
  const shown = flatten(name);
  return shown === '' ? address.slice(0, Math.max(address.lastIndexOf('@'), 0)) || address : shown;
}

/** Without a name that no request could give. */
function writeMailbox({ name, address }: Mailbox): string {
  const email = parseNamedAddress(address)?.email;
  const shown = flatten(name);
  if (email === undefined || shown === '') return address;
  const written = writeNamedAddress({ name: shown, email });
  return parseNamedAddress(written) === null ? address : written;
}

function flatten(text: string): string {
  return text.replace(/[\0-\x1f\x7f]+/g, ' ').trim();
}

/** What people read is one text and one HTML: a text that stands between pieces of HTML becomes HTML as well. */
function joinBlocks(blocks: readonly TextBlock[]): { html?: string; text?: string } {
  if (blocks.length === 0) return {};
  const texts = blocks.flatMap(({ text }) => text ?? []);
  // Mail with a file and nothing to say has an empty text, which a body may not have.
  const text = texts.length < blocks.length ? {} : { text: withoutLastLineEnd(texts.join('\n')) || '\n' };
  if (blocks.every(({ html }) => html === null)) return text;
  const html = blocks.map((block) => block.html ?? textToHtml(block.text ?? '')).join('\n');
  return { html: withoutLastLineEnd(html), ...text };
}

/** That of the message, and not of the text. */
function withoutLastLineEnd(text: string): string {
  return text.endsWith('\n') ? text.slice(0, -1) : text;
}

function textToHtml(text: string): string {
  return text.trim() === '' ? '' : `<p>${escapeHtml(text.trim()).replaceAll('\n', '<br>\n')}</p>`;
}

function listAttachments({ files }: MessageParts, html: string): Record<string, unknown>[] {
  return files.map((file, index) => ({
    filename: file.filename === '' ? nameFile(file, index) : file.filename,
    content: file.content.toString('base64'),
    ...(file.contentType !== '' && { content_type: file.contentType }),
    ...(isShown(file, html) && { content_id: file.contentId }),
  }));
}

/** Many programs give every file an id, also those that are only attached. */
function isShown({ contentId }: MessageFile, html: string): boolean {
  return (
    contentId !== '' &&
    isContentId(contentId) &&
    [contentId, encodeURIComponent(contentId)].some((id) => html.includes(`cid:${id}`))
  );
}

const endings: Readonly<Record<string, string>> = {
  'text/calendar': 'invite.ics',
  'message/rfc822': 'message.eml',
  'message/delivery-status': 'delivery-status.txt',
  'text/plain': 'text.txt',
  'text/html': 'text.html',
  'text/csv': 'table.csv',
  'application/pdf': 'document.pdf',
  'image/png': 'image.png',
  'image/jpeg': 'image.jpg',
  'image/gif': 'image.gif',
};

/** A part need not have a name, and a file must. */
function nameFile({ contentType }: MessageFile, index: number): string {
  const type = contentType.split(';', 1)[0]?.trim() ?? '';
  return endings[type] ?? `attachment-${index + 1}.bin`;
}

const optionPrefix = 'x-postillion-';

/** Fields of the header that are passed on: those that a request may give. `Received`, `DKIM-Signature` and the like are not. */
function readHeaders(fields: readonly HeaderField[]): Record<string, string> | null {
  const passed = fields.filter(
    ({ name, lowered, value }) =>
      !lowered.startsWith(optionPrefix) &&
      value !== '' &&
      !findHeaderIssues({ [name]: 'x' }).some(({ issue }) => issue === 'is not a header that can be set'),
  );
  if (passed.length === 0) return null;
  const headers = new Map<string, string>();
  for (const { name, value } of passed) {
    // Twice under one name is refused as it is in a request, in which the second spelling is another one.
    const key = headers.has(name) ? name.toUpperCase() : name;
    headers.set(key, readTextValue(value));
  }
  return Object.fromEntries(headers);
}

const textOptions = {
  'x-postillion-category': 'category',
  'x-postillion-template': 'template_id',
  'x-postillion-idempotency-key': 'idempotencyKey',
} as const;

/** Written as JSON. */
const objectOptions = {
  'x-postillion-variables': 'variables',
  'x-postillion-metadata': 'metadata',
} as const;

/** Separated by commas. */
const tagsOption = 'x-postillion-tags';

const optionNames = [...Object.keys(textOptions), ...Object.keys(objectOptions), tagsOption];

/** What is asked for beside the message, which is not sent. */
function readOptions(fields: readonly HeaderField[]): Read<Record<string, unknown>> {
  const found: Record<string, unknown> = {};
  for (const { name, lowered, value } of fields) {
    if (!lowered.startsWith(optionPrefix)) continue;
    if (!optionNames.includes(lowered))
      return { problem: `There is no option ${name}. Options are ${optionNames.map(spell).join(', ')}.` };
    const field =
      textOptions[lowered as keyof typeof textOptions] ??
      objectOptions[lowered as keyof typeof objectOptions] ??
      'tags';
    if (Object.hasOwn(found, field)) return { problem: `${name} must be given once.` };
    if (lowered in textOptions) {
      found[field] = readTextValue(value);
      continue;
    }
    if (lowered === tagsOption) {
      found[field] = readTextValue(value)
        .split(',')
        .map((tag) => tag.trim());
      continue;
    }
    const reading = readObject(readTextValue(value));
    if (typeof reading === 'string') return { problem: `${name} ${reading}.` };
    found[field] = reading;
  }
  return { fields: found };
}

function spell(lowered: string): string {
  return lowered.replaceAll(/(?:^|-)[a-z]/g, (letter) => letter.toUpperCase());
}

/** Or what is wrong with it, as a phrase. */
function readObject(text: string): object | string {
  const reading = readJson(Buffer.from(text), text, defaultJsonLimits);
  if (reading.kind === 'malformed') return 'must be a JSON object';
  const { value, issues } = reading;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'must be a JSON object';
  return issues[0] ?? value;
}
