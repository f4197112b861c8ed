import { Ajv2020 } from 'ajv/dist/2020.js';
import fc from 'fast-check';
import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { propertyTypes } from '../audience/schema.ts';
import { parseTimestamp } from '../platform/clock.ts';
import { describeRoutes } from '../platform/http/openapi.ts';
import { defineRoute, json } from '../platform/http/route.ts';
import { createValidation } from '../platform/http/validation.ts';
import { isUuid } from '../platform/ids.ts';
import { compileLeaves } from './compile.ts';
import { conditionsSchema, describeConditions } from './condition-schema.ts';
import {
  collectMentionedNames,
  type Condition,
  type ConditionContext,
  isTimeBound,
  parseConditions,
  readsMessages,
  referencesOf,
} from './conditions.ts';
import { explainConditions } from './explain.ts';
import { leafTypes } from './nodes/registry.ts';

const id = (number: number) => `0198c0de-0000-7000-8000-${String(number).padStart(12, '0')}`;
const context: ConditionContext = {
  properties: new Map([
    ['plan', { id: id(11), number: 1, type: 'string' }],
    ['score', { id: id(12), number: 2, type: 'number' }],
    ['vip', { id: id(13), number: 3, type: 'boolean' }],
    ['born', { id: id(14), number: 4, type: 'date' }],
  ]),
  sets: new Map([
    [id(1), 'list'],
    [id(2), 'tag'],
    [id(3), 'segment'],
    [id(0xabc), 'list'],
  ]),
  campaignMessages: new Map([
    [id(0xca), { messageId: id(21), channel: 'email' }],
    [id(0xcb), { messageId: id(22), channel: 'sms' }],
  ]),
  events: new Map([
    [
      'order.completed',
      {
        id: id(0xe1),
        number: 1,
        fields: new Map([
          ['code', 'string'],
          ['total', 'number'],
          ['items', 'integer'],
          ['gift', 'boolean'],
          ['due', 'date'],
        ]),
      },
    ],
  ]),
  eventsKeptMs: null,
};

const issuesOf = (input: unknown, given = context): string[] => {
  const reading = parseConditions(input, given);
  return reading.ok ? [] : reading.issues;
};

function parse(input: unknown): Condition {
  const reading = parseConditions(input, context);
  if (!reading.ok) throw new Error(reading.issues.join(', '));
  return reading.condition;
}

const plan = (operator: string, value?: unknown) => ({
  type: 'property',
  key: 'plan',
  operator,
  ...(value !== undefined && { value }),
});
const property = (key: string, operator: string, value?: unknown) => ({ ...plan(operator, value), key });
const all = (...conditions: unknown[]) => ({ type: 'group', match: 'all', conditions });
const day = (value: unknown, unit: unknown = 'day') => ({ value, unit });
const vip = property('vip', 'is_true');
const listOf = (...ids: unknown[]) => ({ type: 'list', operator: 'in', ids });
const message = (more: object = {}) => ({ type: 'message', channel: 'email', action: 'opened', ...more });

const textOperators =
  'eq, neq, in, not_in, contains, not_contains, starts_with, ends_with, is_set, is_not_set';
const typeNames = 'group, field, property, list, tag, segment, consent, device, event, message';
const order = (more: object = {}) => ({ type: 'event', event: 'order.completed', ...more });
const where = (...conditions: unknown[]) => order({ where: conditions });
const noNames = { propertyKeys: [], setIds: [], campaignIds: [], eventNames: [] };
const noDate = 'must be a date such as 2026-11-21, or a time with an offset or Z';

const refusals: [unknown, string[]][] = [
  // The tree
  [null, ['conditions must be an object']],
  [[], ['conditions must be an object']],
  ['all', ['conditions must be an object']],
  [undefined, ['conditions must be an object']],
  [{}, ['conditions.type is required']],
  [{ type: 'automation' }, [`conditions.type must be one of ${typeNames}`]],
  [{ type: 'toString' }, [`conditions.type must be one of ${typeNames}`]],
  [{ type: 1 }, [`conditions.type must be one of ${typeNames}`]],
  [{ type: 'group', match: 'all' }, ['conditions.conditions is required']],
  [{ type: 'group', conditions: [vip] }, ['conditions.match is required']],
  [{ type: 'group', match: 'some', conditions: [vip] }, ['conditions.match must be one of all, any, none']],
  [{ type: 'group', match: 'all', conditions: {} }, ['conditions.conditions must be an array']],
  [all(), ['conditions.conditions must have at least 1 item']],
  [{ ...all(vip), operator: 'x' }, ['conditions.operator is not a known field']],
  [
    all(vip, all(vip, 7), all()),
    [
      'conditions.conditions[1].conditions[1] must be an object',
      'conditions.conditions[2].conditions must have at least 1 item',
    ],
  ],
  [all(all(all(all(vip)))), []],
  [
    all(all(all(all(all(vip))))),
    [
      'conditions.conditions[0].conditions[0].conditions[0].conditions[0].conditions[0] must not be nested deeper than 5 levels',
    ],
  ],
  [all(...Array<unknown>(100).fill(vip)), []],
  [
    all(...Array<unknown>(101).fill(vip)),
    ['conditions must have at most 100 conditions that are not groups'],
  ],
  [
    all(all(...Array<unknown>(60).fill(vip)), all(...Array<unknown>(60).fill(vip))),
    ['conditions must have at most 100 conditions that are not groups'],
  ],
  [
    JSON.parse('{"type":"list","operator":"in","ids":[],"__proto__":{}}'),
    ['conditions.__proto__ is not a known field', 'conditions.ids must have at least 1 item'],
  ],
  // Fields
  [{ type: 'field' }, ['conditions.field is required']],
  [
    { type: 'field', field: 'properties', operator: 'eq', value: 'x', colour: 1 },
    [
      'conditions.field must be one of email, phone_number, external_id, first_name, last_name, locale, timezone, created_at',
      'conditions.colour is not a known field',
    ],
  ],
  [{ type: 'field', field: 'email' }, ['conditions.operator is required']],
  [
    { type: 'field', field: 'email', operator: 'gt', value: 'x' },
    [`conditions.operator must be one of ${textOperators}`],
  ],
  [{ type: 'field', field: 'email', operator: 'eq' }, ['conditions.value is required']],
  [{ type: 'field', field: 'email', operator: 'eq', value: 5 }, ['conditions.value must be a string']],
  [
    { type: 'field', field: 'email', operator: 'is_set', value: null },
    ['conditions.value is not a known field'],
  ],
  [
    { type: 'field', field: 'created_at', operator: 'eq', value: '2026-11-21' },
    [
      'conditions.operator must be one of before, after, between, within_last, not_within_last, is_set, is_not_set',
    ],
  ],
  [{ type: 'field', field: 'created_at', operator: 'after', value: 'x' }, [`conditions.value ${noDate}`]],
  // Texts
  [plan('eq', ''), ['conditions.value must not be empty']],
  [plan('eq', 'x'.repeat(1_000)), []],
  [plan('eq', '😀'.repeat(1_000)), []],
  [plan('eq', '😀'.repeat(1_001)), ['conditions.value must be at most 1000 characters']],
  [plan('eq', 'x'.repeat(1_001)), ['conditions.value must be at most 1000 characters']],
  [plan('eq', 'a\0b'), ['conditions.value must not contain NUL or unpaired surrogates']],
  [plan('contains', '\ud800'), ['conditions.value must not contain NUL or unpaired surrogates']],
  [plan('in', 'pro'), ['conditions.value must be an array']],
  [plan('in', []), ['conditions.value must have at least 1 item']],
  [plan('in', Array(500).fill('x')), []],
  [plan('not_in', Array(501).fill('x')), ['conditions.value must have at most 500 items']],
  [
    plan('in', ['a', 1, '', 'b']),
    ['conditions.value[1] must be a string', 'conditions.value[2] must not be empty'],
  ],
  [plan('is_set', 'x'), ['conditions.value is not a known field']],
  [plan('IS_SET'), [`conditions.operator must be one of ${textOperators}`]],
  [plan('constructor', 'x'), [`conditions.operator must be one of ${textOperators}`]],
  // Properties
  [{ type: 'property', operator: 'eq', value: 'x' }, ['conditions.key is required']],
  [property('nope', 'eq', 'x'), ['conditions.key is not a defined property']],
  [property('__proto__', 'eq', 'x'), ['conditions.key is not a defined property']],
  [
    { ...property('nope', 'eq', 'x'), kez: 1 },
    ['conditions.key is not a defined property', 'conditions.kez is not a known field (did you mean key?)'],
  ],
  [
    property('score', 'contains', 'x'),
    ['conditions.operator must be one of eq, neq, gt, gte, lt, lte, between, is_set, is_not_set'],
  ],
  [property('score', 'gt', '5'), ['conditions.value must be a number']],
  [property('score', 'gt', NaN), ['conditions.value must be a number']],
  [property('score', 'gt', Infinity), ['conditions.value must be a number']],
  [property('score', 'eq', true), ['conditions.value must be a number']],
  [property('score', 'between', 5), ['conditions.value must be an array of two: from and to']],
  [property('score', 'between', [5]), ['conditions.value must be an array of two: from and to']],
  [
    property('score', 'between', { from: 1, to: 2 }),
    ['conditions.value must be an array of two: from and to'],
  ],
  [property('score', 'between', [1, 'x']), ['conditions.value[1] must be a number']],
  [property('score', 'between', [2, 1]), ['conditions.value must not end before it begins']],
  [property('score', 'between', [0, -0]), []],
  [property('vip', 'eq', true), ['conditions.operator must be one of is_true, is_false, is_set, is_not_set']],
  [property('vip', 'is_true', true), ['conditions.value is not a known field']],
  [property('born', 'before', 5), ['conditions.value must be a string']],
  [property('born', 'before', '2026-02-30'), [`conditions.value ${noDate}`]],
  [
    property('born', 'between', ['2026-02-02', '2026-02-01T23:59:59Z']),
    ['conditions.value must not end before it begins'],
  ],
  [property('born', 'between', ['2026-02-02T00:00:00Z', '2026-02-02']), []],
  [property('born', 'within_last', 5), ['conditions.value must be an object']],
  [
    property('born', 'within_last', {}),
    ['conditions.value.value is required', 'conditions.value.unit is required'],
  ],
  [
    property('born', 'within_last', day(1.5, 'month')),
    [
      'conditions.value.value must be an integer',
      'conditions.value.unit must be one of minute, hour, day, week',
    ],
  ],
  [property('born', 'within_last', day(0)), ['conditions.value.value must be at least 1']],
  [property('born', 'within_last', day(3_650)), []],
  [
    property('born', 'not_within_last', day(3_651)),
    ['conditions.value must be at most ten years (3650 days)'],
  ],
  [
    property('born', 'within_last', day(1e300, 'week')),
    ['conditions.value must be at most ten years (3650 days)'],
  ],
  [property('born', 'within_last', { ...day(1), ago: 1 }), ['conditions.value.ago is not a known field']],
  // Lists, tags and segments
  [{ type: 'list' }, ['conditions.operator is required', 'conditions.ids is required']],
  [{ ...listOf(id(1)), operator: 'any' }, ['conditions.operator must be one of in, not_in']],
  [{ ...listOf(id(1)), value: 1 }, ['conditions.value is not a known field']],
  [listOf(), ['conditions.ids must have at least 1 item']],
  [listOf(...Array<unknown>(101).fill(id(1))), ['conditions.ids must have at most 100 items']],
  [
    listOf(id(1), 'x', 5, id(2), id(9)),
    [
      'conditions.ids[1] must be a UUID',
      'conditions.ids[2] must be a UUID',
      'conditions.ids[3] is not a known list',
      'conditions.ids[4] is not a known list',
    ],
  ],
  [{ ...listOf(id(1)), type: 'tag' }, ['conditions.ids[0] is not a known tag']],
  [{ ...listOf(id(1)), type: 'segment' }, ['conditions.ids[0] is not a known segment']],
  [listOf(id(0xabc).toUpperCase()), []],
  // Consent
  [
    { type: 'consent', channel: 'fax', operator: 'eq', value: true },
    [
      'conditions.channel must be one of email, sms, push, chatapp',
      'conditions.operator must be one of is, is_not',
      'conditions.value must be one of subscribed, unsubscribed',
    ],
  ],
  // Devices
  [
    { type: 'device', platform: 'windows' },
    ['conditions.operator is required', 'conditions.platform must be one of android, ios, web'],
  ],
  [{ type: 'device', operator: 'has_none' }, []],
  [
    { type: 'device', operator: 'has', platform: null },
    [
      'conditions.operator must be one of has_active, has_none',
      'conditions.platform must be one of android, ios, web',
    ],
  ],
  [{ type: 'device', operator: 'has_active', value: 'ios' }, ['conditions.value is not a known field']],
  // Events
  [{ type: 'event' }, ['conditions.event is required']],
  [order(), []],
  [order({ event: 'order.Completed' }), ['conditions.event is not a defined event']],
  [order({ event: 7 }), ['conditions.event must be a string']],
  [order({ event: 'order\0' }), ['conditions.event must not contain NUL or unpaired surrogates']],
  [order({ event: '\ud800' }), ['conditions.event must not contain NUL or unpaired surrogates']],
  [order({ operator: 'eq' }), ['conditions.operator is not a known field']],
  [order({ count: 3 }), ['conditions.count must be an object']],
  [order({ count: null }), ['conditions.count must be an object']],
  [order({ count: {} }), ['conditions.count.operator is required', 'conditions.count.value is required']],
  [
    order({ count: { operator: 'between', value: -1, min: 1 } }),
    [
      'conditions.count.min is not a known field',
      'conditions.count.operator must be one of eq, neq, gt, gte, lt, lte',
      'conditions.count.value must be at least 0',
    ],
  ],
  [order({ count: { operator: 'eq', value: 0.5 } }), ['conditions.count.value must be an integer']],
  [order({ count: { operator: 'eq', value: '1' } }), ['conditions.count.value must be an integer']],
  [
    order({ count: { operator: 'gt', value: 1_000_001 } }),
    ['conditions.count.value must be at most 1000000'],
  ],
  [order({ count: { operator: 'gt', value: 1_000_000 } }), []],
  [order({ within: day(0) }), ['conditions.within.value must be at least 1']],
  [order({ within: day(3_651) }), ['conditions.within must be at most ten years (3650 days)']],
  [where(), ['conditions.where must have at least 1 item']],
  [order({ where: {} }), ['conditions.where must be an array']],
  [where(7), ['conditions.where[0] must be an object']],
  [where(...Array<unknown>(10).fill({ field: 'gift', operator: 'is_true' })), []],
  [
    where(...Array<unknown>(11).fill({ field: 'gift', operator: 'is_true' })),
    ['conditions.where must have at most 10 items'],
  ],
  [
    where({ field: 'total', operator: 'contains', value: 5 }, { field: 'colour', operator: 'is_set' }, {}),
    [
      'conditions.where[0].operator must be one of eq, neq, gt, gte, lt, lte, between, is_set, is_not_set',
      'conditions.where[1].field is not a declared field of the event',
      'conditions.where[2].field is required',
    ],
  ],
  [
    where(
      { field: 'code', operator: 'eq', value: 5 },
      { field: 'total', operator: 'gt', value: '5' },
      { field: 'items', operator: 'eq', value: true },
      { field: 'gift', operator: 'is_true', value: true },
      { field: 'due', operator: 'after', value: 'soon' },
    ),
    [
      'conditions.where[0].value must be a string',
      'conditions.where[1].value must be a number',
      'conditions.where[2].value must be a number',
      'conditions.where[3].value is not a known field',
      `conditions.where[4].value ${noDate}`,
    ],
  ],
  [
    where(
      { field: 'code', operator: 'in', value: ['a'] },
      { field: 'total', operator: 'between', value: [1, 2.5] },
      { field: 'items', operator: 'neq', value: 3 },
      { field: 'gift', operator: 'is_not_set' },
      { field: 'due', operator: 'within_last', value: day(3) },
    ),
    [],
  ],
  // Messages
  [{ type: 'message' }, ['conditions.channel is required', 'conditions.action is required']],
  [message({ channel: 'fax' }), ['conditions.channel must be one of email, sms, push, chatapp']],
  [
    message({ channel: 'push', action: 'bounced' }),
    ['conditions.action must be one of delivered, opened, clicked'],
  ],
  [message({ channel: 'sms' }), ['conditions.action must be one of delivered, bounced']],
  [message({ action: 'sent' }), ['conditions.action must be one of delivered, opened, clicked, bounced']],
  [message({ campaign_id: 'x' }), ['conditions.campaign_id must be a UUID']],
  [message({ campaign_id: null }), ['conditions.campaign_id must be a UUID']],
  [message({ campaign_id: id(1) }), ['conditions.campaign_id is not a known campaign that was sent']],
  [message({ campaign_id: id(0xcb) }), ['conditions.campaign_id is not a known campaign that was sent']],
  [
    message({ campaign_id: id(1), within: day('1') }),
    [
      'conditions.campaign_id is not a known campaign that was sent',
      'conditions.within.value must be an integer',
    ],
  ],
  [
    message({ channel: 'fax', campaign_id: id(0xcb) }),
    ['conditions.channel must be one of email, sms, push, chatapp'],
  ],
  [message({ within: null }), ['conditions.within must be an object']],
  [message({ operator: 'is' }), ['conditions.operator is not a known field']],
];

test.each(refusals.map(([input, issues]) => [shorten(input), shorten(issues), input, issues] as const))(
  '%s: %s',
  (_input, _issues, input, issues) => {
    expect(issuesOf(input)).toEqual(issues);
  },
);

function shorten(value: unknown): string {
  return String(JSON.stringify(value)).slice(0, 100);
}

test('the example of every type of condition is one', () => {
  const sets = new Map(['list', 'tag', 'segment'].map((kind) => [kind, new Map([[id(1), kind]])]));
  for (const { example } of Object.values(leafTypes)) {
    const given = { ...context, sets: sets.get(example.type as string) ?? context.sets };
    expect(issuesOf(example, given as ConditionContext)).toEqual([]);
  }
});

test('the schema of a body lets trees through to be parsed, and nothing but objects', () => {
  const validate = createValidation({}).compile(conditionsSchema);
  expect(validate(all(7))).toEqual([]);
  expect(validate([])).toEqual(['the body must be an object']);
});

/** What the description of the API says of conditions, compiled by a validator that knows nothing of ours. */
const isDescribed = (() => {
  const route = defineRoute({
    method: 'POST',
    path: '/conditions',
    operationId: 'readConditions',
    scope: 'contacts:read',
    tag: 'Conditions',
    summary: 'Read conditions',
    body: Type.Object({ conditions: conditionsSchema }),
    success: { statusCode: 200, schema: Type.Object({}), when: 'Read.' },
    handle: () => Promise.resolve(json({})),
  });
  const { components } = describeRoutes([route], {
    title: '',
    version: '',
    description: '',
    tags: [],
    examples: {},
    schemas: describeConditions(),
    webhooks: [],
  });
  const ajv = new Ajv2020({
    strictTypes: false,
    formats: {
      uuid: isUuid,
      date: (text) => /^\d{4}-\d\d-\d\d$/.test(text) && parseTimestamp(`${text}T00:00:00Z`) !== null,
      'date-time': (text) => parseTimestamp(text) !== null,
    },
  });
  ajv.addVocabulary(['discriminator', 'components']);
  return ajv.compile({ $ref: '#/components/schemas/Condition', components });
})();

/** Issues that no schema can find: they take arithmetic, or what the organization has. */
const beyondSchemas =
  /is not a known (list|tag|segment|campaign)|is not a defined property|is not a de(fined event|clared field)|nested deeper|conditions that are not groups|end before it begins|ten years|NUL or unpaired/;

/** Whether the reader has nothing to say that a schema could, if properties and fields of events have the right types. */
function isWellFormed(input: unknown): boolean {
  const { propertyKeys: keys, eventNames } = collectMentionedNames(input);
  const fieldNames = [...(JSON.stringify(input) ?? '').matchAll(/"field":"(\w+)"/g)].map(([, name]) => name!);
  const typings = [...keys, ...new Set(fieldNames)].reduce<(typeof propertyTypes)[number][][]>(
    (known, _key) => known.flatMap((types) => propertyTypes.map((type) => [...types, type])),
    [[]],
  );
  return typings.some((types) => {
    const properties = new Map(
      keys.map((key, index) => [key, { id: id(11), number: 1, type: types[index]! }] as const),
    );
    const fields = new Map(
      [...new Set(fieldNames)].map((name, index) => [name, types[keys.length + index]!] as const),
    );
    const events = new Map(eventNames.map((name) => [name, { id: id(0xe1), number: 1, fields }] as const));
    return issuesOf(input, { ...context, properties, events }).every((issue) => beyondSchemas.test(issue));
  });
}

test('what is refused by a schema of the description is refused by the reader, and the other way round', () => {
  const disagreeing = [...refusals.map(([input]) => input), mixed].filter(
    // JSON has neither undefined nor numbers that are not finite.
    (input) =>
      !/null|undefined/.test(String(JSON.stringify(input))) && isDescribed(input) !== isWellFormed(input),
  );
  expect(disagreeing).toEqual([]);
});

test('schema and reader agree on conditions of any fields', () => {
  const values = fc.constantFrom<unknown>(
    ...['x', '', 5, 1.5, true, null, '2026-11-21', '2026-11-21T10:00:00Z', '2026-13-01', id(1), id(0xca)],
    ...[['a'], [], [1, 2], [2, 1], [1], [1, 2, 3], ['2026-01-01', '2026-02-01T00:00:00Z'], [id(1)], ['a', 1]],
    ...[day(3), day(0), day(1.5), day(3, 'month'), { value: 3 }, { ...day(3), more: 1 }],
  );
  const countOfEvent = fc.record(
    { operator: fc.constantFrom('eq', 'lte', 'in'), value: fc.oneof(fc.nat({ max: 2 }), values) },
    { requiredKeys: ['operator'] },
  );
  const fieldOfEvent = fc.record(
    {
      field: fc.constantFrom('total', 'total', ''),
      operator: fc.constantFrom('eq', 'gt', 'contains', 'is_true', 'between', 'before', 'within_last', 'x'),
      value: values,
    },
    { requiredKeys: ['field', 'operator'] },
  );
  const forms = Object.entries(leafTypes).flatMap(([type, leaf]) =>
    leaf.forms.map(({ fields }) => ({ type, fields })),
  );
  const known = (field: string, schema: { enum?: unknown }) =>
    Array.isArray(schema.enum)
      ? fc.constantFrom(...(schema.enum as unknown[]))
      : field === 'key'
        ? fc.constantFrom('plan', 'score')
        : field === 'where'
          ? fc.array(fieldOfEvent, { maxLength: 2 }).map((items) => items.map(withOwnField))
          : field === 'count'
            ? countOfEvent
            : values;
  const leaf = fc
    .constantFrom(...forms)
    .chain(({ type, fields }) =>
      fc
        .record(
          Object.fromEntries(
            Object.entries(fields).map(([field, schema]) => [
              field,
              fc.oneof({ arbitrary: known(field, schema), weight: 9 }, { arbitrary: values, weight: 1 }),
            ]),
          ),
          { requiredKeys: [] },
        )
        .chain((record) =>
          fc.constantFrom({ type, ...record }, { type, ...record }, { type, ...record, more: 1 }),
        ),
    );
  const verdicts = new Map<boolean, number>();
  fc.assert(
    fc.property(
      fc.oneof(
        leaf,
        fc.array(leaf, { maxLength: 2 }).map((leaves) => all(...leaves.map(withOwnKey))),
      ),
      (input) => {
        const verdict = isDescribed(input);
        verdicts.set(verdict, (verdicts.get(verdict) ?? 0) + 1);
        return verdict === isWellFormed(input);
      },
    ),
    { numRuns: 2_000 },
  );
  expect(verdicts.get(true)).toBeGreaterThan(100);
  expect(verdicts.get(false)).toBeGreaterThan(100);
});

/** As `withOwnKey`, of the conditions on the fields of one event. */
function withOwnField(condition: { field: string }, index: number) {
  return condition.field === '' ? condition : { ...condition, field: `${condition.field}_${index}` };
}

/** The leaf about a property of its own: no schema can say that two conditions need one property's type. */
function withOwnKey(leaf: { type: string; key?: unknown }, index: number) {
  return typeof leaf.key === 'string' && leaf.key !== '' ? { ...leaf, key: `${leaf.key}_${index}` } : leaf;
}

test('what is wrong in many places is told fifty times at most', () => {
  const issues = issuesOf(all(...Array<unknown>(5_000).fill(7)));
  expect(issues).toHaveLength(50);
  expect(issuesOf(listOf(...Array<unknown>(100).fill('x')))).toHaveLength(50);
});

test('an input nested 20,000 deep is refused', () => {
  let input: unknown = vip;
  for (let level = 0; level < 20_000; level += 1) input = all(input);
  expect(issuesOf(input)).toHaveLength(1);
  expect(collectMentionedNames(input)).toEqual(noNames);
});

test('no input makes reading throw, and what is refused has a reason', () => {
  fc.assert(
    fc.property(fc.oneof(fc.anything(), mangledTrees), (input) => {
      const reading = parseConditions(input, context);
      const names = Object.values(collectMentionedNames(input)).flat();
      expect(reading.ok || reading.issues.length > 0).toBe(true);
      expect(names.length).toBeLessThanOrEqual(10_000);
    }),
  );
});

/** Trees of which some parts are right and others anything. */
const mangledTrees = fc.letrec<{ tree: unknown }>((tie) => ({
  tree: fc.record(
    {
      type: fc.oneof(fc.constantFrom(...typeNames.split(', ')), fc.anything()),
      match: fc.constantFrom('all', 'any', 'none'),
      conditions: fc.array(tie('tree'), { maxLength: 3 }),
      key: fc.constantFrom('plan', 'score', 'vip', 'born'),
      field: fc.constantFrom('email', 'created_at'),
      operator: fc.constantFrom('in', 'eq', 'between', 'within_last', 'is'),
      value: fc.anything(),
      ids: fc.oneof(fc.array(fc.uuid()), fc.anything()),
      campaign_id: fc.oneof(fc.uuid(), fc.anything()),
      within: fc.anything(),
      event: fc.constantFrom('order.completed', 'x'),
      count: fc.anything(),
      where: fc.oneof(
        fc.array(fc.record({ field: fc.constantFrom('total', 'x'), operator: fc.anything() })),
        fc.anything(),
      ),
    },
    { requiredKeys: ['type'] },
  ),
})).tree;

const mixed = all(
  property('score', 'gt', 5),
  property('score', 'lt', 9),
  listOf(id(1), id(0xabc).toUpperCase()),
  { type: 'group', match: 'none', conditions: [{ type: 'segment', operator: 'not_in', ids: [id(3)] }, vip] },
);

test('what a tree speaks of is told once each', () => {
  expect(referencesOf(parse(mixed))).toEqual([
    { kind: 'property', id: id(12) },
    { kind: 'list', id: id(1) },
    { kind: 'list', id: id(0xabc) },
    { kind: 'segment', id: id(3) },
    { kind: 'property', id: id(13) },
  ]);
  expect(referencesOf(parse(all(order(), order({ within: day(1) }))))).toEqual([
    { kind: 'event', id: id(0xe1) },
  ]);
});

test('the names that a tree mentions are collected before any of them is known, wrong parts or not', () => {
  const wrong = { type: 'tag', operator: 'maybe', ids: [id(2), 'x'], more: 1 };
  const ofCampaigns = [0xca, 0xcb, 0xca].map((number) => message({ campaign_id: id(number).toUpperCase() }));
  const ofEvents = [order({ where: 7 }), order({ event: 'x' }), order()];
  expect(
    collectMentionedNames(all(mixed, wrong, property('nope', 'x'), ...ofCampaigns, ...ofEvents)),
  ).toEqual({
    propertyKeys: ['score', 'vip', 'nope'],
    setIds: [id(1), id(0xabc), id(3), id(2)],
    campaignIds: [id(0xca), id(0xcb)],
    eventNames: ['order.completed', 'x'],
  });
  expect(collectMentionedNames('x')).toEqual(noNames);
});

test('a tree of which every id is unknown still has all of them collected', () => {
  const ids = Array.from({ length: 100 }, (_, index) => id(1_000 + index));
  expect(collectMentionedNames(all(listOf(...ids), property('plan', 'is_set')))).toEqual({
    ...noNames,
    propertyKeys: ['plan'],
    setIds: ids,
  });
});

test.each<[unknown, boolean, boolean]>([
  [mixed, false, false],
  [all(vip, property('born', 'not_within_last', day(1))), true, false],
  [{ type: 'field', field: 'created_at', operator: 'within_last', value: day(1) }, true, false],
  [{ type: 'field', field: 'created_at', operator: 'after', value: '2026-11-21' }, false, false],
  [all(all(message())), false, true],
  [message({ within: day(7) }), true, true],
  [message({ campaign_id: id(0xca) }), false, true],
])('%j: changes with time %s, with messages %s', (input, withTime, withMessages) => {
  const condition = parse(input);
  expect([isTimeBound(condition), readsMessages(condition)]).toEqual([withTime, withMessages]);
});

test('an explanation has the form of the input, with the answer at every condition', () => {
  expect(explainConditions(parse(mixed), [true, true, true, false, false])).toEqual({
    type: 'group',
    match: 'all',
    holds: true,
    conditions: [
      { type: 'property', key: 'score', operator: 'gt', value: 5, holds: true },
      { type: 'property', key: 'score', operator: 'lt', value: 9, holds: true },
      { type: 'list', operator: 'in', ids: [id(1), id(0xabc).toUpperCase()], holds: true },
      {
        type: 'group',
        match: 'none',
        holds: true,
        conditions: [
          { type: 'segment', operator: 'not_in', ids: [id(3)], holds: false },
          { type: 'property', key: 'vip', operator: 'is_true', holds: false },
        ],
      },
    ],
  });
});

test.each([
  ['all', [true, true], true],
  ['all', [true, false], false],
  ['any', [false, true], true],
  ['any', [false, false], false],
  ['none', [false, false], true],
  ['none', [false, true], false],
] as const)('a group of %s whose conditions are %j: %s', (match, truths, expected) => {
  expect(explainConditions(parse({ ...all(vip, vip), match }), truths).holds).toBe(expected);
});

test('an explanation of other leaves than the tree has is refused', () => {
  expect(() => explainConditions(parse(mixed), [true])).toThrow('more leaves than truths');
  expect(() => explainConditions(parse(vip), [true, true])).toThrow('more truths than leaves');
});

test('no text of the input becomes text of the statement', () => {
  const hostile = "x'); drop table contacts; --";
  const texts = [
    plan('eq', hostile),
    plan('in', [hostile]),
    plan('not_contains', hostile),
    plan('ends_with', hostile),
    where({ field: 'code', operator: 'eq', value: hostile }),
  ];
  const values: unknown[] = [];
  const [sql, at] = [(value: unknown) => `$${values.push(value)}`, new Date(0)];
  expect(
    compileLeaves(parse(all(...texts)), {
      bind: sql,
      at,
      organization: '$1',
      eventCounts: null,
    }).join(),
  ).not.toContain('drop');
  expect(values.flat()).toContain(hostile);
});
