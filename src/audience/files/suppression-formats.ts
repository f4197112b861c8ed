import { type Clock, dateOf, now, parseTimestamp } from '../../platform/clock.ts';
import type { Channel } from '../../channels/channel.ts';
import type { AddressedChannel } from '../contact-fields.ts';
import type { SuppressionReason, SuppressionScope } from '../schema.ts';
import { addressedChannels, normaliseAddress, nounOfAddress } from '../suppressed-address.ts';

/**
 * What files of suppressions say, by whom they are from:
 *
 * - SendGrid: `GET /v3/suppression/{bounces,blocks,invalid_emails,spam_reports,unsubscribes}` answers with arrays of
 *   `{ created, email, reason, status }`, and its web interface gives the same as CSV (`status,reason,email,created`).
 *   Nothing in them says which of the lists it is. https://www.twilio.com/docs/sendgrid/api-reference/bounces-api
 * - Postmark: `GET /message-streams/{id}/suppressions/dump` answers with `{ Suppressions: [{ EmailAddress,
 *   SuppressionReason, Origin, CreatedAt }] }`. Who unsubscribed by a link is a `ManualSuppression` of the `Recipient`.
 *   https://postmarkapp.com/developer/api/suppressions-api
 * - Mailgun: `GET /v3/{domain}/{bounces,complaints,unsubscribes}` answers with `{ items: [{ address, code, error, tags,
 *   created_at }], paging }`; the same columns as CSV. Times are of RFC 2822.
 *   https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/bounces
 * - Resend: `GET /suppressions` answers with `{ object, has_more, data: [{ email, origin, source_id, created_at }] }`.
 *   https://resend.com/docs/api-reference/suppressions/list-suppressions
 * - SES: `ListSuppressedDestinations` of API v2 answers with `{ SuppressedDestinationSummaries: [{ EmailAddress, Reason,
 *   LastUpdateTime }], NextToken }`; the time is a number, and the AWS CLI writes a text.
 *   https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_ListSuppressedDestinations.html
 * - `csv`: columns of our own names.
 */
export const suppressionFormats = ['sendgrid', 'postmark', 'mailgun', 'resend', 'ses', 'csv'] as const;

export type SuppressionFormat = (typeof suppressionFormats)[number];

/** Lists of providers that have one for each reason. */
export const suppressionLists = ['bounces', 'blocks', 'invalid', 'complaints', 'unsubscribes'] as const;

export type SuppressionList = (typeof suppressionLists)[number];

/** A row by the names of `knownFields`, each with what the file has there. */
export type Fields = Readonly<Partial<Record<KnownField, string>>>;

export const knownFields = [
  'address',
  'channel',
  'reason',
  'scope',
  'note',
  'created_at',
  'origin',
  'status',
] as const;

export type KnownField = (typeof knownFields)[number];

export type FileSuppression = {
  channel: AddressedChannel;
  address: string;
  reason: SuppressionReason;
  scope: SuppressionScope;
  note: string | null;
  /** When it came to be where the file is from; null if the file does not say, or not in a way that is known. */
  saidAt: Date | null;
};

/** What is wrong with a row, and with which of its fields. */
export type FieldIssue = { field: KnownField; reason: string };

type Judgement = Pick<FileSuppression, 'reason' | 'scope'>;

type Format = {
  /** The names of columns and fields, in lower case, and what they hold. */
  fields: Readonly<Record<string, KnownField>>;
  /** Those of its lists that can be imported, if the file does not say which it is. */
  lists: readonly SuppressionList[] | null;
  judge: (fields: Fields, list: SuppressionList | null) => Judgement | FieldIssue;
};

const hardBounce: Judgement = { reason: 'hard_bounce', scope: 'all' };
const complaint: Judgement = { reason: 'complaint', scope: 'all' };
const manual: Judgement = { reason: 'manual', scope: 'all' };
/** Of providers that know no more than that: what kept campaigns away there does so here, and receipts go on. */
const unsubscribe: Judgement = { reason: 'unsubscribe', scope: 'marketing' };

function judgeByList({ status }: Fields, list: SuppressionList | null): Judgement | FieldIssue {
  switch (list) {
    case 'bounces':
      // RFC 3463 §2: of the class 4 is what may end.
      return status?.startsWith('4') === true ? { reason: 'soft_bounces', scope: 'all' } : hardBounce;
    case 'invalid':
      return hardBounce;
    case 'complaints':
      return complaint;
    case 'unsubscribes':
      return unsubscribe;
    case 'blocks':
    case null:
      throw new Error('a list that is refused was read');
  }
}

/** `judgements` by what the reason is called there, in lower case. */
function judgeByReason(judgements: Readonly<Record<string, Judgement>>): Format['judge'] {
  const names = Object.keys(judgements).join(', ');
  return ({ reason = '' }) =>
    new Map(Object.entries(judgements)).get(reason.toLowerCase()) ?? {
      field: 'reason',
      reason: `must be one of ${names}`,
    };
}

const formats: Readonly<Record<SuppressionFormat, Format>> = {
  sendgrid: {
    fields: { email: 'address', reason: 'note', status: 'status', created: 'created_at' },
    lists: ['bounces', 'invalid', 'complaints', 'unsubscribes'],
    judge: judgeByList,
  },
  mailgun: {
    fields: { address: 'address', error: 'note', created_at: 'created_at' },
    lists: ['bounces', 'complaints', 'unsubscribes'],
    judge: judgeByList,
  },
  postmark: {
    fields: {
      emailaddress: 'address',
      suppressionreason: 'reason',
      origin: 'origin',
      createdat: 'created_at',
    },
    lists: null,
    judge: (fields, list) =>
      fields.origin?.toLowerCase() === 'recipient' && fields.reason?.toLowerCase() === 'manualsuppression'
        ? unsubscribe
        : judgeByReason({ hardbounce: hardBounce, spamcomplaint: complaint, manualsuppression: manual })(
            fields,
            list,
          ),
  },
  resend: {
    fields: { email: 'address', origin: 'reason', created_at: 'created_at' },
    lists: null,
    judge: judgeByReason({ bounce: hardBounce, complaint, manual }),
  },
  ses: {
    fields: { emailaddress: 'address', reason: 'reason', lastupdatetime: 'created_at' },
    lists: null,
    judge: judgeByReason({ bounce: hardBounce, complaint }),
  },
  csv: {
    fields: {
      address: 'address',
      email: 'address',
      phone_number: 'address',
      channel: 'channel',
      reason: 'reason',
      scope: 'scope',
      note: 'note',
      created_at: 'created_at',
    },
    lists: null,
    judge: (fields) => {
      const { reason = 'manual', scope } = fields;
      const judged = judgeByReason({
        hard_bounce: hardBounce,
        soft_bounces: { reason: 'soft_bounces', scope: 'all' },
        complaint,
        unsubscribe,
        manual,
      })({ reason }, null);
      if ('field' in judged || scope === undefined) return judged;
      if (scope !== 'all' && scope !== 'marketing')
        return { field: 'scope', reason: 'must be all or marketing' };
      return scope === 'marketing' && judged.reason !== 'manual' && judged.reason !== 'unsubscribe'
        ? { field: 'scope', reason: `must be all for ${judged.reason}` }
        : { ...judged, scope };
    },
  },
};

/** What a column or a field of the format holds; undefined if that is of no interest. */
export function fieldNamed(format: SuppressionFormat, name: string): KnownField | undefined {
  return new Map(Object.entries(formats[format].fields)).get(name.trim().toLowerCase());
}

/** Why a list of a provider cannot be imported, as a sentence; null if it can. */
export function refuseList(format: SuppressionFormat, list: SuppressionList | null): string | null {
  const { lists } = formats[format];
  if (lists === null)
    return list === null ? null : `Files of ${format} say which list they are: leave --list out.`;
  if (list === null) return `Say with --list which list of ${format} the file is: ${lists.join(', ')}.`;
  if (lists.includes(list)) return null;
  return list === 'blocks'
    ? `${format} keeps nothing from addresses for being on its list of blocks, which speak of messages: there is nothing to import.`
    : `${format} has no such list: give one of ${lists.join(', ')}.`;
}

export type ReadContext = {
  clock: Clock;
  format: SuppressionFormat;
  list: SuppressionList | null;
  /** Of rows that name none. */
  channel: AddressedChannel;
};

export function readSuppression(fields: Fields, context: ReadContext): FileSuppression | FieldIssue {
  const channel = fields.channel === undefined ? context.channel : findChannel(fields.channel);
  if (channel === undefined)
    return { field: 'channel', reason: `must be one of ${addressedChannels.join(', ')}` };
  const address = normaliseAddress(channel, fields.address ?? '');
  if (address === null) return { field: 'address', reason: `must be ${nounOfAddress(channel)}` };
  const judged = formats[context.format].judge(fields, context.list);
  if ('field' in judged) return judged;
  const { note = '', created_at: createdAt = '' } = fields;
  return {
    channel,
    address,
    ...judged,
    note: note === '' ? null : toNote(note),
    saidAt: readTime(createdAt, now(context.clock)),
  };
}

function findChannel(name: string): AddressedChannel | undefined {
  const wanted = name.toLowerCase() as Channel;
  return addressedChannels.find((channel) => channel === wanted);
}

const noteLengthMax = 255;

/** What is longer is cut off: an answer of a server may be of any length. */
function toNote(text: string): string {
  const plain = Buffer.from(
    text.replace(/[\0-\x1f\x7f]+/g, ' ').slice(0, 4 * noteLengthMax),
    'utf8',
  ).toString();
  return Array.from(plain).slice(0, noteLengthMax).join('');
}

const rfc2822Pattern =
  /^(?:[A-Za-z]{3}, )?\d{1,2} [A-Za-z]{3} \d{4} \d{2}:\d{2}:\d{2} (?:UTC|GMT|[+-]\d{4})$/;

/**
 * Seconds or milliseconds since 1970, RFC 3339 or RFC 2822. What lies ahead is of now: the word of a person that has not
 * been said yet could not be taken back.
 */
function readTime(text: string, at: Date): Date | null {
  const epochMs = /^\d{1,14}(?:\.\d+)?$/.test(text)
    ? Number(text) * (Number(text) < secondsMax ? 1_000 : 1)
    : rfc2822Pattern.test(text)
      ? // eslint-disable-next-line no-restricted-globals -- parses, and does not read the present time
        Date.parse(text)
      : parseTimestamp(text);
  if (epochMs === null || Number.isNaN(epochMs) || epochMs < 0) return null;
  return dateOf(Math.min(epochMs, at.getTime()));
}

/** As seconds this is the year 5138, as milliseconds 1973. */
const secondsMax = 100_000_000_000;
