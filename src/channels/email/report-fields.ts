import type { RecipientStatement, ReportedAction } from './report-recipient.ts';

/**
 * The machine-readable part of a report: groups of fields like those of a mail header (RFC 3464 §2.1, RFC 5965 §3).
 * What servers really write is read as well: no group for the message as a whole, fields in any case and order,
 * lines that go on without the indent that a folded field needs, no types before addresses and hosts.
 */

/** Names in lower case; of a field that is repeated the first one counts. */
export type FieldGroup = ReadonlyMap<string, string>;

/** Our messages have one recipient each; what forwards them may have added some. */
const recipientsMax = 50;

/** A report has about ten. Without a limit a sender could make us keep a million. */
const fieldsPerGroupMax = 60;
const groupsMax = 2 * recipientsMax;

/** Longer ones are cut: nothing that we look for comes so late. */
const valueCharsMax = 4_000;
const nameCharsMax = 60;

const lineEnd = /\r\n|\n|\r/;
const fieldName = /^[!-9;-~]+$/;

/** Groups stand apart by empty lines. Any text will do: what is no field continues the one before it. */
export function readFieldGroups(text: string): FieldGroup[] {
  const groups: Map<string, string>[] = [];
  let group = new Map<string, string>();
  let current: string | null = null;
  const closeGroup = () => {
    if (group.size > 0) groups.push(group);
    group = new Map();
    current = null;
  };

  for (const line of text.split(lineEnd)) {
    if (groups.length >= groupsMax) break;
    if (line.trim() === '') {
      closeGroup();
      continue;
    }
    const name = fieldNameOf(line);
    if (name === null) {
      if (current !== null) group.set(current, appendLine(group.get(current) ?? '', line));
      continue;
    }
    // Some write one recipient after the other without the empty line between them.
    if (name === 'final-recipient' && group.has(name)) closeGroup();
    current = group.has(name) || group.size >= fieldsPerGroupMax ? null : name;
    if (current !== null) group.set(current, appendLine('', line.slice(line.indexOf(':') + 1)));
  }
  closeGroup();
  return groups.slice(0, groupsMax);
}

/** In lower case; null for a line that continues the field before it. */
function fieldNameOf(line: string): string | null {
  const colon = line.indexOf(':');
  if (colon < 1 || colon > nameCharsMax) return null;
  const name = line.slice(0, colon).trimEnd();
  return fieldName.test(name) ? name.toLowerCase() : null;
}

function appendLine(value: string, line: string): string {
  if (value.length >= valueCharsMax) return value;
  const added = line.slice(0, valueCharsMax).trim();
  return value === '' ? added : `${value} ${added}`;
}

const recipientFields = ['final-recipient', 'original-recipient', 'action', 'status', 'diagnostic-code'];

/** Whether a text that does not say what it is looks like the fields of a delivery report. */
export function isDeliveryStatus(text: string): boolean {
  return /^(?:final|original)-recipient[ \t]*:/im.test(text);
}

/**
 * What a delivery report states of each recipient (RFC 3464 §2.3), at most 50. A statement without an action has the
 * one that its status implies, or `silentAction` where it has neither.
 */
export function readDeliveryStatus(text: string, silentAction: ReportedAction): RecipientStatement[] {
  const groups = readFieldGroups(text);
  const reporter = groups.map((group) => group.get('reporting-mta')).find((value) => value !== undefined);
  return joinTornGroups(groups)
    .slice(0, recipientsMax)
    .map((group) => toStatement(group, reporter, silentAction));
}

/** An empty line in the middle of a recipient's fields makes two groups of them: the second names no recipient. */
function joinTornGroups(groups: readonly FieldGroup[]): FieldGroup[] {
  const joined: FieldGroup[] = [];
  for (const group of groups) {
    if (!recipientFields.some((name) => group.has(name))) continue;
    const previous = joined.at(-1);
    const isTorn = previous !== undefined && !isNamed(group) && isNamed(previous) && !isComplete(previous);
    if (isTorn) joined.splice(-1, 1, new Map([...group, ...previous]));
    else joined.push(group);
  }
  // A mailbox format's own field `Status`, for one, makes no recipient where others are named.
  return joined.some(isNamed) ? joined.filter(isNamed) : joined;
}

function isNamed(group: FieldGroup): boolean {
  return group.has('final-recipient') || group.has('original-recipient');
}

function isComplete(group: FieldGroup): boolean {
  return group.has('action') && group.has('status');
}

function toStatement(
  group: FieldGroup,
  reporter: string | undefined,
  silentAction: ReportedAction,
): RecipientStatement {
  const status = readStatus(group.get('status') ?? '');
  const host = group.get('remote-mta') ?? reporter;
  const finalAddress = readRecipientAddress(group.get('final-recipient') ?? '');
  return {
    action: readAction(group.get('action') ?? '') ?? actionOfStatus(status) ?? silentAction,
    // The original one is what we wrote to; the final one may be where it was forwarded.
    address: readRecipientAddress(group.get('original-recipient') ?? '') ?? finalAddress,
    finalAddress,
    isAliasTarget: false,
    status,
    diagnostic: withoutType(group.get('diagnostic-code') ?? ''),
    supplement: group.get('x-supplementary-info') ?? '',
    remote: host === undefined ? null : readHost(host),
  };
}

const actions: Readonly<Record<string, ReportedAction>> = {
  failed: 'failed',
  failure: 'failed',
  error: 'failed',
  undeliverable: 'failed',
  bounced: 'failed',
  delayed: 'delayed',
  delay: 'delayed',
  delivered: 'delivered',
  relayed: 'relayed',
  expanded: 'expanded',
};

function readAction(value: string): ReportedAction | null {
  const word = /^[a-z]{1,20}/.exec(value.toLowerCase())?.[0] ?? '';
  return Object.hasOwn(actions, word) ? (actions[word] ?? null) : null;
}

function readStatus(value: string): string | null {
  return /(?<![\d.])[245]\.\d{1,3}\.\d{1,3}(?![\d.])/.exec(value.slice(0, 200))?.[0] ?? null;
}

function actionOfStatus(status: string | null): ReportedAction | null {
  if (status === null) return null;
  if (status.startsWith('2')) return 'delivered';
  return status.startsWith('4') ? 'delayed' : 'failed';
}

/** `smtp; 550 …`, `X-Postfix; host …`: the words without the type, which is not used. */
function withoutType(value: string): string {
  return value.replace(/^\s*[\w.-]{1,30}\s*;/, '').trim();
}

/** RFC 3464 §2.1.2; `utf-8` is that of RFC 6533 §3, and an address without any type is common. */
const addressTypes: ReadonlySet<string> = new Set([
  '',
  'rfc822',
  'utf-8',
  'smtp',
  'internet',
  'local',
  'dns',
]);

/** `rfc822; someone@example.com`, in brackets or with a comment; null for X.400, a fax number, a bare user. */
function readRecipientAddress(value: string): string | null {
  const semicolon = value.indexOf(';');
  const type = value.slice(0, Math.max(semicolon, 0)).trim().toLowerCase();
  if (!addressTypes.has(type)) return null;
  const [first = ''] = value
    .slice(semicolon + 1)
    .trim()
    .split(/\s/, 1);
  const address = decodeUtf8Address(first.replace(/^<|>$/g, ''));
  return /^[^@]+@[^@]+$/.test(address) ? address : null;
}

/** RFC 6533 §3: `\x{E9}` in a report that could not be sent as UTF-8. */
function decodeUtf8Address(text: string): string {
  return text.slice(0, valueCharsMax).replace(/\\x\{([0-9a-f]{2,6})\}/gi, (escape, hex: string) => {
    const codePoint = Number.parseInt(hex, 16);
    return codePoint > 0x10ffff ? escape : String.fromCodePoint(codePoint);
  });
}

/** `dns; mx.example.com (192.0.2.1, …)`: the name, without the dot at its end. */
function readHost(value: string): string | null {
  const [host = ''] = value
    .slice(value.indexOf(';') + 1)
    .trim()
    .split(/[\s(]/, 1);
  return host === '' ? null : host.replace(/\.$/, '');
}
