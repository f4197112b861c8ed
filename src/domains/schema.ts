import { type Static, Type } from 'typebox';
import { getPublicSuffix } from 'tldts';
import { parseDomain } from '../channels/email/email.ts';
import { instant, literals, textOrNull } from '../platform/http/shapes.ts';
import type { TextFormat } from '../platform/http/validation.ts';
import { recordKinds } from './records.ts';

/** Text formats of this room's schemas, to be handed to `createValidation`. */
export const domainFormats: Record<string, TextFormat> = {
  'sending-domain': {
    test: (text) => parseSendingDomain(text) !== null,
    mustBe: 'a domain name that can be registered, such as mail.example.com',
  },
  subdomain: { test: isSubdomain, mustBe: 'a name below the domain, such as send' },
};

/** A domain name that can be registered, as lower-case A-labels: no public suffix, address, URL or email address. */
export function parseSendingDomain(text: string): string | null {
  const name = parseDomain(text);
  if (name === null) return null;
  return getPublicSuffix(name, { allowPrivateDomains: true, validateHostname: false }) === name ? null : name;
}

const labelPattern = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;

/** One label or a few, in lower case: upper case would be another text for the same name. */
function isSubdomain(text: string): boolean {
  return text.length <= 100 && text.split('.').every((label) => labelPattern.test(label));
}

/** Where bounces come back to when a registration does not say. */
export const defaultReturnPathSubdomain = 'send';

const subdomain = (description: string) => Type.String({ format: 'subdomain', description });

/** Body of `POST /email/domains`. */
export const domainBody = Type.Object(
  {
    name: Type.String({ maxLength: 253, format: 'sending-domain', description: 'The domain to send from.' }),
    return_path_subdomain: Type.Optional(
      subdomain('The subdomain that bounces return to; `send` when omitted.'),
    ),
    tracking_subdomain: Type.Optional(
      Type.Union([subdomain('The subdomain that tracked links point to.'), Type.Null()], {
        description: 'The subdomain that tracked links point to; must differ from `return_path_subdomain`.',
      }),
    ),
    open_tracking: Type.Optional(Type.Boolean({ description: 'Whether opens are tracked by default.' })),
    click_tracking: Type.Optional(Type.Boolean({ description: 'Whether clicks are tracked by default.' })),
  },
  {
    title: 'RegisterDomainRequest',
    additionalProperties: false,
    rules: ['domain-name', 'domain-subdomains'],
  },
);

export type DomainBody = Static<typeof domainBody>;

const dnsRecord = Type.Object(
  {
    record: literals(recordKinds, { title: 'DnsRecordPurpose' }),
    type: literals(['TXT', 'MX', 'CNAME']),
    name: Type.String(),
    value: Type.String(),
    priority: Type.Union([Type.Integer(), Type.Null()]),
    required: Type.Boolean(),
    status: literals(['pending', 'verified', 'failed'], { title: 'DnsRecordStatus' }),
    found: Type.Array(Type.String(), { description: 'What the last check found.' }),
    last_checked_at: Type.Union([instant, Type.Null()], {
      description: 'When the DNS last answered, even if it had no such record.',
    }),
  },
  { title: 'DnsRecord' },
);

export const domainRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Type.String(),
    status: literals(['pending', 'verified'], { title: 'DomainStatus' }),
    records: Type.Array(dnsRecord, { description: 'What to publish in the DNS.' }),
    return_path_subdomain: Type.String(),
    tracking_subdomain: textOrNull,
    open_tracking: Type.Boolean(),
    click_tracking: Type.Boolean(),
    health: Type.Object(
      {
        state: literals(['ok', 'degraded']),
        since: Type.Union([instant, Type.Null()]),
        issues: Type.Array(Type.String()),
      },
      { title: 'DomainHealth', description: 'Whether a verified domain still has its records.' },
    ),
    last_checked_at: Type.Union([instant, Type.Null()]),
    verified_at: Type.Union([instant, Type.Null()]),
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Domain' },
);

export type DomainRecord = Static<typeof domainRecord>;
