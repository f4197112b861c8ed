import { codeUnitsMax, isLongerThan } from '../../platform/characters.ts';
import { type CompiledText, compileText, fillText, type Values } from '../placeholders.ts';
import { readAlphabet, type TextEncoding } from './alphabet.ts';

/** As it is written and after replacement, in characters: code points. Its segments are counted in alphabet.ts. */
export const smsLengthMax = 1_600;

/** A text that is compiled once for all of its recipients. */
export type CompiledSms = CompiledText;

export function compileSms(body: string): CompiledSms {
  return compileText(body, 'text');
}

/** Replaces the placeholders by values: as they are, and in links as a part of a URL. Null if only blanks are left, or more than may be sent. */
export function fillSms(compiled: CompiledSms, values: Values): string | null {
  const filled = fillText(compiled, values, codeUnitsMax(smsLengthMax));
  const text = filled?.toWellFormed().replaceAll('\0', '') ?? '';
  return text.trim() === '' || isLongerThan(text, smsLengthMax) ? null : text;
}

/** What a text takes of a quota; none for one that cannot be sent. */
export function countSegments(text: string | null): { encoding: TextEncoding; segments: number } {
  return text === null ? { encoding: 'gsm7', segments: 0 } : readAlphabet(text);
}
