import { InvalidArgumentError } from 'commander';
import { scopeBundles, scopes } from '../accounts/accounts.ts';
import { type Channel, channels } from '../channels/channel.ts';
import { parseBytes } from '../platform/bytes.ts';
import { isLongerThan, toComposed } from '../platform/characters.ts';
import { parseTimestamp } from '../platform/clock.ts';
import { isUuid } from '../platform/ids.ts';
import { parseNetwork } from '../platform/network.ts';
import { didYouMean } from '../platform/suggestion.ts';
import { programName } from '../platform/program-name.ts';

/**
 * What operators type, as typed values. Each function throws commander's InvalidArgumentError with a sentence on
 * what is allowed; commander puts the option and what was given for it in front.
 */

const nameLengthMax = 255;

export function parseName(text: string): string {
  const name = toComposed(text.trim());
  if (name === '' || isLongerThan(name, nameLengthMax) || /\p{Cc}/u.test(name)) {
    throw new InvalidArgumentError(
      `It must have 1 to ${nameLengthMax} characters, and no control characters.`,
    );
  }
  return name;
}

/** An id, or a name: which one it is, and whose, is looked up. */
export function parseOrganization(text: string): string {
  return isUuid(text) ? text.toLowerCase() : parseName(text);
}

export function parseOrganizationId(text: string): string {
  if (!isUuid(text)) {
    throw new InvalidArgumentError(`It must be an id as "${programName()} org list" shows it.`);
  }
  return text.toLowerCase();
}

export function parseKeyId(text: string): string {
  if (!isUuid(text)) {
    throw new InvalidArgumentError(
      `It must be an id as "${programName()} key list" shows it, not the key itself.`,
    );
  }
  return text.toLowerCase();
}

export function parseScopes(text: string): string[] {
  const names = [...new Set(text.split(',').map((name) => name.trim()))].filter((name) => name !== '');
  const known: readonly string[] = [...Object.keys(scopeBundles), ...scopes];
  const unknown = names.filter((name) => !known.includes(name));
  if (unknown.length > 0) {
    const shown = unknown.map((name) => `${name}${didYouMean(name, known)}`).join(', ');
    throw new InvalidArgumentError(`There is no scope ${shown}. ${listScopes()}`);
  }
  if (names.length === 0) throw new InvalidArgumentError(`It must name at least one scope. ${listScopes()}`);
  return names;
}

/** More than this is a list that nobody reads any more. */
const networksMax = 50;

/** For an option that may be given several times: an address or a CIDR range, as the range that it means. */
export function collectNetwork(text: string, collected: string[] = []): string[] {
  const network = parseNetwork(text.trim());
  if (network === null)
    throw new InvalidArgumentError('It must be an address or a range, such as 203.0.113.7 or 2001:db8::/32.');
  if (collected.length === networksMax)
    throw new InvalidArgumentError(`It can be given ${networksMax} times at most.`);
  return [...collected, network];
}

/** For help and for errors. */
export function listScopes(): string {
  return `Scopes are ${scopes.join(', ')}; ${Object.keys(scopeBundles).join(', ')} stand for several of them.`;
}

/** Milliseconds since 1970. Whether it lies in the future, only the clock can say. */
export function parseInstant(text: string): number {
  const epochMs = parseTimestamp(text);
  if (epochMs === null) {
    throw new InvalidArgumentError(
      'It must be an RFC 3339 time with an offset, such as 2030-01-31T12:00:00Z.',
    );
  }
  return epochMs;
}

export function parseChannel(text: string): Channel {
  const channel = channels.find((name) => name === text);
  if (channel === undefined) {
    const hint = didYouMean(text, channels);
    throw new InvalidArgumentError(`It must be one of ${channels.join(', ')}${hint}.`);
  }
  return channel;
}

/** For an option that may be given several times. */
export function collectChannel(text: string, collected: Channel[] = []): Channel[] {
  return [...collected, parseChannel(text)];
}

/** PostgreSQL's `integer`. */
const integerMax = 2_147_483_647;

/** At least 1: an organization that may ask nothing is better served by revoking its keys. */
export function parseWindowLimit(text: string): number {
  const limit = parseCount(text, integerMax);
  if (limit === null || limit === 0)
    throw new InvalidArgumentError(`It must be a number from 1 to ${integerMax}.`);
  return limit;
}

const keptDaysMax = 3_650;

/** Commander takes null for a value that is missing. */
export function parseKeptDays(text: string): number | 'unlimited' {
  return readKeptDays(text, 1);
}

/** A message may be tried for three days, and what is heard of it comes in the days after. */
const messagesKeptDaysMin = 7;

/** The same for messages, which are kept for longer than they are tried. */
export function parseMessagesKeptDays(text: string): number | 'unlimited' {
  return readKeptDays(text, messagesKeptDaysMin);
}

function readKeptDays(text: string, least: number): number | 'unlimited' {
  if (text === 'unlimited') return text;
  const days = parseCount(text, keptDaysMax);
  if (days === null || days < least)
    throw new InvalidArgumentError(
      `It must be a number of days from ${least} to ${keptDaysMax}, or unlimited.`,
    );
  return days;
}

/** `email=1000` or `email=unlimited`, the latter as null. */
export function collectQuota(
  text: string,
  collected: Partial<Record<Channel, number | null>> = {},
): Partial<Record<Channel, number | null>> {
  const [channel, quota] = parseAssignment(text, channels, Number.MAX_SAFE_INTEGER);
  return { ...collected, [channel]: quota };
}

/** Commander takes null for a value that is missing. */
export function parseStorageLimit(text: string): number | 'unlimited' {
  if (text === 'unlimited') return text;
  const bytes = parseBytes(text);
  if (bytes === null)
    throw new InvalidArgumentError('It must be a size such as 500MB or 20GB, up to 1000TB, or unlimited.');
  return bytes;
}

const limitedNouns = ['domains', 'segments', 'events'] as const;

type LimitedNoun = (typeof limitedNouns)[number];

/** `domains=5` or `domains=unlimited`, the latter as null. */
export function collectLimit(
  text: string,
  collected: Partial<Record<LimitedNoun, number | null>> = {},
): Partial<Record<LimitedNoun, number | null>> {
  const [noun, limit] = parseAssignment(text, limitedNouns, integerMax);
  return { ...collected, [noun]: limit };
}

function parseAssignment<Name extends string>(
  text: string,
  names: readonly Name[],
  maximum: number,
): [Name, number | null] {
  const [left, right, ...rest] = text.split('=');
  const name = names.find((known) => known === left);
  if (name === undefined || right === undefined || rest.length > 0) {
    throw new InvalidArgumentError(
      `It must be NAME=NUMBER or NAME=unlimited, the name one of ${names.join(', ')}.`,
    );
  }
  if (right === 'unlimited') return [name, null];
  const count = parseCount(right, maximum);
  if (count === null)
    throw new InvalidArgumentError(`The number must be from 0 to ${maximum}, or unlimited.`);
  return [name, count];
}

/** Of lists that are printed. */
export const defaultPageSize = 100;
const pageSizeMax = 1_000;

export function parsePageSize(text: string): number {
  const size = parseCount(text, pageSizeMax);
  if (size === null || size === 0)
    throw new InvalidArgumentError(`It must be a number from 1 to ${pageSizeMax}.`);
  return size;
}

/** A whole number in plain digits, or null for anything else and for what is over the maximum. */
function parseCount(text: string, maximum: number): number | null {
  const count = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN;
  return count <= maximum ? count : null;
}
