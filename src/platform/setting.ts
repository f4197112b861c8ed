import { parseBytes } from './bytes.ts';
import { parseUrl } from './url.ts';

/** A setting of the program. `about` is what the documentation says of it; the default is used where it is empty. */
export type Setting = {
  type: 'text' | 'port' | 'count' | 'days' | 'bytes' | 'url' | 'list' | 'choice';
  choices?: readonly string[];
  /** Of days, the fewest; 1 if nothing is said. */
  least?: number;
  default: string;
  about: string;
};

const unlimited = 'unlimited';
/** Ten years; more is for ever. */
const daysMax = 3_650;

/** The number of days in a setting of type `days`; null for no end. */
export function daysOf(text: string): number | null {
  return text === unlimited ? null : Number(text);
}

/** The number of bytes in a setting of type `bytes`; null for no limit. */
export function limitedBytesOf(text: string): number | null {
  return text === unlimited ? null : parseBytes(text);
}

/** What is wrong with the text of a setting, in a sentence; null where nothing is. */
export function findSettingProblem(name: string, setting: Setting, text: string): string | null {
  switch (setting.type) {
    case 'text':
    case 'list':
      return null;
    case 'port':
      if (text === setting.default) return null;
      return isNumberWithin(text, 0, 65_535) ? null : `${name} must be a port number, 0 to 65535`;
    case 'count':
      if (text === setting.default) return null;
      return isNumberWithin(text, 1, 1_000) ? null : `${name} must be a number from 1 to 1000`;
    case 'days': {
      const least = setting.least ?? 1;
      return text === unlimited || isNumberWithin(text, least, daysMax)
        ? null
        : `${name} must be a number of days from ${least} to ${daysMax}, or ${unlimited}`;
    }
    case 'bytes':
      return text === unlimited || parseBytes(text) !== null
        ? null
        : `${name} must be a size such as 500MB or 20GB, or ${unlimited}`;
    case 'url':
      return text === '' || (/^https?:\/\/[^/]/.test(text) && parseUrl(text) !== null)
        ? null
        : `${name} must be an http or https URL`;
    case 'choice':
      return text === setting.default || setting.choices?.includes(text)
        ? null
        : `${name} must be one of ${setting.choices?.join(', ') ?? ''}`;
  }
}

/** The items of a setting of type `list`. */
export function listOf(text: string): string[] {
  return text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
}

function isNumberWithin(text: string, minimum: number, maximum: number): boolean {
  return /^\d+$/.test(text) && Number(text) >= minimum && Number(text) <= maximum;
}
