import type { SenderType, SmsSender } from './provider.ts';

/** What may stand in the place of a text's sender: a name with a letter, or a number. */

/** 3GPP TS 23.040 §9.1.2.5: twenty semi-octets of address, which hold eleven characters of seven bits. */
const alphanumericLengthMax = 11;

/**
 * Letters, digits and single spaces between them, and the signs that most networks let through. All of them are one
 * septet of the default alphabet (3GPP TS 23.038 §6.2.1). The rest of that alphabet, letters with accents among it,
 * is left out: networks replace such characters, or refuse the text. A sign at the beginning would look like a number.
 */
const alphanumericPattern = /^[A-Za-z0-9](?: ?[A-Za-z0-9.&+_-])*$/;

/** ITU-T E.164 §6.2.1. */
const numericPattern = /^\d{1,15}$/;

/** Why something cannot be a sender. */
export type SenderProblem =
  /** Neither up to 11 characters with a letter, nor up to 15 digits. */
  | 'invalid_name'
  /** A number is not alphanumeric, and a name with a letter is nothing else. */
  | 'wrong_type'
  /** A number that people can be reached at abroad begins with its country code, which never begins with 0. */
  | 'no_country_code';

/** The name as it is kept: a number loses its plus. What is no name of a sender comes back as it is. */
export function trimSenderName(text: string): string {
  return /^\+\d+$/.test(text) ? text.slice(1) : text;
}

export function isNumericName(name: string): boolean {
  return numericPattern.test(name);
}

/** The sender that a name makes; where no type is given, a number is taken for a long code. */
export function parseSender(text: string, type: SenderType | null): SmsSender | SenderProblem {
  const name = trimSenderName(text.trim());
  if (isNumericName(name)) return parseNumber(name, type ?? 'long_code');
  if (!isAlphanumericName(name)) return 'invalid_name';
  return type === null || type === 'alphanumeric' ? { name, type: 'alphanumeric' } : 'wrong_type';
}

function isAlphanumericName(name: string): boolean {
  return name.length <= alphanumericLengthMax && alphanumericPattern.test(name) && /[A-Za-z]/.test(name);
}

function parseNumber(name: string, type: SenderType): SmsSender | SenderProblem {
  if (type === 'alphanumeric') return 'wrong_type';
  // Short codes are valid within one country, and have none.
  return type !== 'short_code' && name.startsWith('0') ? 'no_country_code' : { name, type };
}
