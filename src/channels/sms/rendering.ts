import { type CompiledText, compileText, fillText, type Values } from '../placeholders.ts';
import { readAlphabet, type TextEncoding } from './alphabet.ts';

/** After replacement, in characters as people count them in other places: UTF-16 code units. */
export const smsLengthMax = 1_600;

/** A text that is compiled once for all of its recipients. */
export type CompiledSms = CompiledText;

export function compileSms(body: string): CompiledSms {
  return compileText(body);
}

/** Replaces the placeholders by values, as they are. Null if nothing is left, or more than may be sent. */
export function fillSms(compiled: CompiledSms, values: Values): string | null {
  const text = fillText(compiled, values, 'none', smsLengthMax)?.toWellFormed().replaceAll('\0', '') ?? '';
  return text === '' || text.length > smsLengthMax ? null : text;
}

/** What a text takes of a quota; none for one that cannot be sent. */
export function countSegments(text: string | null): { encoding: TextEncoding; segments: number } {
  return text === null ? { encoding: 'gsm7', segments: 0 } : readAlphabet(text);
}
