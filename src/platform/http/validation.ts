import { Ajv, type AnySchema, type ErrorObject, type KeywordDefinition, type ValidateFunction } from 'ajv';
import type { TSchema } from 'typebox';
import { parseTimestamp } from '../clock.ts';
import { isUuid } from '../ids.ts';
import { didYouMean } from '../suggestion.ts';
import { isStorableText, showKey } from './json-text.ts';

/**
 * One compiled schema: returns the issues, each a phrase that begins with the path of its field, or none.
 * A string with `contentEncoding: 'base64'` is replaced by its bytes.
 */
export type Validator = (value: unknown) => string[];

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
  compile: (schema: TSchema) => Validator;
};

export function createValidation(formats: Readonly<Record<string, TextFormat>>): Validation {
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

  return {
    compile: (schema) => {
      let compiled: ValidateFunction | null = null;
      return (value) => {
        const validate = (compiled ??= ajv.compile(schema as AnySchema));
        return validate(value) ? [] : describeErrors(validate.errors ?? [], allFormats);
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
  validate: (
    _encoding: string,
    text: string,
    _schema: unknown,
    context?: { parentData: unknown; parentDataProperty: string | number },
  ) => {
    const bytes = decodeBase64(text);
    if (bytes === null) return false;
    const parent = context?.parentData;
    if (typeof parent === 'object' && parent !== null && context !== undefined) {
      Reflect.set(parent, context.parentDataProperty, bytes);
    }
    return true;
  },
};

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

function describeErrors(
  errors: readonly ErrorObject[],
  formats: Readonly<Record<string, TextFormat>>,
): string[] {
  const issues = new Set<string>();
  for (const error of errors.slice(0, errorsLookedAtMax)) {
    if (issues.size >= issuesMax) break;
    const issue = describeError(error, formats);
    if (issue !== null) issues.add(issue);
  }
  return [...issues];
}

function describeError(error: ErrorObject, formats: Readonly<Record<string, TextFormat>>): string | null {
  const path = showPath(error.instancePath);
  const field = path === '' ? 'the body' : path;
  const member = (name: unknown) =>
    path === '' ? showKey(String(name)) : `${path}.${showKey(String(name))}`;
  const params = error.params as Record<string, unknown>; // Each keyword of Ajv documents its own.
  switch (error.keyword) {
    case 'required':
      return `${member(params.missingProperty)} is required`;
    case 'additionalProperties':
      return areNamesFree(error)
        ? `${member(params.additionalProperty)} is not an allowed name`
        : `${member(params.additionalProperty)} is not a known field${suggestField(error)}`;
    case 'type':
      return `${field} must be ${withArticle(String(params.type))}`;
    case 'format':
      return `${field} must be ${formats[String(params.format)]?.mustBe ?? 'well-formed'}`;
    case 'contentEncoding':
      return `${field} must be Base64`;
    case 'minLength':
      return params.limit === 1
        ? `${field} must not be empty`
        : `${field} must be at least ${String(params.limit)} characters`;
    case 'maxLength':
      return `${field} must be at most ${String(params.limit)} characters`;
    case 'minItems':
      return `${field} must have at least ${String(params.limit)} items`;
    case 'maxItems':
      return `${field} must have at most ${String(params.limit)} items`;
    case 'maxProperties':
      return `${field} must have at most ${String(params.limit)} fields`;
    case 'minimum':
      return `${field} must be at least ${String(params.limit)}`;
    case 'maximum':
      return `${field} must be at most ${String(params.limit)}`;
    case 'enum':
      return `${field} must be one of ${(params.allowedValues as unknown[]).filter(isNotNull).join(', ')}`;
    case 'pattern':
      return `${field} must match ${String(params.pattern)}`;
    case 'propertyNames':
      return `${member(params.propertyName)} is not an allowed name`;
    // What is inside of `propertyNames` and `anyOf` is reported by the error of the whole.
    case 'anyOf':
      return `${field} must be of one of the allowed types`;
    default:
      return `${field} is not valid`;
  }
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
