import { createHmac, timingSafeEqual } from 'node:crypto';
import { sanitiseDiagnostic } from '../../../src/channels/diagnostic.ts';
import type { EmailReport } from '../../../src/channels/email/email.ts';
import type { FailureClass } from '../../../src/channels/outcome.ts';
import type { ProviderCallback, RawCallbackRequest } from '../../../src/channels/provider-callbacks.ts';

/** As Skylark writes it: several events in one body. */
export type SkylarkEvent = {
  event: string;
  id?: string;
  to?: string;
  reason?: string;
  detail?: string;
  token?: string;
};

/** Some thousand events. */
const rawBytesMax = 1_048_576;

export function skylarkCallbacks(key: string): readonly ProviderCallback<EmailReport>[] {
  return [
    {
      path: 'events',
      rawBytesMax,
      read: (request) => (isSigned(key, request) ? readEvents(request) : 'forged'),
    },
  ];
}

/** HMAC-SHA-256 over the body as it came. */
export function signEvents(key: string, body: string | Uint8Array): string {
  return createHmac('sha256', key).update(body).digest('hex');
}

function isSigned(key: string, { body, header }: RawCallbackRequest): boolean {
  const given = Buffer.from(header('skylark-signature') ?? '');
  const wanted = Buffer.from(signEvents(key, body));
  return given.length === wanted.length && timingSafeEqual(given, wanted);
}

const statuses: Readonly<Record<string, EmailReport['status']>> = {
  deferred: 'delayed',
  delivered: 'delivered',
  bounced: 'bounced',
  complained: 'complained',
  opened: 'opened',
};

const reasons: Readonly<Record<string, FailureClass>> = {
  invalid: 'mailbox_not_found',
  full: 'mailbox_full',
  spam: 'spam',
};

function readEvents({ body, readToken }: RawCallbackRequest): readonly EmailReport[] | 'unreadable' {
  const events = parseEvents(body);
  if (events === null) return 'unreadable';
  return events.flatMap(({ event, id, to, reason, detail, token }) => {
    const status = statuses[event];
    if (status === undefined) return [];
    return [
      {
        providerMessageId: id ?? null,
        reference: token === undefined ? null : readToken(token),
        to: to ?? null,
        senderName: null,
        status,
        failure: reason === undefined ? null : (reasons[reason] ?? 'other'),
        diagnostic: detail === undefined ? null : sanitiseDiagnostic(detail),
      },
    ];
  });
}

function parseEvents(body: Buffer): readonly SkylarkEvent[] | null {
  try {
    const { events } = JSON.parse(body.toString('utf8')) as { events: unknown };
    return Array.isArray(events) ? (events as readonly SkylarkEvent[]) : null; // As its documentation says.
  } catch {
    return null;
  }
}
