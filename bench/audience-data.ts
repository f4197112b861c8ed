import type { PropertyType } from '../src/audience/schema.ts';
import { type Database, unpreparedStatement } from '../src/platform/postgres/database.ts';

/**
 * An audience as a shop has it, the same at every run: contacts with 20 properties, 50 lists and 100 tags of very
 * different sizes. As a CSV file for imports, and written straight into the tables for all that begins with contacts.
 */

export const listsCount = 50;
export const tagsCount = 100;

/** Of each contact at most; those that fall on the same one count once. */
const listsPerContact = 2;
const tagsPerContact = 2;

type PropertyData = {
  key: string;
  type: PropertyType;
  /** Of a contact, by its number and a share that looks random, from 0 to 1; null for the many that have none. */
  valueOf: (index: number, share: number) => string | number | boolean | null;
};

const plans = ['free', 'free', 'free', 'free', 'free', 'free', 'starter', 'starter', 'team', 'enterprise'];
const countries = ['DE', 'DE', 'DE', 'US', 'US', 'FR', 'GB', 'NL', 'AT', 'CH', 'ES', 'IT', 'PL', 'SE', 'JP'];
const cities = ['Berlin', 'Hamburg', 'München', 'New York', 'Paris', 'London', 'Amsterdam', 'Wien', 'Zürich'];
const firstNames = [
  'Ada',
  'Bo',
  'Chloé',
  'Dmitri',
  'Elif',
  'Fatima',
  'Günther',
  'Hana',
  'Ines',
  'João',
  'Kim',
];
const lastNames = [
  'Smith',
  'Müller',
  'García',
  'Nguyen',
  'Kowalski',
  "O'Brien",
  'Rossi',
  'Svensson',
  'Tanaka',
];
const locales = ['de-DE', 'en-US', 'en-GB', 'fr-FR', 'nl-NL', 'es-ES'];
const timezones = ['Europe/Berlin', 'America/New_York', 'Europe/London', 'Europe/Paris', 'Asia/Tokyo'];

const pick = <Item>(items: readonly Item[], share: number) => items[Math.floor(share * items.length)]!;
const twoDigits = (number: number) => `${number}`.padStart(2, '0');
const day = (share: number) =>
  `${2016 + Math.floor(share * 11)}-${twoDigits(1 + Math.floor((share * 1_000) % 12))}-${twoDigits(1 + Math.floor((share * 100_000) % 28))}`;
const some = <Value>(share: number, part: number, value: Value) => (share < part ? value : null);

/** The first twelve are in the file. */
export const propertiesData: readonly PropertyData[] = [
  { key: 'plan', type: 'string', valueOf: (_index, share) => pick(plans, share) },
  { key: 'country', type: 'string', valueOf: (_index, share) => pick(countries, share) },
  { key: 'city', type: 'string', valueOf: (_index, share) => some(share, 0.9, pick(cities, share)) },
  { key: 'company', type: 'string', valueOf: (index, share) => some(share, 0.3, `Company ${index % 5_000}`) },
  // A few spend a great deal.
  { key: 'lifetime_value', type: 'number', valueOf: (_index, share) => Math.round(share ** 8 * 1e6) / 100 },
  { key: 'orders', type: 'number', valueOf: (_index, share) => Math.floor(share ** 4 * 200) },
  { key: 'score', type: 'number', valueOf: (_index, share) => Math.floor(share * 101) },
  { key: 'is_customer', type: 'boolean', valueOf: (_index, share) => share < 0.4 },
  { key: 'is_trial', type: 'boolean', valueOf: (_index, share) => some(share, 0.5, share < 0.1) },
  { key: 'signed_up_at', type: 'date', valueOf: (_index, share) => day(share) },
  { key: 'last_order_at', type: 'date', valueOf: (_index, share) => some(share, 0.4, day(share)) },
  { key: 'coupon', type: 'string', valueOf: (index, share) => some(share, 0.2, `SAVE-${index % 100}`) },
  { key: 'birthday', type: 'date', valueOf: (_index, share) => some(share, 0.3, day(share)) },
  { key: 'gender', type: 'string', valueOf: (_index, share) => pick(['female', 'male', 'other'], share) },
  { key: 'source', type: 'string', valueOf: (_index, share) => pick(['web', 'app', 'shop', 'fair'], share) },
  { key: 'referrer', type: 'string', valueOf: (_index, share) => some(share, 0.1, 'a friend') },
  { key: 'height_cm', type: 'number', valueOf: (_index, share) => some(share, 0.05, 150 + share * 50) },
  { key: 'wants_paper', type: 'boolean', valueOf: (_index, share) => some(share, 0.2, share < 0.02) },
  { key: 'renews_at', type: 'date', valueOf: (_index, share) => some(share, 0.15, day(share)) },
  { key: 'note', type: 'string', valueOf: (index, share) => some(share, 0.02, `met at fair ${index % 7}`) },
];

const propertiesInFile = propertiesData.slice(0, 12);

/** Mulberry32: small, and good enough to tell contacts apart. */
function shareOf(index: number, salt: number): number {
  let state = (Math.imul(index, 0x9e3779b1) + Math.imul(salt, 0x85ebca6b)) | 0;
  state = (state + 0x6d2b79f5) | 0;
  let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
  mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
}

const fileHead = [
  ...[
    'external_id',
    'email',
    'phone_number',
    'first_name',
    'last_name',
    'locale',
    'timezone',
    'email_consent',
  ],
  ...propertiesInFile.map(({ key }) => key),
];

/**
 * The text of a CSV file, with 20 columns and, where asked for, one of tags. Quoted where it has to be; addresses in
 * no order, as in every file that comes from somewhere else.
 */
export function* audienceCsv(contacts: number, options: { hasTags: boolean }): Generator<string> {
  const head = options.hasTags ? [...fileHead, 'tags'] : fileHead;
  let text = `${head.join(',')}\n`;
  for (let index = 1; index <= contacts; index += 1) {
    text += `${csvLine(index, options.hasTags)}\n`;
    if (text.length < 65_536) continue;
    yield text;
    text = '';
  }
  yield text;
}

function csvLine(index: number, hasTags: boolean): string {
  const share = (salt: number) => shareOf(index, salt);
  const [first, last] = [pick(firstNames, share(1)), pick(lastNames, share(2))];
  const cells = [
    `crm-${index}`,
    `${share(3).toString(36).slice(2, 9)}${index}@${pick(['example.com', 'example.org', 'mail.test'], share(4))}`,
    share(5) < 0.6 ? `+4915${String(10_000_000 + index).padStart(9, '0')}` : '',
    first,
    last,
    pick(locales, share(6)),
    pick(timezones, share(7)),
    share(8) < 0.9 ? 'subscribed' : 'unsubscribed',
    ...propertiesInFile.map(({ valueOf }, salt) => {
      const value = valueOf(index, share(20 + salt));
      return value === null ? '' : `${value}`;
    }),
  ];
  if (hasTags) {
    const tags = Array.from({ length: tagsPerContact }, (_none, salt) => tagOf(share(50 + salt)));
    cells.push([...new Set(tags)].join(';'));
  }
  return cells.map((cell) => (/[",;\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(',');
}

/** Half of all tags given are the first dozen. */
function tagOf(share: number): string {
  return `tag-${Math.floor(share ** 3 * tagsCount)}`;
}

/** Ids of what a direct fill makes, each the same at every run: `kind` 1 is contacts, 2 lists, 3 tags, 4 properties. */
const idExpression = (kind: number, number: string) =>
  `(lpad(to_hex(1760000000000 + ${number}), 12, '0') || '7000${8_000 + kind}' || lpad(to_hex(${number}), 12, '0'))::uuid`;

const kinds = { contact: 1, list: 2, tag: 3, property: 4 } as const;

/** The id of the list, tag, property or contact of a number, counted from 1. */
export function idOfFilled(kind: keyof typeof kinds, number: number): string {
  const hex = `${(1_760_000_000_000 + number).toString(16).padStart(12, '0')}7000${8_000 + kinds[kind]}${number.toString(16).padStart(12, '0')}`;
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

/** A share that looks random, by a salt and the number `n`. */
const sqlShare = (salt: number) => `((hashint8(n * 1000 + ${salt})::bigint + 2147483648) / 4294967296.0)`;

/** `share` as a text of one of these. */
const sqlPick = (items: readonly string[], salt: number) =>
  `(array[${items.map((item) => `'${item.replaceAll("'", "''")}'`).join(', ')}])[1 + floor(${sqlShare(salt)} * ${items.length})::int]`;

const sqlDay = (salt: number) =>
  `to_char(date '2016-01-01' + floor(${sqlShare(salt)} * 3900)::int, 'YYYY-MM-DD')`;
const sqlSome = (salt: number, part: number, value: string) =>
  `case when ${sqlShare(salt)} < ${part} then ${value} end`;

/** The same kinds of values as in the file, made by PostgreSQL. */
const sqlProperties: Record<string, string> = {
  plan: sqlPick(plans, 20),
  country: sqlPick(countries, 21),
  city: sqlSome(22, 0.9, sqlPick(cities, 122)),
  company: sqlSome(23, 0.3, `'Company ' || n % 5000`),
  lifetime_value: `round((${sqlShare(24)} ^ 8 * 10000)::numeric, 2)`,
  orders: `floor(${sqlShare(25)} ^ 4 * 200)`,
  score: `floor(${sqlShare(26)} * 101)`,
  is_customer: `${sqlShare(27)} < 0.4`,
  is_trial: sqlSome(28, 0.5, `${sqlShare(128)} < 0.2`),
  signed_up_at: sqlDay(29),
  last_order_at: sqlSome(30, 0.4, sqlDay(130)),
  coupon: sqlSome(31, 0.2, `'SAVE-' || n % 100`),
  birthday: sqlSome(32, 0.3, sqlDay(132)),
  gender: sqlPick(['female', 'male', 'other'], 33),
  source: sqlPick(['web', 'app', 'shop', 'fair'], 34),
  referrer: sqlSome(35, 0.1, "'a friend'"),
  height_cm: sqlSome(36, 0.05, `round((150 + ${sqlShare(136)} * 50)::numeric, 1)`),
  wants_paper: sqlSome(37, 0.2, `${sqlShare(137)} < 0.1`),
  renews_at: sqlSome(38, 0.15, sqlDay(138)),
  note: sqlSome(39, 0.02, `'met at fair ' || n % 7`),
};

/** The properties alone, for imports. Their numbers are the places in `propertiesData`, counted from 1. */
export async function defineProperties(database: Database, organizationId: string): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `insert into contact_properties (organization_id, id, number, key, name, name_key, type, created_at, updated_at)
       select $1, ${idExpression(kinds.property, 'n')}, n, key, key, key, type, now(), now()
       from unnest($2::text[], $3::text[]) with ordinality as property (key, type, n)`,
    ),
    [organizationId, propertiesData.map(({ key }) => key), propertiesData.map(({ type }) => type)],
  );
}

/** Few enough that a statement ends in time. */
const filledAtOnce = 50_000;

/**
 * Fills an organization's tables without looking: it must have no contacts, sets or properties. A million take two or
 * three minutes, half of it for their memberships. Nothing is analyzed, as in an
 * installation on its first day.
 */
export async function fillAudience(
  database: Database,
  { organizationId, contacts }: { organizationId: string; contacts: number },
): Promise<void> {
  await defineProperties(database, organizationId);
  const insertSets = (kind: 'list' | 'tag', count: number) =>
    database.rows(
      unpreparedStatement(
        `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at)
         select $1, ${idExpression(kinds[kind], 'n')}, '${kind}', '${kind}-' || (n - 1), '${kind}-' || (n - 1), now(), now()
         from generate_series(1, $2::bigint) n`,
      ),
      [organizationId, count],
    );
  await insertSets('list', listsCount);
  await insertSets('tag', tagsCount);
  for (let from = 1; from <= contacts; from += filledAtOnce) {
    const to = Math.min(from + filledAtOnce - 1, contacts);
    await database.rows(unpreparedStatement(insertContactsText), [organizationId, from, to]);
    await database.rows(unpreparedStatement(insertMembershipsText('list')), [organizationId, from, to]);
    await database.rows(unpreparedStatement(insertMembershipsText('tag')), [organizationId, from, to]);
  }
}

const propertyPairs = propertiesData
  .map(({ key }, index) => `'${index + 1}', ${sqlProperties[key] ?? 'null'}`)
  .join(', ');

const insertContactsText = `
  insert into contacts
    (organization_id, id, external_id, email, email_key, phone_number, first_name, last_name, name_key, last_name_key,
    locale, timezone, properties, unsubscribed_channels, created_at, updated_at)
  select $1, ${idExpression(kinds.contact, 'n')}, 'crm-' || n, email, email, phone_number, first_name, last_name,
    lower(first_name || ' ' || last_name), lower(last_name), locale, timezone, properties,
    case when ${sqlShare(8)} < 0.9 then '{}' else '{email}' end::text[], at, at
  from (
    select n, substr(md5(n::text), 1, 7) || n || '@' || ${sqlPick(['example.com', 'example.org', 'mail.test'], 4)} as email,
      case when ${sqlShare(5)} < 0.6 then '+4915' || lpad((10000000 + n)::text, 9, '0') end as phone_number,
      ${sqlPick(firstNames, 1)} as first_name, ${sqlPick(lastNames, 2)} as last_name,
      ${sqlPick(locales, 6)} as locale, ${sqlPick(timezones, 7)} as timezone,
      jsonb_strip_nulls(jsonb_build_object(${propertyPairs})) as properties,
      to_timestamp((1760000000000 + n) / 1000.0) as at
    from generate_series($2::bigint, $3::bigint) n
  ) made`;

function insertMembershipsText(kind: 'list' | 'tag'): string {
  const [count, draws, salt] =
    kind === 'list' ? [listsCount, listsPerContact, 60] : [tagsCount, tagsPerContact, 70];
  const drawn = Array.from(
    { length: draws },
    (_none, draw) => `(1 + floor(${sqlShare(salt + draw)} ^ 3 * ${count})::int)`,
  );
  return `
    insert into memberships (organization_id, set_id, contact_id)
    select distinct $1::uuid, ${idExpression(kinds[kind], 'set_number')}, ${idExpression(kinds.contact, 'n')}
    from generate_series($2::bigint, $3::bigint) n
    cross join lateral unnest(array[${drawn.join(', ')}]) set_number
    order by 2, 3`;
}
