import { dkimRecordName, dkimRecordValue, publishesDkimKey } from '../channels/email/email.ts';
import type { DnsAnswer, MxRecord } from '../platform/dns/dns.ts';

/** The hosts of this installation that other people's records point to. */
export type InstanceHosts = {
  /** Takes bounces; its own SPF record names the machines that send. Null if no bounces are read. */
  bounceHost: string | null;
  /** Serves tracking links. */
  trackingHost: string;
};

/** What of a domain decides its records. */
export type DomainSettings = {
  name: string;
  returnPathSubdomain: string;
  trackingSubdomain: string | null;
  dkim: { selector: string; publicKey: string };
};

export const recordKinds = ['dkim', 'return_path_mx', 'return_path_spf', 'dmarc', 'tracking'] as const;

export type RecordKind = (typeof recordKinds)[number];

/** A record that the owner of a domain publishes. */
export type ExpectedRecord = {
  kind: RecordKind;
  type: 'TXT' | 'MX' | 'CNAME';
  name: string;
  value: string;
  priority: number | null;
  isRequired: boolean;
};

/** The return path of a domain's mail: bounces come back there, and SPF is asked there. */
export function returnPathHost({
  name,
  returnPathSubdomain,
}: Pick<DomainSettings, 'name' | 'returnPathSubdomain'>): string {
  return `${returnPathSubdomain}.${name}`;
}

/** Where links of a domain's mail lead to, once that name points to this installation. */
export function trackingHost(name: string, trackingSubdomain: string): string {
  return `${trackingSubdomain}.${name}`;
}

/** A return path puts 60 octets before the host, and an address has 254 (RFC 5321 §4.5.3.1.3). */
const returnPathHostLengthMax = 194;

export function hasRoomForReturnPath(
  settings: Pick<DomainSettings, 'name' | 'returnPathSubdomain'>,
): boolean {
  return returnPathHost(settings).length <= returnPathHostLengthMax;
}

/** Without a bounce host nothing is asked for at the return path: no mail leaves with it. */
export function listExpectedRecords(settings: DomainSettings, hosts: InstanceHosts): ExpectedRecord[] {
  const { name, trackingSubdomain, dkim } = settings;
  const records: ExpectedRecord[] = [
    {
      kind: 'dkim',
      type: 'TXT',
      name: dkimRecordName(name, dkim.selector),
      value: dkimRecordValue(dkim.publicKey),
      priority: null,
      isRequired: true,
    },
    ...(hosts.bounceHost === null ? [] : listReturnPathRecords(returnPathHost(settings), hosts.bounceHost)),
    {
      kind: 'dmarc',
      type: 'TXT',
      name: `_dmarc.${name}`,
      value: 'v=DMARC1; p=none;',
      priority: null,
      isRequired: false,
    },
  ];
  if (trackingSubdomain !== null) {
    records.push({
      kind: 'tracking',
      type: 'CNAME',
      name: trackingHost(name, trackingSubdomain),
      value: hosts.trackingHost,
      priority: null,
      isRequired: true,
    });
  }
  return records;
}

function listReturnPathRecords(returnPath: string, bounceHost: string): ExpectedRecord[] {
  return [
    {
      kind: 'return_path_mx',
      type: 'MX',
      name: returnPath,
      value: bounceHost,
      priority: 10,
      isRequired: true,
    },
    {
      kind: 'return_path_spf',
      type: 'TXT',
      name: returnPath,
      value: `v=spf1 include:${bounceHost} ~all`,
      priority: null,
      isRequired: true,
    },
  ];
}

/** The response of the DNS: all records of the type at the name, or that there was no response. */
export type Observation =
  { kind: 'seen'; found: readonly string[]; isAsExpected: boolean } | { kind: 'unknown'; detail: string };

/** Longer is no record that a person would want to read, and fills our tables. */
const foundCharsMax = 1_000;
const foundMax = 20;

export function observeTexts(
  record: ExpectedRecord,
  answer: DnsAnswer<string>,
  settings: DomainSettings,
  hosts: InstanceHosts,
): Observation {
  return observe(
    answer,
    (text) => text,
    (texts) => {
      switch (record.kind) {
        case 'dkim':
          // RFC 6376 §3.6.2.2: of several records a receiver may take any, and the second half of a key is none.
          return texts.length === 1 && texts.every((text) => publishesDkimKey(text, settings.dkim.publicKey));
        case 'return_path_spf':
          return hosts.bounceHost !== null && isSpfAsExpected(texts, hosts.bounceHost);
        case 'dmarc':
          return isDmarcAsExpected(texts);
        case 'return_path_mx':
        case 'tracking':
          throw new Error(`the record ${record.kind} is no text`);
      }
    },
  );
}

export function observeExchanges(record: ExpectedRecord, answer: DnsAnswer<MxRecord>): Observation {
  return observe(
    answer,
    ({ preference, exchange }) => `${preference} ${exchange}`,
    (exchanges) => exchanges.some(({ exchange }) => exchange === record.value),
  );
}

export function observeAlias(record: ExpectedRecord, answer: DnsAnswer<string>): Observation {
  return observe(
    answer,
    (target) => target,
    (targets) => targets.includes(record.value),
  );
}

function observe<T>(
  answer: DnsAnswer<T>,
  show: (found: T) => string,
  isAsExpected: (found: readonly T[]) => boolean,
): Observation {
  switch (answer.kind) {
    case 'failed':
      return { kind: 'unknown', detail: answer.detail };
    case 'absent':
      return { kind: 'seen', found: [], isAsExpected: false };
    case 'found': {
      const found = answer.records
        .slice(0, foundMax)
        .map((record) => show(record).slice(0, foundCharsMax).toWellFormed().replaceAll('\0', ''));
      return { kind: 'seen', found, isAsExpected: isAsExpected(answer.records) };
    }
  }
}

/** RFC 7208 §4.5: the version is a term of its own; two such records are an error for receivers. */
function isSpfAsExpected(texts: readonly string[], includedHost: string): boolean {
  const policies = texts
    .map((text) => text.trim().toLowerCase().split(/\s+/))
    .filter(([version]) => version === 'v=spf1');
  const [policy] = policies;
  return policies.length === 1 && policy?.some((term) => isIncludeOf(term, includedHost)) === true;
}

/** RFC 7208 §5.2: `include`, with or without the qualifier that stands for its default. */
function isIncludeOf(term: string, host: string): boolean {
  const target = /^\+?include:(.+?)\.?$/.exec(term)?.[1];
  return target === host;
}

/** RFC 7489 §6.6.3: what is no DMARC record is ignored, and of two nobody obeys either. */
function isDmarcAsExpected(texts: readonly string[]): boolean {
  const policies = texts.filter((text) => /^\s*v\s*=\s*DMARC1\s*(;|$)/.test(text));
  return policies.length === 1 && policies.every(isDmarc);
}

/** RFC 7489 §6.3: the version comes first, and a policy is required. */
function isDmarc(text: string): boolean {
  const tags = text.split(';').map((tag) => tag.replace(/\s+/g, ''));
  return tags[0] === 'v=DMARC1' && tags.some((tag) => /^p=(none|quarantine|reject)$/i.test(tag));
}
