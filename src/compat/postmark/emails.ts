import { instantOfId } from '../../platform/ids.ts';
import { isObject, rename, withoutNulls } from '../fields.ts';
import { codeOf } from './errors.ts';

/**
 * Postmark's emails as ours. Whatever is not of its form is left as it is, so that the check of what comes out refuses it by the
 * name that the program gave it.
 */

const names = {
  From: 'from',
  To: 'to',
  Cc: 'cc',
  Bcc: 'bcc',
  ReplyTo: 'reply_to',
  Subject: 'subject',
  HtmlBody: 'html',
  TextBody: 'text',
  TemplateAlias: 'template_id',
  TemplateModel: 'variables',
  Metadata: 'metadata',
};

/** The stream of transactional mail, which is all that is sent here. */
const transactionalStream = 'outbound';

/** Body of `POST /email` and of `POST /email/withTemplate` as that of `POST /email/send`. */
export function toEmail(value: unknown): unknown {
  if (!isObject(value)) return value;
  const { MessageStream, Tag, Headers, Attachments, TemplateId, ...fields } = withoutBlanks(value);
  const renamed = rename(fields, names);
  for (const field of ['to', 'cc', 'bcc']) {
    const list = renamed[field];
    if (typeof list === 'string') renamed[field] = splitAddresses(list);
  }
  return {
    ...renamed,
    ...(typeof fields.From === 'string' &&
      !fields.From.trimEnd().endsWith('>') && { from_name: fields.From }),
    ...(TemplateId !== undefined && {
      template_id: typeof TemplateId === 'number' ? String(TemplateId) : TemplateId,
    }),
    ...(Tag !== undefined && { tags: [Tag] }),
    ...(Headers !== undefined && { headers: toHeaders(Headers) }),
    ...(Attachments !== undefined && { attachments: toAttachments(Attachments) }),
    ...(MessageStream !== undefined && MessageStream !== transactionalStream && { MessageStream }),
  };
}

/** Body of `POST /email/batch`: a list, of which each has its result. */
export function toBatch(value: unknown): unknown {
  return { emails: Array.isArray(value) ? value.map(toEmail) : value, on_error: 'skip' };
}

/** Body of `POST /email/batchWithTemplates`. */
export function toTemplateBatch(value: unknown): unknown {
  return isObject(value) ? toBatch(value.Messages) : value;
}

/** Programs give an empty text for what they leave out. */
function withoutBlanks(fields: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(withoutNulls(fields)).filter(([, value]) => value !== ''));
}

/** At commas that are in no quoted string (RFC 5322 §3.4). In one pass: it is looked at before anything bounds its length. */
function splitAddresses(list: string): string[] {
  const addresses: string[] = [];
  let start = 0;
  let isQuoted = false;
  for (let place = 0; place < list.length; place += 1) {
    const character = list[place];
    if (isQuoted && character === '\\') place += 1;
    else if (character === '"') isQuoted = !isQuoted;
    else if (character === ',' && !isQuoted) {
      addresses.push(list.slice(start, place));
      start = place + 1;
    }
  }
  return [...addresses, list.slice(start)]
    .map((address) => address.trim())
    .filter((address) => address !== '');
}

function toHeaders(headers: unknown): unknown {
  if (!Array.isArray(headers)) return headers;
  const pairs = (headers as unknown[]).map((header) =>
    isObject(header) ? [header.Name, header.Value] : [undefined, header],
  );
  return pairs.every(([name]) => typeof name === 'string')
    ? Object.fromEntries(pairs as [string, unknown][])
    : headers;
}

function toAttachments(attachments: unknown): unknown {
  if (!Array.isArray(attachments)) return attachments;
  return (attachments as unknown[]).map((attachment) => {
    if (!isObject(attachment)) return attachment;
    // How long it is and how it is shown follow from the rest.
    const {
      ContentID,
      ContentLength: _length,
      Disposition: _disposition,
      ...fields
    } = withoutBlanks(attachment);
    return {
      ...rename(fields, { Name: 'filename', Content: 'content', ContentType: 'content_type' }),
      ...(ContentID !== undefined && {
        content_id: typeof ContentID === 'string' ? ContentID.replace(/^cid:/, '') : ContentID,
      }),
    };
  });
}

/** The answer to one email. */
export function showSent({ id }: { id: string }): Record<string, unknown> {
  return { ErrorCode: 0, Message: 'OK', MessageID: id, SubmittedAt: instantOfId(id).toISOString() };
}

type BatchResult = { id?: string; error?: { name: string; message: string } };

/** The answer to a batch: a list, in the order of the emails. */
export function showBatch({ data }: { data: readonly BatchResult[] }): Record<string, unknown>[] {
  return data.map(({ id, error }) =>
    id === undefined
      ? { ErrorCode: codeOf(error?.name ?? ''), Message: error?.message ?? '' }
      : showSent({ id }),
  );
}
