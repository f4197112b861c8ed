import { expect, test } from 'vitest';
import { columnNameOf, type ColumnOptions, mapColumns, pathOf } from './import-columns.ts';
import type { Property } from '../schema.ts';

const property = (key: string, number: number): [string, Property] => [
  key,
  { id: `id of ${key}`, number, key, type: 'string' },
];
const properties = new Map([
  property('plan', 1),
  property('favourite_color', 2),
  property('email', 3),
  property('language', 4),
  property('a_b', 5),
  property('ab', 6),
]);

function map(head: readonly string[], options: Partial<ColumnOptions> = {}) {
  const mapped = mapColumns(head, properties, { mapped: [], ignored: [], ...options });
  return mapped.kind === 'refused' ? mapped.problem : mapped.columns.map(({ target }) => pathOf(target));
}

test('columns are known by what people call them', () => {
  expect(
    map([
      'External ID',
      ' E-Mail ',
      'Phone',
      'first name',
      'Surname',
      'Locale',
      'TZ',
      'Plan',
      'Favourite Color',
    ]),
  ).toEqual([
    ...['external_id', 'email', 'phone_number', 'first_name', 'last_name', 'locale', 'timezone'],
    ...['properties.plan', 'properties.favourite_color'],
  ]);
  expect(map(['email', 'SMS consent', 'email_consent', 'Tags', 'list'])).toEqual([
    ...['email', 'consent.sms', 'consent.email', 'tags', 'lists'],
  ]);
});

test('a property goes before the other names of a field, and its full name before everything', () => {
  expect(map(['email', 'language'])).toEqual(['email', 'properties.language']);
  expect(map(['email', 'properties.email'])).toEqual(['email', 'properties.email']);
  expect(map(['email', 'ab', 'A_B'])).toEqual(['email', 'properties.ab', 'properties.a_b']);
  expect(map(['email', 'a b'])).toMatch(/Unknown column: "a b"/);
});

test('a column that nobody knows is refused, named with what to do', () => {
  const problem = map(['email', 'Nonsense', 'More']);
  expect(problem).toMatch(/"Nonsense", "More"/);
  expect(problem).toMatch(/--map "Nonsense=FIELD"/);
  expect(problem).toMatch(/--ignore "Nonsense"/);
  expect(problem).toMatch(/external_id, email,.*sms_consent.*Properties: a_b, ab, email/);
});

test('columns can be mapped and passed over, and those that are not there cannot', () => {
  const head = ['Kundennummer', 'email', 'Notes'];
  const options = { mapped: [{ column: 'kundennummer', field: 'external_id' }], ignored: ['notes'] };
  expect(map(head, options)).toEqual(['external_id', 'email', null]);
  expect(map(['email', 'Color'], { mapped: [{ column: 'Color', field: 'favourite_color' }] })).toEqual([
    ...['email', 'properties.favourite_color'],
  ]);
  expect(map(['email'], { ignored: ['Notes'] })).toMatch(/no column "Notes". It has "email"/);
  expect(map(['email', 'x'], { mapped: [{ column: 'x', field: 'nothing' }] })).toMatch(/Unknown column: "x"/);
});

test('two columns for one field, and none that tells contacts apart, are refused', () => {
  expect(map(['E-mail', 'email'])).toMatch(/"E-mail", "email" would both be email/);
  expect(map(['first_name', 'plan'])).toMatch(/No column is an external_id/);
  expect(map(['email', 'Notes', 'notes'], { ignored: ['notes'] })).toEqual(['email', null, null]);
});

test('a column without a name is no column of the file, and too many are none either', () => {
  expect(map(['email', '', ''])).toEqual(['email', null, null]);
  expect(map(['email', ...Array.from({ length: 1_000 }, () => '')])).toMatch(/more than 1000 columns/);
});

test('the name that an export gives to a property leads back to it', () => {
  for (const each of properties.values()) {
    const name = columnNameOf(each, properties);
    expect(map([each.key === 'email' ? 'external_id' : 'email', name])).toEqual([
      expect.anything(),
      `properties.${each.key}`,
    ]);
  }
  expect(columnNameOf(properties.get('plan')!, properties)).toBe('plan');
});
