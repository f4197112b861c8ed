import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type {
  AccountExamination,
  ChatAppAccount,
  ExaminedNumber,
  PeoplePerDayMax,
  TemplateQuality,
} from '../../provider.ts';
import { describeError, meaningOf } from './answers.ts';
import { type Asked, type Graph, hasUsableIds } from './graph.ts';
import { readGraphBody } from './graph-body.ts';
import { type JsonObject, objectOf, textOf } from './json.ts';

/** What an account may do, as its numbers tell (https://developers.facebook.com/docs/graph-api/reference/whats-app-business-account-to-number-current-status). */

const fields = [
  'display_phone_number',
  'verified_name',
  'quality_rating',
  'status',
  'throughput',
  'whatsapp_business_manager_messaging_limit',
].join(',');

/** Of one account. Each is a request. */
const numbersMax = 20;

const standardPerSecond = 80;
const highPerSecond = 1_000;

type Examined = { number: ExaminedNumber; peoplePerDayMax: PeoplePerDayMax | null };

export async function examineAccount(graph: Graph, account: ChatAppAccount): Promise<AccountExamination> {
  if (!hasUsableIds(account))
    return {
      kind: 'failed',
      words: 'An id of the account or of its number is none.',
      isAccountAtFault: true,
    };
  const examined: Examined[] = [];
  for (const phoneNumberId of account.phoneNumberIds.slice(0, numbersMax)) {
    const path = `${phoneNumberId}?fields=${fields}`;
    const asked = await graph.ask({ method: 'GET', path, accessToken: account.accessToken });
    const problem = findProblem(asked);
    if (problem !== null) return { kind: 'failed', ...problem };
    if (asked.kind === 'answered') examined.push(readNumber(phoneNumberId, readGraphBody(asked).json));
  }
  return {
    kind: 'examined',
    numbers: examined.map(({ number }) => number),
    peoplePerDayMax: lowestOf(examined),
  };
}

/** All numbers of a portfolio share it; where they differ, one of them is out of date. */
function lowestOf(examined: readonly Examined[]): PeoplePerDayMax | null {
  const limits = examined.flatMap(({ peoplePerDayMax }) =>
    peoplePerDayMax === null ? [] : [peoplePerDayMax],
  );
  const numbers = limits.filter((limit) => limit !== 'unlimited');
  if (numbers.length > 0) return Math.min(...numbers);
  return limits.length > 0 ? 'unlimited' : null;
}

/** Why a question was not answered; null where it was. */
export function findProblem(asked: Asked): { words: string; isAccountAtFault: boolean } | null {
  if (asked.kind !== 'answered') return { words: sanitiseDiagnostic(asked.detail), isAccountAtFault: false };
  if (asked.status >= 200 && asked.status < 300)
    return asked.body === null ? { words: 'The answer did not arrive whole', isAccountAtFault: false } : null;
  const { error } = readGraphBody(asked);
  const meaning = meaningOf(error);
  const isAccountAtFault = meaning?.kind === 'unavailable' && meaning.failure === 'sender_rejected';
  return { words: describeError(error) || `HTTP status ${asked.status}`, isAccountAtFault };
}

function readNumber(phoneNumberId: string, json: JsonObject): Examined {
  const isFast = textOf(objectOf(json.throughput).level) === 'HIGH';
  return {
    number: {
      phoneNumberId,
      displayNumber: wordsOf(json.display_phone_number),
      name: wordsOf(json.verified_name),
      quality: readQuality(json.quality_rating),
      messagesPerSecondMax: isFast ? highPerSecond : standardPerSecond,
    },
    peoplePerDayMax: readLimit(json.whatsapp_business_manager_messaging_limit),
  };
}

function wordsOf(value: unknown): string | null {
  const words = sanitiseDiagnostic(textOf(value) ?? '');
  return words === '' ? null : words;
}

const qualities: ReadonlyMap<string | null, TemplateQuality> = new Map([
  ['GREEN', 'green'],
  ['YELLOW', 'yellow'],
  ['RED', 'red'],
]);

/** Of numbers and of templates. */
export function readQuality(value: unknown): TemplateQuality {
  return qualities.get(textOf(value)) ?? 'unknown';
}

/**
 * `TIER_250`, `TIER_2K`, `TIER_UNLIMITED`; webhooks have 250, 2000 and -1 as well, as numbers or as text. Null if Meta says
 * something new.
 */
export function readLimit(value: unknown): PeoplePerDayMax | null {
  const words = typeof value === 'number' ? String(value) : (textOf(value) ?? '');
  if (words === 'TIER_UNLIMITED' || words === '-1') return 'unlimited';
  const [, number, isThousand] = /^(?:TIER_)?(\d{1,6})(K?)$/.exec(words) ?? [];
  const limit = Number(number ?? 0) * (isThousand === 'K' ? 1_000 : 1);
  return limit > 0 ? limit : null;
}
