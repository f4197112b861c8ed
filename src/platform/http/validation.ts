import { Ajv, type AnySchema, type ErrorObject, type KeywordDefinition, type ValidateFunction } from 'ajv';
import type { TSchema } from 'typebox';
import { toComposed } from '../characters.ts';
import { parseTimestamp } from '../clock.ts';
import { isUuid } from '../ids.ts';
import { didYouMean } from '../suggestion.ts';
import { planNullRemoval } from './absent-nulls.ts';
import { isStorableText, showKey } from './json-text.ts';
import { planSingleItems } from './single-items.ts';

/**
 * One compiled schema, with the rules that it names: returns the issues for which the value is refused, each a phrase that
 * begins with the path of its field, or none. A string with `contentEncoding: 'base64'` is replaced by its bytes, and
 * one with `composed: true` by its composed spelling.
 * `facts` may be left out where the schema names no rules.
 */
export type Validator = (value: unknown, facts?: RuleFacts) => string[];

/** What rules may ask besides the fields. It can be sent between threads, so that a rule says the same in each. */
export type RuleFacts = {
  /** When the request came. */
  at: Date;
  /** Lists of the operator's settings, by the name that the rule of a room knows. */
  settings: Readonly<Record<string, readonly string[]>>;
};

/**
 * What a schema cannot say of the fields of an object, mostly how they belong together. A schema names its rules
 * (`rules: ['push-content']`) as it names the formats of texts, and is never checked without them: one answer lists what
 * both find. Rules know the request, the time and settings. What the account decides comes later, in the route.
 */
export type FieldRule = {
  /** Each issue begins with the path of its field, from the object on. */
  find: (given: GivenFields, facts: RuleFacts) => string[];
  /**
   * Whether it is for the route to refuse, since it is not yet the turn of the rule: the answer is another one than 422,
   * comes after the look whether this is a repetition, or lists also what only the account can tell. Then the issues
   * stand beside those of others, and refuse nothing by themselves.
   */
  isLeftToRoute?: boolean;
};

export type GivenFields = {
  /** Those that the schema has found right. */
  fields: Readonly<Record<string, unknown>>;
  /** Whether there is a field, be it right or wrong. Null is none. */
  isGiven: (name: string) => boolean;
};

/** A rule of objects of one shape. Any field may be missing, be it that it was wrong. */
export function defineRule<Fields>(
  find: (fields: Partial<Fields>, isGiven: GivenFields['isGiven'], facts: RuleFacts) => string[],
  options: Pick<FieldRule, 'isLeftToRoute'> = {},
): FieldRule {
  // The schema that names the rule has checked those that are there.
  return {
    ...options,
    find: ({ fields, isGiven }, facts) => find(fields as Partial<Fields>, isGiven, facts),
  };
}

/** A text format: the test, and what a value that fails it "must be". Tests see strings of any length. */
export type TextFormat = { test: (text: string) => boolean; mustBe: string };

/** Formats that any server needs. The rooms that bring more of them hand them to `createValidation`. */
const ownFormats: Record<string, TextFormat> = {
  uuid: { test: isUuid, mustBe: 'a UUID' },
  'date-time': {
    test: (text) => parseTimestamp(text) !== null,
    mustBe: 'an ISO 8601 time with an offset or Z',
  },
  'single-line': { test: (text) => !/[\r\n]/.test(text), mustBe: 'a single line' },
  'filled-line': {
    // `minLength` reports an empty text already.
    test: (text) => !/[\r\n]/.test(text) && (text === '' || text.trim() !== ''),
    mustBe: 'a single line that is not blank',
  },
  'not-blank': { test: (text) => text.trim() !== '', mustBe: 'a text that is not blank' },
};

/**
 * A schema is compiled when its validator is first called: all those of the API took 0.4 s of a start, and with it of
 * the way from a crash to the next answer. One that cannot be compiled throws then.
 */
export type Validation = {
  /** Nulls that mean nothing are taken out of what is checked: `absent-nulls.ts`. `isChange` is of the body of a PATCH. */
  compile: (schema: TSchema, options?: { isChange?: boolean }) => Validator;
};

export function createValidation(
  formats: Readonly<Record<string, TextFormat>>,
  rules: Readonly<Record<string, FieldRule>> = {},
): Validation {
  const allFormats: Record<string, TextFormat> = { ...ownFormats, ...formats };
  const ajv = new Ajv({
    // Clients want to see all that is wrong at once. The structure of a body is bounded before it gets here.
    allErrors: true,
    // An unknown field is reported with the one that was probably meant, which the schema around it knows.
    verbose: true,
    coerceTypes: false,
    removeAdditional: false,
    useDefaults: true,
    strict: true,
    strictTypes: false,
    allowUnionTypes: true,
    formats: Object.fromEntries(Object.entries(allFormats).map(([name, { test }]) => [name, test])),
  });
  // Ajv takes it for an annotation.
  ajv.removeKeyword('contentEncoding');
  ajv.addKeyword(base64Keyword);
  ajv.addKeyword(composedKeyword);
  // It is for the removal of nulls, before anything is checked.
  ajv.addKeyword('nullIsRefused');
  // It is for what is made of the body before.
  ajv.addKeyword('mayBeOne');
  // It is for what is kept of a refused request (redaction.ts).
  ajv.addKeyword('sensitive');
  // Filled while one value is checked, which is never interrupted.
  let places: RulePlace[] = [];
  ajv.addKeyword(rulesKeyword(rules, (place) => places.push(place)));

  return {
    compile: (schema, { isChange = false } = {}) => {
      let compiled: ValidateFunction | null = null;
      const removeNulls = planNullRemoval(schema, { isChange });
      const listSingleItems = planSingleItems(schema);
      return (value, facts) => {
        const validate = (compiled ??= ajv.compile(schema as AnySchema));
        removeNulls?.(value);
        listSingleItems?.(value);
        places = [];
        const errors = validate(value) ? [] : (validate.errors ?? []);
        return listIssues(errors, { places, facts, formats: allFormats });
      };
    },
  };
}

/** An object that rules are for, and where it stands. */
type RulePlace = { rules: readonly FieldRule[]; value: Readonly<Record<string, unknown>>; pointer: string };

/** Always satisfied: it notes where rules apply, which are asked when the errors of the schema are known. */
function rulesKeyword(
  rules: Readonly<Record<string, FieldRule>>,
  note: (place: RulePlace) => void,
): KeywordDefinition {
  return {
    keyword: 'rules',
    type: 'object',
    schemaType: 'array',
    compile: (names: readonly string[]) => {
      const named = names.map((name) => {
        const rule = rules[name];
        if (rule === undefined) throw new Error(`there is no rule ${name}`);
        return rule;
      });
      return (value: Readonly<Record<string, unknown>>, context?: { instancePath: string }) => {
        note({ rules: named, value, pointer: context?.instancePath ?? '' });
        return true;
      };
    },
  };
}

/** Decodes in place: the caller gets bytes, and the text is read only once. */
const base64Keyword: KeywordDefinition = {
  keyword: 'contentEncoding',
  type: 'string',
  schemaType: 'string',
  modifying: true,
  errors: false,
  validate: (_encoding: string, text: string, _schema: unknown, context?: ValueContext) => {
    const bytes = decodeBase64(text);
    if (bytes !== null) replaceValue(context, bytes);
    return bytes !== null;
  },
};

/**
 * For texts that are compared: names, and values that conditions ask about. All else is kept as it was sent. Limits of
 * length come after it, since a text may grow.
 */
const composedKeyword: KeywordDefinition = {
  keyword: 'composed',
  type: 'string',
  schemaType: 'boolean',
  before: 'maxLength',
  modifying: true,
  errors: false,
  validate: (_isComposed: boolean, text: string, _schema: unknown, context?: ValueContext) => {
    replaceValue(context, toComposed(text));
    return true;
  },
};

type ValueContext = { parentData: unknown; parentDataProperty: string | number };

function replaceValue(context: ValueContext | undefined, value: unknown): void {
  const parent = context?.parentData;
  if (typeof parent === 'object' && parent !== null && context !== undefined)
    Reflect.set(parent, context.parentDataProperty, value);
}

/** RFC 4648 §4, padding optional; line breaks and blanks, which encoders like to add, are passed over. */
function decodeBase64(text: string): Uint8Array | null {
  const compact = /\s/.test(text) ? text.replace(/\s+/g, '') : text;
  const padding = compact.endsWith('==') ? 2 : compact.endsWith('=') ? 1 : 0;
  const digits = compact.length - padding;
  if (digits % 4 === 1 || (padding > 0 && compact.length % 4 !== 0)) return null;
  // Node.js also reads the alphabet for URLs, and skips characters of neither; the length shows that.
  if (compact.includes('-') || compact.includes('_')) return null;
  const bytes = Buffer.from(compact, 'base64');
  return bytes.length === Math.floor((digits * 3) / 4) ? new Uint8Array(bytes) : null;
}

const issuesMax = 50;
/** Names that differ only where they are cut off or made readable are one issue. */
const errorsLookedAtMax = 1_000;
/** Of a value that its schema refuses; one that it lets through has as many as the schema allows. */
const refusedPlacesMax = 1_000;

function listIssues(
  errors: readonly ErrorObject[],
  given: {
    places: readonly RulePlace[];
    facts: RuleFacts | undefined;
    formats: Readonly<Record<string, TextFormat>>;
  },
): string[] {
  const described = describeErrors(errors.slice(0, errorsLookedAtMax), given.formats);
  if (given.places.length === 0) return described;
  if (given.facts === undefined) throw new Error('a schema with rules is checked without the facts for them');
  const places = errors.length === 0 ? given.places : given.places.slice(0, refusedPlacesMax);
  const ask = (areLeftToRoute: boolean, facts: RuleFacts) =>
    askRules(places, { errors, facts, areLeftToRoute });
  const refusing = ask(false, given.facts);
  if (described.length + refusing.length === 0) return [];
  return joinIssues(described, [...refusing, ...ask(true, given.facts)]);
}

/** Two lists as one, in which no field is named by both: what the first says of it has to be mended first. */
export function joinIssues(first: readonly string[], second: readonly string[]): string[] {
  if (first.length === 0 || second.length === 0) return [...first, ...second];
  const fieldOf = (issue: string) => issue.slice(0, Math.max(0, issue.indexOf(' ')));
  const named = new Set(first.map(fieldOf));
  return [...first, ...second.filter((issue) => !named.has(fieldOf(issue)))].slice(0, issuesMax);
}

function askRules(
  places: readonly RulePlace[],
  asked: { errors: readonly ErrorObject[]; facts: RuleFacts; areLeftToRoute: boolean },
): string[] {
  const wrong = new Set(asked.errors.slice(0, errorsLookedAtMax).flatMap(pointersAbove));
  const issues: string[] = [];
  for (const { rules, value, pointer } of places) {
    const isRight = (name: string) => !wrong.has(`${pointer}/${escapePointer(name)}`);
    const given: GivenFields = {
      fields: wrong.size === 0 ? value : pickFields(value, isRight),
      isGiven: (name) => Object.hasOwn(value, name) && value[name] !== undefined && value[name] !== null,
    };
    const path = showPath(pointer);
    for (const { find, isLeftToRoute = false } of rules) {
      if (isLeftToRoute !== asked.areLeftToRoute) continue;
      issues.push(...find(given, asked.facts).map((issue) => (path === '' ? issue : `${path}.${issue}`)));
    }
    if (issues.length >= issuesMax) break;
  }
  return issues;
}

/** Of what an error is about, and of all that it is within. */
function pointersAbove({ instancePath, keyword, params }: ErrorObject): string[] {
  const { missingProperty } = params as { missingProperty?: string }; // Of `required`, as Ajv documents it.
  const pointer =
    keyword === 'required' && missingProperty !== undefined
      ? `${instancePath}/${escapePointer(missingProperty)}`
      : instancePath;
  const parts = pointer.split('/').slice(1);
  return parts.map((_part, index) => `/${parts.slice(0, index + 1).join('/')}`);
}

function escapePointer(name: string): string {
  return name.replaceAll('~', '~0').replaceAll('/', '~1');
}

function pickFields(
  value: Readonly<Record<string, unknown>>,
  isWanted: (name: string) => boolean,
): Readonly<Record<string, unknown>> {
  return Object.fromEntries(Object.entries(value).filter(([name]) => isWanted(name)));
}

/** What one keyword of a schema says of a field. */
type Problem = { field: string; says: string; isAll: boolean };

/** One issue for each field, however much is wrong with it. */
function describeErrors(
  errors: readonly ErrorObject[],
  formats: Readonly<Record<string, TextFormat>>,
): string[] {
  const problems = new Map<string, Problem[]>();
  for (const error of errors) {
    const problem = describeError(error, formats);
    if (problem === null) continue;
    const known = problems.get(problem.field);
    if (known !== undefined) known.push(problem);
    else if (problems.size === issuesMax) break;
    else problems.set(problem.field, [problem]);
  }
  return [...problems].map(([field, found]) => {
    const whole = found.find(({ isAll }) => isAll);
    const says = whole === undefined ? [...new Set(found.map((problem) => problem.says))] : [whole.says];
    return `${field} ${says.join(' and ')}`;
  });
}

/** Null of what the error of a schema around it says better. */
function describeError(error: ErrorObject, formats: Readonly<Record<string, TextFormat>>): Problem | null {
  // What is wrong with a name is said of the name.
  if (error.propertyName !== undefined && error.keyword !== 'propertyNames') return null;
  const path = showPath(error.instancePath);
  const member = (name: unknown) =>
    path === '' ? showKey(String(name)) : `${path}.${showKey(String(name))}`;
  const params = error.params as Record<string, unknown>; // Each keyword of Ajv documents its own.
  const of = (field: string, says: string): Problem => ({ field, says, isAll: saysAll(error) });
  switch (error.keyword) {
    case 'required':
      return of(member(params.missingProperty), 'is required');
    case 'additionalProperties':
      return of(
        member(params.additionalProperty),
        areNamesFree(error)
          ? `is not an allowed name${describeNames(error)}`
          : `is not a known field${suggestField(error)}`,
      );
    case 'propertyNames':
      return of(member(params.propertyName), `is not an allowed name${describeNames(error)}`);
    default:
      return of(path === '' ? 'the body' : path, describeValue(error, params, formats));
  }
}

/** Whether this one error says all that a value may be, so that no other is needed beside it. */
function saysAll({ keyword, params }: ErrorObject): boolean {
  const isOfEmptyText = keyword === 'minLength' && (params as { limit: number }).limit === 1;
  return isOfEmptyText || keyword === 'enum' || keyword === 'const' || keyword === 'anyOf';
}

function describeValue(
  { keyword, schema }: ErrorObject,
  params: Readonly<Record<string, unknown>>,
  formats: Readonly<Record<string, TextFormat>>,
): string {
  const limit = Number(params.limit);
  switch (keyword) {
    case 'type':
      return `must be ${withArticle(String(params.type))}`;
    case 'format':
      return `must be ${formats[String(params.format)]?.mustBe ?? `a text of the format ${String(params.format)}`}`;
    case 'contentEncoding':
      return 'must be Base64';
    case 'minLength':
      return limit === 1 ? 'must not be empty' : `must be at least ${limit} characters`;
    case 'maxLength':
      return `must be at most ${limit} characters`;
    case 'minItems':
      return `must have at least ${count(limit, 'item')}`;
    case 'maxItems':
      return `must have at most ${count(limit, 'item')}`;
    case 'minProperties':
      return `must have at least ${count(limit, 'field')}`;
    case 'maxProperties':
      return `must have at most ${count(limit, 'field')}`;
    case 'minimum':
      return `must be at least ${limit}`;
    case 'maximum':
      return `must be at most ${limit}`;
    case 'enum':
      return `must be one of ${(params.allowedValues as unknown[]).filter(isNotNull).join(', ')}`;
    case 'const':
      return `must be ${String(params.allowedValue)}`;
    case 'pattern':
      return `must match ${String(params.pattern)}`;
    case 'anyOf':
      return `must be ${describeAlternatives(schema)}`;
    default:
      return `must keep to "${keyword}": ${JSON.stringify(schema)}`;
  }
}

function count(amount: number, noun: string): string {
  return `${amount} ${noun}${amount === 1 ? '' : 's'}`;
}

/** Of `anyOf`, by the types of its schemas. */
function describeAlternatives(schema: unknown): string {
  const types = (schema as { type?: string | string[] }[]).flatMap(({ type = [] }) => type); // JSON Schema's own.
  const wanted = [...new Set(types)].filter((type) => type !== 'null');
  return wanted.length === 0 ? 'one of the forms that are described' : withArticle(wanted.join(','));
}

/** What names may be where they are free but for their form. */
function describeNames({ keyword, schema, parentSchema }: ErrorObject): string {
  const patterns =
    keyword === 'propertyNames'
      ? [(schema as { pattern?: string }).pattern]
      : Object.keys((parentSchema as { patternProperties?: object } | undefined)?.patternProperties ?? {});
  return patterns[0] === undefined ? '' : `: names must match ${patterns.join(' or ')}`;
}

/** That a value may also be null needs no saying. */
function isNotNull(value: unknown): value is string | number {
  return value !== null;
}

/** As those of variables: any name that fits a pattern is allowed, so no known one can be suggested. */
function areNamesFree({ parentSchema }: ErrorObject): boolean {
  return Object.hasOwn(parentSchema ?? {}, 'patternProperties');
}

function suggestField({ params, parentSchema }: ErrorObject): string {
  const { properties } = (parentSchema ?? {}) as { properties?: Record<string, unknown> }; // JSON Schema's own.
  const given = String((params as Record<string, unknown>).additionalProperty);
  return didYouMean(given, Object.keys(properties ?? {}));
}

/** `/to/1/name` as `to[1].name`. */
function showPath(pointer: string): string {
  return pointer
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((path, part) => {
      if (/^\d+$/.test(part)) return `${path}[${part}]`;
      return path === '' ? showKey(part) : `${path}.${showKey(part)}`;
    }, '');
}

function withArticle(type: string): string {
  const names = type.split(',').map((name) => (/^[aeiou]/.test(name) ? `an ${name}` : `a ${name}`));
  return names.join(' or ');
}

/** A header or query value that PostgreSQL could not store. */
export function isUnstorable(value: unknown): boolean {
  return typeof value === 'string' && !isStorableText(value);
}
