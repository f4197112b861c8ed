import { type FieldType, fieldTypes, fieldValue, hasDone } from '../../events/events.ts';
import { toComposed } from '../../platform/characters.ts';
import { dateOf } from '../../platform/clock.ts';
import { allOf, negate, type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';
import type { Compiler, LeafType } from '../leaf.ts';
import { booleanType } from '../operators/boolean.ts';
import { dateType } from '../operators/date.ts';
import { numberType } from '../operators/number.ts';
import {
  comparisonFields,
  groupOperators,
  operatorsOf,
  readComparison,
  type ReadComparison,
  type ValueType,
} from '../operators/operator.ts';
import { textType } from '../operators/text.ts';
import {
  addIssue,
  addUnknown,
  type ConditionEvent,
  findMember,
  itemsSchema,
  periodSchema,
  type Place,
  type Reading,
  readInteger,
  readItems,
  readMembers,
  readOneOf,
  readPeriodMs,
  readText,
  refuseOtherMembers,
  takeMember,
  textSchema,
} from '../reading.ts';

/** Each costs a look into the payload of every event that counts. */
const whereMax = 10;

/** More than anybody does, and few enough that one more is a number too. */
const countMax = 1_000_000;

/** How each type's values are compared; `fieldValue` brings them into these forms. */
const types: Readonly<Record<FieldType, ValueType>> = {
  string: textType(toComposed),
  number: numberType,
  integer: numberType,
  boolean: booleanType,
  date: dateType,
};

/** The predicates that a count is made of: so many times or more, or just so many, of which there is one at least. */
type Times = { least: (count: number) => Predicate; exactly: (count: number) => Predicate };

const atLeast = (count: number, { least }: Times) => (count === 0 ? allOf([]) : least(count));
const equals = (count: number, { least, exactly }: Times) =>
  count === 0 ? negate(least(1)) : exactly(count);

/** Those that also hold for a contact without any event are negations, so that none needs a row for what is not there. */
const countOperators = {
  eq: equals,
  neq: (count, times) => negate(equals(count, times)),
  gt: (count, { least }) => least(count + 1),
  gte: atLeast,
  lt: (count, times) => negate(atLeast(count, times)),
  lte: (count, { least }) => negate(least(count + 1)),
} satisfies Record<string, (count: number, times: Times) => Predicate>;

type CountOperator = keyof typeof countOperators;

const countOperatorNames = Object.keys(countOperators) as CountOperator[];

type Count = { operator: CountOperator; value: number };

/** An event that the organization defined. */
export const eventCondition: LeafType = {
  description:
    'How often the contact did something: sent as an event that you defined, by its name. At least once, or as `count` ' +
    'says (`eq` 0: never); at any time, or recently (`within`); of those for which all of `where` hold, which asks ' +
    'about declared fields. The type of a field decides which operators can be used: ' +
    `${fieldTypes.map((type) => `${type}: ${operatorsOf(types[type]).join(', ')}`).join('; ')}.`,
  title: 'EventCondition',
  forms: [
    {
      fields: {
        event: textSchema,
        count: {
          title: 'EventCount',
          type: 'object',
          required: ['operator', 'value'],
          properties: {
            operator: { type: 'string', enum: countOperatorNames },
            value: { type: 'integer', minimum: 0, maximum: countMax },
          },
          additionalProperties: false,
        },
        within: periodSchema,
        where: itemsSchema(
          {
            title: 'EventFieldCondition',
            type: 'object',
            oneOf: groupOperators(Object.values(types)).map((group) => {
              const properties = { field: textSchema, ...comparisonFields(group) };
              return {
                type: 'object',
                required: Object.keys(properties),
                properties,
                additionalProperties: false,
              };
            }),
          },
          whereMax,
        ),
      },
      optional: ['count', 'within', 'where'],
    },
  ],
  example: {
    type: 'event',
    event: 'order.completed',
    count: { operator: 'gte', value: 2 },
    within: { value: 30, unit: 'day' },
    where: [{ field: 'total', operator: 'gt', value: 100 }],
  },
  read: (reading, members) => {
    refuseOtherMembers(reading, members, ['type', 'event', 'count', 'within', 'where']);
    const eventPlace = takeMember(reading, members, 'event');
    const event = eventPlace && readEvent(reading, eventPlace);
    const countPlace = findMember(members, 'count');
    const count: Count | null =
      countPlace === null ? { operator: 'gte', value: 1 } : readCount(reading, countPlace);
    const withinPlace = findMember(members, 'within');
    const periodMs = withinPlace && readPeriodMs(reading, withinPlace);
    // Which fields there are depends on the event.
    const wherePlace = event && findMember(members, 'where');
    const where =
      wherePlace === null
        ? []
        : readItems(reading, wherePlace, whereMax, (_reading, place) => readField(reading, place, event));
    if (event === null || count === null || where === null) return null;
    if (withinPlace !== null && periodMs === null) return null;
    const withinMs = shorterOf(periodMs, reading.eventsKeptMs);
    return {
      compile: (compiler) =>
        countOperators[count.operator](count.value, timesOf(compiler, event, withinMs, where)),
      references: [{ kind: 'event', id: event.id }],
      isTimeBound: where.some(({ comparison }) => comparison.isTimeBound),
      readsMessages: false,
      event: { id: event.id, number: event.number, fields: where.map(({ name }) => name), withinMs },
    };
  },
};

/** What is too old to be kept does not count, whether it is deleted already or will be within the hour. */
function shorterOf(periodMs: number | null, keptMs: number | null): number | null {
  return periodMs === null || keptMs === null ? (periodMs ?? keptMs) : Math.min(periodMs, keptMs);
}

function readEvent(reading: Reading, place: Place): ConditionEvent | null {
  const name = readText(reading, place);
  if (name === null) return null;
  return reading.findEvent(name) ?? addUnknown(reading, `${place.path} is not a defined event`);
}

function readCount(reading: Reading, place: Place): Count | null {
  const members = readMembers(reading, place);
  if (members === null) return null;
  refuseOtherMembers(reading, members, ['operator', 'value']);
  const [operatorPlace, valuePlace] = [
    takeMember(reading, members, 'operator'),
    takeMember(reading, members, 'value'),
  ];
  const operator = operatorPlace && readOneOf(reading, operatorPlace, countOperatorNames);
  const value = valuePlace && readInteger(reading, valuePlace, { min: 0, max: countMax });
  return operator === null || value === null ? null : { operator, value };
}

type FieldCondition = { name: string; type: FieldType; comparison: ReadComparison };

function readField(reading: Reading, place: Place, event: ConditionEvent | null): FieldCondition | null {
  const members = readMembers(reading, place);
  if (members === null) return null;
  const fieldPlace = takeMember(reading, members, 'field');
  const name = fieldPlace && readText(reading, fieldPlace);
  const type = name === null ? undefined : event?.fields.get(name);
  if (fieldPlace !== null && name !== null && type === undefined) {
    addIssue(reading, `${fieldPlace.path} is not a declared field of the event`);
  }
  if (name === null || type === undefined) {
    refuseOtherMembers(reading, members, ['field', 'operator', 'value']);
    return null;
  }
  const comparison = readComparison(reading, members, types[type], ['field']);
  return comparison === null ? null : { name, type, comparison };
}

function timesOf(
  compiler: Compiler,
  event: ConditionEvent,
  withinMs: number | null,
  where: readonly FieldCondition[],
): Times {
  const { bind, at, organization, eventCounts } = compiler;
  const compileCounted = () => ({
    eventNumber: event.number,
    since: withinMs === null ? null : dateOf(at.getTime() - withinMs),
    where: where.map(({ comparison, ...field }) =>
      comparison.compile(eventCounts?.valueOf(event.number, field) ?? fieldValue(field, bind), compiler),
    ),
  });
  if (eventCounts === null) {
    const done = (times: { least: number } | { exactly: number }) =>
      hasDone({ ...compileCounted(), times }, { organization, contact: 'contact.id' }, bind);
    return { least: (count) => done({ least: count }), exactly: (count) => done({ exactly: count }) };
  }
  const compare = (operator: '>=' | '=', count: number) =>
    toPredicate(`${eventCounts.countOf(compileCounted())} ${operator} ${bind(count)}::bigint`);
  return { least: (count) => compare('>=', count), exactly: (count) => compare('=', count) };
}
