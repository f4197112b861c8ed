import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  holds,
  type OracleCondition,
  type OracleContact,
  type OracleRecipient,
  type OracleWorld,
} from '../../test/support/condition-oracle.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { parseDateValue, syncMembers } from '../audience/audience.ts';
import { platforms } from '../devices/devices.ts';
import { systemClock } from '../platform/clock.ts';
import { isStorableNumber } from '../platform/http/json-text.ts';
import { createIds, lowestIdAt } from '../platform/ids.ts';
import { type Connection, type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { sha256 } from '../platform/secrets.ts';
import { compileConditions, compileLeaves, compilePredicate } from './compile.ts';
import { type Condition, type ConditionContext, listLeaves, parseConditions } from './conditions.ts';
import { booleanType } from './operators/boolean.ts';
import { dateType } from './operators/date.ts';
import { numberType } from './operators/number.ts';
import { operatorsOf } from './operators/operator.ts';
import { textType } from './operators/text.ts';
import { countMatching } from './store.ts';

let database: Database;
const newId = createIds(systemClock);

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

const midnightMs = Date.parse('2026-11-21T00:00:00.000Z');
const middayMs = Date.parse('2026-11-21T12:00:00.000Z');
const dayMs = 86_400_000;

const propertyTypes = {
  plan: 'string',
  city: 'string',
  score: 'number',
  vip: 'boolean',
  born: 'date',
} as const;
const propertyKeys = Object.keys(propertyTypes) as (keyof typeof propertyTypes)[];
const setKinds = ['list', 'tag', 'segment'] as const;
const sets = setKinds.flatMap((kind) => [1, 2].map(() => ({ kind, id: newId() })));
const context: ConditionContext = {
  properties: new Map(
    propertyKeys.map((key, index) => [key, { id: newId(), number: index + 9, type: propertyTypes[key] }]),
  ),
  sets: new Map(sets.map(({ id, kind }) => [id, kind])),
  campaignMessages: new Map(
    [40, 2].map((days) => [newId(), { messageId: messageIdAt(middayMs - days * dayMs), channel: 'email' }]),
  ),
  events: new Map(),
  eventsKeptMs: null,
};
const campaignIds = [...context.campaignMessages.keys()];

function messageIdAt(acceptedAtMs: number): string {
  return lowestIdAt(acceptedAtMs).slice(0, 14) + newId().slice(14);
}

type Given = Omit<OracleContact, 'recipients'> & {
  recipients: GivenRecipient[];
};

type GivenRecipient = OracleRecipient & { acceptedAtMs: number };

/** Inserts the contacts into an organization of their own, and gives their ids in the same order. */
async function insertContacts(
  contacts: readonly Given[],
): Promise<{ organizationId: string; ids: string[] }> {
  const [organizationId, decoyId] = [newId(), newId()];
  const ids = contacts.map(() => newId());
  const rows = contacts.map((contact, index) => ({ ...contact, id: ids[index]! }));
  await insert(
    'contacts',
    rows.map((contact) => contactRow(organizationId, contact)),
  );
  await insert(
    'memberships',
    rows.flatMap((contact) =>
      contact.setIds.map((setId) => membershipRow(organizationId, setId, contact.id)),
    ),
  );
  await insert(
    'recipients',
    rows.flatMap((contact) =>
      contact.recipients.map((recipient) => recipientRow(organizationId, contact, recipient)),
    ),
  );
  await insert(
    'devices',
    rows.flatMap((contact) => contact.devices.map((device) => deviceRow(organizationId, contact.id, device))),
  );
  await insert(
    'devices',
    ids.flatMap((id) => platforms.map((platform) => deviceRow(decoyId, id, { platform, status: 'ACTIVE' }))),
  );
  // Another organization whose rows look just the same, and who has all that these may lack. What its contacts have
  // under the numbers of these properties cannot be read as a value of their types.
  await insert(
    'contacts',
    rows.map((contact) => ({
      ...contactRow(decoyId, { ...contact, id: newId() }),
      properties: Object.fromEntries([...context.properties.values()].map(({ number }) => [number, 'n/a'])),
      unsubscribed_channels: allChannels.filter((channel) => !contact.unsubscribedChannels.includes(channel)),
    })),
  );
  await insert(
    'memberships',
    ids.flatMap((id) => sets.map((set) => membershipRow(decoyId, set.id, id))),
  );
  await insert(
    'recipients',
    rows
      .filter(({ fields }) => fields.email !== null)
      .flatMap((contact) =>
        (['clicked', 'bounced'] as const).map((status) => recipientRow(decoyId, contact, clickedNow(status))),
      ),
  );
  await insert(
    'recipients',
    rows.flatMap((contact) =>
      campaignIds.map((campaignId) => {
        const recipient = { ...clickedNow('clicked'), campaignId, knownBy: 'contact' as const };
        return recipientRow(decoyId, contact, recipient);
      }),
    ),
  );
  return { organizationId, ids };
}

const allChannels = ['email', 'sms', 'push', 'chatapp'];

const clickedNow = (status: string): GivenRecipient => ({
  campaignId: null,
  knownBy: 'address',
  status,
  statusAtMs: middayMs,
  handedOffAtMs: middayMs,
  openedAtMs: middayMs,
  clickedAtMs: middayMs,
  acceptedAtMs: middayMs,
});

async function insert(table: string, rows: readonly Record<string, unknown>[]): Promise<void> {
  if (rows.length === 0) return;
  const columns = Object.keys(rows[0]!).join(', ');
  await database.rows(
    unpreparedStatement(
      `insert into ${table} (${columns}) select ${columns} from json_populate_recordset(null::${table}, $1)`,
    ),
    [JSON.stringify(rows)],
  );
}

function contactRow(
  organizationId: string,
  { id, fields, properties, unsubscribedChannels }: Given & { id: string },
) {
  return {
    organization_id: organizationId,
    id,
    ...fields,
    email_key: fields.email?.toLowerCase() ?? null,
    properties: Object.fromEntries(
      Object.entries(properties).map(([key, value]) => [
        context.properties.get(key)!.number,
        key === 'born' ? parseDateValue(value as string) : value,
      ]),
    ),
    unsubscribed_channels: unsubscribedChannels,
    updated_at: fields.created_at,
  };
}

const membershipRow = (organizationId: string, setId: string, contactId: string) => ({
  organization_id: organizationId,
  set_id: setId,
  contact_id: contactId,
});

function deviceRow(
  organizationId: string,
  contactId: string,
  { platform, status }: OracleContact['devices'][number],
) {
  const id = newId();
  const isWeb = platform === 'web';
  const time = new Date(middayMs).toISOString();
  return {
    organization_id: organizationId,
    id,
    installation_id: id,
    contact_id: contactId,
    platform,
    token: id,
    token_sha256: `\\x${sha256(id).toString('hex')}`,
    apns_environment: platform === 'ios' ? 'production' : null,
    ...Object.fromEntries(
      ['p256dh_key', 'auth_key', 'vapid_public_key'].map((key) => [key, isWeb ? key : null]),
    ),
    status,
    revoked_by: status === 'REVOKED' ? 'logout' : null,
    opted_out: status === 'REVOKED',
    secret_sha256: `\\x${sha256(`secret of ${id}`).toString('hex')}`,
    registered_at: time,
    created_at: time,
    updated_at: time,
  };
}

let ordinals = 0;

function recipientRow(
  organizationId: string,
  { id, fields }: Given & { id: string },
  recipient: GivenRecipient,
) {
  const time = (ms: number | null) => (ms === null ? null : new Date(ms).toISOString());
  const { campaignId, knownBy } = recipient;
  const address = knownBy === 'contact' ? `former-${id}@example.com` : fields.email!;
  const contactId = knownBy === 'address' ? newId() : id;
  return {
    organization_id: organizationId,
    message_id:
      campaignId === null
        ? messageIdAt(recipient.acceptedAtMs)
        : context.campaignMessages.get(campaignId)!.messageId,
    ordinal: (ordinals += 1),
    field: 'to',
    address,
    address_key: address.toLowerCase(),
    contact_id: campaignId === null ? null : contactId,
    status: recipient.status,
    status_at: time(recipient.statusAtMs),
    handed_off_at: time(recipient.handedOffAtMs),
    opened_at: time(recipient.openedAtMs),
    clicked_at: time(recipient.clickedAtMs),
    uncertain: false,
    ambiguities: 0,
  };
}

function parse(input: unknown): Condition {
  const reading = parseConditions(input, context);
  if (!reading.ok) throw new Error(reading.issues.join(', '));
  return reading.condition;
}

/** For each contact, in the order of the ids: what is true of it. */
const scope = { organization: '$1', eventCounts: null };

async function selectTruths(
  organizationId: string,
  compile: (bind: (value: unknown) => string) => string[],
): Promise<boolean[][]> {
  const values: unknown[] = [organizationId];
  const expressions = compile((value) => `$${values.push(value)}`);
  const rows = await database.rows(
    unpreparedStatement<{ truths: boolean[] }>(
      `select array[${expressions.join(',\n')}]::boolean[] as truths
       from contacts contact
       where contact.organization_id = $1
       order by contact.id`,
    ),
    values,
  );
  return rows.map(({ truths }) => truths);
}

/** Whom the conditions match, in the order of their ids, by the statement of a preview. */
async function selectIds(organizationId: string, input: unknown, at: Date): Promise<string[]> {
  const predicate = compilePredicate(parse(input), [organizationId], at);
  // As the owner of the tables, whom row-level security does not hold back: the statement keeps to its organization.
  const { count, sampleIds } = await countMatching(database, predicate, 1_000);
  expect(sampleIds).toHaveLength(count);
  return sampleIds.reverse();
}

/** The same by the statement that computes a segment. */
async function computeIds(organizationId: string, input: unknown, at: Date): Promise<string[]> {
  const setId = newId();
  const predicate = compilePredicate(parse(input), [organizationId, setId, null], at);
  await syncMembers(database, predicate, { isPartial: false, toldAt: null });
  const rows = await database.rows(
    unpreparedStatement<{ contact_id: string }>(
      'delete from memberships where set_id = $1 returning contact_id',
    ),
    [setId],
  );
  return rows.map(({ contact_id }) => contact_id).sort();
}

/** The plan of the statement of a preview, made for a tenant: it is not that of the owner. */
async function explain(organizationId: string, input: unknown): Promise<string> {
  const predicate = compilePredicate(parse(input), [organizationId], new Date(middayMs));
  const lines: Record<string, string>[] = [];
  await database.asOrganizations([organizationId], async (transaction) => {
    // The tables are so small that the planner would rather read them through.
    await transaction.rows(unpreparedStatement('set local enable_seqscan = off'));
    const explaining: Connection = {
      rows: async ({ text }, values) => {
        const explained = unpreparedStatement<Record<string, string>>(`explain ${text}`);
        lines.push(...(await transaction.rows(explained, values)));
        return [];
      },
    };
    await countMatching(explaining, predicate, 10);
  });
  return lines.flatMap((line) => Object.values(line)).join('\n');
}

const texts = [
  ...[
    'a',
    'A',
    'ab',
    'aba',
    'Ada',
    'ADA',
    ' ',
    'a b',
    '100%',
    '%',
    '_',
    '50_50',
    'back\\slash',
    '\\',
    "O'Hara",
  ],
  ...[
    "'",
    '"',
    '""',
    '{a,b}',
    ',',
    '$1',
    'null',
    'NULL',
    'true',
    '1',
    'ü',
    'u\u0308',
    'Ünï',
    '😀',
    '😀😀',
    'İ',
    'ß',
  ],
];
const operandText = fc.oneof(
  // So few that equal ones meet often.
  { weight: 6, arbitrary: fc.constantFrom('a', 'A', '%', "O'Hara", '😀') },
  { weight: 6, arbitrary: fc.constantFrom(...texts) },
  {
    weight: 1,
    arbitrary: fc
      .string({ unit: 'binary', minLength: 1, maxLength: 3 })
      .filter((text) => !text.includes('\0') && text.isWellFormed()),
  },
);
/** As the API stores it. */
const composed = (text: string) => text.normalize('NFC');
const storedText = fc
  .oneof(
    operandText,
    fc.constant(''),
    fc.tuple(operandText, operandText).map((parts) => parts.join('')),
  )
  .map(composed);
const number = fc.oneof(
  fc.constantFrom(0, 1, 0.3),
  fc.constantFrom(
    0,
    -0,
    1,
    -1,
    0.1,
    0.2,
    0.3,
    0.1 + 0.2,
    1e21,
    1e-7,
    1e-20,
    9.999999999999999e29,
    2 ** 53,
    -273.15,
  ),
  fc.double({ noNaN: true, noDefaultInfinity: true }).filter(isStorableNumber),
);
const dates = [
  ...[
    '2026-11-21',
    '2026-11-21T00:00:00Z',
    '2026-11-21T01:00:00+01:00',
    '2026-11-21T00:00:00.001Z',
    '2026-11-22',
  ],
  ...[
    '2026-11-20T23:59:59.999Z',
    '2026-11-20',
    '2026-11-20T00:00Z',
    '2026-11-20T00:00:00.001Z',
    '2026-11-14',
  ],
  ...['2026-11-20T12:00:00Z', '2026-11-20T12:00:00.001Z', '2026-11-21T12:00:00Z', '2026-11-21T12:00:00.001Z'],
  ...['0001-01-01', '9999-12-31', '9999-12-31T23:59:59.999Z', '2024-02-29', '2026-11-21T23:30:00-00:30'],
];
const date = fc.constantFrom(...dates);
const period = fc.constantFrom(
  ...[
    { value: 1, unit: 'day' },
    { value: 24, unit: 'hour' },
    { value: 1, unit: 'minute' },
    { value: 1, unit: 'week' },
  ],
  ...[
    { value: 521, unit: 'week' },
    { value: 3_650, unit: 'day' },
  ],
);

const recipient: fc.Arbitrary<GivenRecipient> = fc
  .record({
    campaignId: fc.constantFrom(null, ...campaignIds),
    knownBy: fc.constantFrom('contact', 'address', 'both'),
    status: fc.constantFrom(
      'sent',
      'delayed',
      'delivered',
      'bounced',
      'failed',
      'unsubscribed',
      'complained',
      'opened',
      'clicked',
    ),
    wasOpened: fc.boolean(),
    wasClicked: fc.boolean(),
    isHandedOff: fc.boolean(),
    acceptedBeforeMs: fc.constantFrom(dayMs * 40, dayMs * 2, dayMs, 7_200_000),
    delaysMs: fc.array(fc.constantFrom(0, 1, 1_000, 3_600_000, dayMs), { minLength: 4, maxLength: 4 }),
  })
  .map(({ campaignId, knownBy, status, wasOpened, wasClicked, isHandedOff, acceptedBeforeMs, delaysMs }) => {
    const acceptedAtMs = middayMs - acceptedBeforeMs;
    const [handedOffAtMs, openedAtMs, clickedAtMs, statusAtMs] = delaysMs.map(
      (delayMs) => acceptedAtMs + delayMs,
    );
    // What came after an open or a click may have replaced the status.
    const isLate = status === 'unsubscribed' || status === 'complained';
    const hasClick = status === 'clicked' || (isLate && wasClicked);
    return {
      campaignId,
      knownBy: campaignId === null ? 'address' : knownBy,
      status,
      acceptedAtMs,
      statusAtMs: statusAtMs!,
      handedOffAtMs: isHandedOff ? handedOffAtMs! : null,
      openedAtMs: status === 'opened' || hasClick || (isLate && wasOpened) ? openedAtMs! : null,
      clickedAtMs: hasClick ? clickedAtMs! : null,
    };
  });

/** Nobody gets a campaign twice. */
const recipients = fc.uniqueArray(recipient, {
  maxLength: 3,
  comparator: (first, second) =>
    first.campaignId !== null &&
    first.campaignId === second.campaignId &&
    first.knownBy !== 'address' &&
    second.knownBy !== 'address',
});

const device = fc.record({
  platform: fc.constantFrom(...platforms),
  status: fc.constantFrom('ACTIVE', 'ACTIVE', 'EXPIRED', 'REVOKED', 'FAILED'),
});

const sometimes = <Value>(value: fc.Arbitrary<Value>) => fc.option(value, { freq: 3, nil: null });
/** Of a contact: the first two most of the time, so that somebody is met. */
const contactIndex = fc.oneof(fc.constantFrom(0, 1), fc.constantFrom(0, 1), fc.nat({ max: 9 }));
const emailNames = ['Ada', "o'hara_%"];
const externalNames = ['Id', "i'50%_\\"];
const contactAt = (index: number): fc.Arbitrary<Given> =>
  fc
    .record({
      email: sometimes(
        fc.constantFrom(...emailNames).map((name) => `${name}${index}@Example.${index % 2 ? 'com' : 'org'}`),
      ),
      phone_number: sometimes(fc.constant(`+4930123456${index}`)),
      first_name: sometimes(operandText.map(composed)),
      last_name: sometimes(operandText.map(composed)),
      locale: sometimes(fc.constantFrom('en', 'en-GB', 'de')),
      timezone: sometimes(fc.constantFrom('Europe/Berlin', 'UTC')),
      created_at: fc.constantFrom(...dates),
      properties: fc.record(
        { plan: storedText, city: storedText, score: number, vip: fc.boolean(), born: date },
        { requiredKeys: [] },
      ),
      unsubscribedChannels: fc.subarray(allChannels),
      setIds: fc.subarray(sets.map(({ id }) => id)),
      devices: fc.array(device, { maxLength: 3 }),
      recipients,
    })
    .chain((drawn) => {
      // One of the three identifiers has to be there.
      const isBare = drawn.email === null && drawn.phone_number === null;
      const externalId = fc.constantFrom(...externalNames).map((name) => `${name}${index}`);
      return (isBare ? externalId : sometimes(externalId)).map((external_id) => {
        const { properties, unsubscribedChannels, setIds, devices, recipients, ...fields } = drawn;
        return {
          fields: { ...fields, external_id, created_at: new Date(drawn.created_at).toISOString() },
          properties: properties,
          unsubscribedChannels,
          setIds,
          devices,
          recipients: recipients.filter(({ knownBy }) => drawn.email !== null || knownBy === 'contact'),
        };
      });
    });
const contactsOfWorld = fc.tuple(...Array.from({ length: 10 }, (_, index) => contactAt(index)));

/** By the type of the value and the operator, as the language lists them: what stands in `value`. */
const operands: Record<string, Record<string, fc.Arbitrary<unknown> | null>> = {
  string: {
    ...Object.fromEntries(
      ['eq', 'neq', 'contains', 'not_contains', 'starts_with', 'ends_with'].map((name) => [
        name,
        operandText,
      ]),
    ),
    ...Object.fromEntries(
      ['in', 'not_in'].map((name) => [name, fc.array(operandText, { minLength: 1, maxLength: 4 })]),
    ),
    is_set: null,
    is_not_set: null,
  },
  number: {
    ...Object.fromEntries(['eq', 'neq', 'gt', 'gte', 'lt', 'lte'].map((name) => [name, number])),
    between: fc
      .tuple(number, number)
      .map(([first, second]) => (first <= second ? [first, second] : [second, first])),
    is_set: null,
    is_not_set: null,
  },
  boolean: { is_true: null, is_false: null, is_set: null, is_not_set: null },
  date: {
    before: date,
    after: date,
    between: fc
      .tuple(date, date)
      .map((range) => range.sort((first, second) => Date.parse(first) - Date.parse(second))),
    within_last: period,
    not_within_last: period,
    is_set: null,
    is_not_set: null,
  },
};

const emailOperand = fc.oneof(
  fc
    .tuple(fc.constantFrom(...emailNames), contactIndex)
    .map(([name, index]) => `${name.toUpperCase()}${index}@EXAMPLE.${index % 2 ? 'com' : 'org'}`),
  fc.constantFrom('ada', 'ADA', 'example.', '@Example.com', '.org', '_', '%', "'"),
);

/** Leaves that compare a value, each under the name that it is counted by. */
function valueLeaves(label: string, fixed: OracleCondition, type: string, text?: fc.Arbitrary<string>) {
  return Object.entries(operands[type]!).map(([operator, operand]) => {
    const value =
      text === undefined || operand === null
        ? operand
        : operator.endsWith('in')
          ? fc.array(text, { minLength: 1, maxLength: 4 })
          : text;
    const condition: fc.Arbitrary<OracleCondition> =
      value === null
        ? fc.constant({ ...fixed, operator })
        : value.map((given) => ({ ...fixed, operator, value: given }));
    return { label: `${label} ${operator}`, condition };
  });
}

const fieldLeaf = (field: string, type: string, text?: fc.Arbitrary<string>) =>
  valueLeaves(field, { type: 'field', field }, type, text);

const labelledLeaves: { label: string; condition: fc.Arbitrary<OracleCondition> }[] = [
  ...fieldLeaf('email', 'string', emailOperand),
  ...fieldLeaf('phone_number', 'string', fc.constantFrom('+49301234561', '+49301234562', '+49', '+1', '3')),
  ...fieldLeaf(
    'external_id',
    'string',
    fc.oneof(
      fc.constantFrom('I', '50%', '_', '\\', '1'),
      fc.tuple(fc.constantFrom(...externalNames), contactIndex).map((parts) => parts.join('')),
    ),
  ),
  ...fieldLeaf('first_name', 'string'),
  ...fieldLeaf('last_name', 'string'),
  ...fieldLeaf('locale', 'string', fc.constantFrom('en', 'EN', 'en-GB', 'de', '-')),
  ...fieldLeaf('timezone', 'string', fc.constantFrom('Europe/Berlin', 'UTC', 'Europe', '/')),
  ...fieldLeaf('created_at', 'date'),
  ...propertyKeys.flatMap((key) =>
    valueLeaves(`property of type ${propertyTypes[key]}`, { type: 'property', key }, propertyTypes[key]),
  ),
  ...setKinds.flatMap((kind) =>
    ['in', 'not_in'].map((operator) => ({
      label: `${kind} ${operator}`,
      condition: fc
        .subarray(
          sets.filter((set) => set.kind === kind).map(({ id }) => id),
          { minLength: 1 },
        )
        .chain((ids) =>
          fc.constantFrom(
            ids,
            ids.map((id) => id.toUpperCase()),
          ),
        )
        .map((ids) => ({ type: kind, operator, ids })),
    })),
  ),
  ...['is', 'is_not'].map((operator) => ({
    label: `consent ${operator}`,
    condition: fc.record({
      type: fc.constant('consent'),
      channel: fc.constantFrom('email', 'sms', 'push', 'chatapp'),
      operator: fc.constant(operator),
      value: fc.constantFrom('subscribed', 'unsubscribed'),
    }),
  })),
  ...['has_active', 'has_none'].map((operator) => ({
    label: `device ${operator}`,
    condition: fc.record(
      {
        type: fc.constant('device'),
        operator: fc.constant(operator),
        platform: fc.constantFrom(...platforms),
      },
      { requiredKeys: ['type', 'operator'] },
    ),
  })),
  ...['delivered', 'opened', 'clicked', 'bounced'].flatMap((action) => {
    const fields = {
      type: fc.constant('message'),
      channel: fc.constant('email'),
      action: fc.constant(action),
      within: period,
    };
    const ofCampaign = {
      ...fields,
      campaign_id: fc.constantFrom(...campaignIds, ...campaignIds.map((id) => id.toUpperCase())),
    };
    const requiredKeys = ['type', 'channel', 'action'] as const;
    return [
      { label: `message ${action}`, condition: fc.record(fields, { requiredKeys: [...requiredKeys] }) },
      {
        label: `message ${action} of a campaign`,
        condition: fc.record(ofCampaign, { requiredKeys: [...requiredKeys, 'campaign_id'] }),
      },
    ];
  }),
];

/** No contact is without it, so that only one answer can be seen. */
const soleAnswers: Record<string, boolean[]> = {
  'created_at is_set': [true],
  'created_at is_not_set': [false],
};

const leaf = fc.oneof(...labelledLeaves.map(({ condition }) => condition));
const treeOfLevels = (levels: number): fc.Arbitrary<OracleCondition> =>
  levels === 1
    ? leaf
    : fc.oneof(
        leaf,
        fc.record({
          type: fc.constant('group'),
          match: fc.constantFrom('all', 'any', 'none'),
          conditions: fc.array(treeOfLevels(levels - 1), { minLength: 1, maxLength: 3 }),
        }),
      );
/** Of every kind one leaf by itself, so that none is left to chance, and trees of any. */
const trees = fc
  .tuple(
    fc.array(treeOfLevels(5), { minLength: 1, maxLength: 15 }),
    fc.tuple(...labelledLeaves.map(({ condition }) => condition)),
  )
  .map((parts) => parts.flat());

function labelOf(given: OracleCondition): string {
  if (given.type === 'message') {
    return `message ${given.action as string}${given.campaign_id === undefined ? '' : ' of a campaign'}`;
  }
  const subject =
    given.type === 'property'
      ? `property of type ${propertyTypes[given.key as keyof typeof propertyTypes]}`
      : given.type === 'field'
        ? (given.field as string)
        : given.type;
  return `${subject} ${given.operator as string}`;
}

test('the operators that are compared are all that there are', () => {
  const named = Object.keys(operands).map((name) => [name, Object.keys(operands[name]!).sort()]);
  const types = {
    string: textType((text) => text),
    number: numberType,
    boolean: booleanType,
    date: dateType,
  };
  expect(named).toEqual(Object.entries(types).map(([name, type]) => [name, operatorsOf(type).sort()]));
});

test('a tree, and each of its leaves, matches the contacts that its meaning says, for every operator', async () => {
  const seen = new Map(labelledLeaves.map(({ label }) => [label, new Set<boolean>()]));
  await fc.assert(
    fc.asyncProperty(
      contactsOfWorld,
      trees,
      fc.constantFrom(midnightMs, middayMs),
      async (contacts, inputs, atMs) => {
        const { organizationId, ids } = await insertContacts(contacts);
        const world: OracleWorld = { atMs, propertyTypes };
        const conditions = inputs.map(parse);
        const leaves = conditions.flatMap(listLeaves).map(({ given }) => given as OracleCondition);
        const at = new Date(atMs);
        const truths = await selectTruths(organizationId, (bind) => [
          ...conditions.map((condition) => compileConditions(condition, { bind, at, ...scope })),
          ...conditions.flatMap((condition) => compileLeaves(condition, { bind, at, ...scope })),
        ]);
        expect(truths).toHaveLength(contacts.length);
        contacts.forEach((contact, index) => {
          const expected = [...inputs, ...leaves].map((condition) => holds(condition, contact, world));
          const wrong = [...inputs, ...leaves].filter((_, at) => truths[index]![at] !== expected[at]);
          expect({ contact, wrong }).toEqual({ contact, wrong: [] });
          leaves.forEach((given, at) => seen.get(labelOf(given))!.add(expected[inputs.length + at]!));
        });
        // At the top of a `where` the planner makes joins of what is a sub-select elsewhere.
        const expected = ids.filter((_, index) => holds(inputs[0]!, contacts[index]!, world));
        expect(await selectIds(organizationId, inputs[0], at)).toEqual(expected);
        expect(await computeIds(organizationId, inputs[0], at)).toEqual(expected);
      },
    ),
    { numRuns: 150 },
  );
  for (const [label, answers] of seen) {
    expect([label, [...answers].sort()]).toEqual([label, soleAnswers[label] ?? [false, true]]);
  }
});

const contactWith = (given: Partial<Given>): Given => ({
  properties: {},
  unsubscribedChannels: [],
  setIds: [],
  devices: [],
  recipients: [],
  ...given,
  fields: {
    ...{ external_id: null, email: null, phone_number: '+49301234567', first_name: null, last_name: null },
    ...{ locale: null, timezone: null, created_at: new Date(middayMs).toISOString() },
    ...given.fields,
  },
});

test.each([
  ['eq', 'Ada@BÜCHER.example', true],
  ['in', ['x', 'ada@bücher.example'], true],
  ['ends_with', '@bücher.example', true],
  ['ends_with', '@xn--bcher-kva.example', true],
  ['neq', 'ada@bücher.example', false],
  ['contains', 'bücher', false],
])(
  'an email address is compared with its domain as A-labels: %s %j, %s',
  async (operator, value, expected) => {
    const { organizationId } = await insertContacts([
      contactWith({ fields: { email: 'ada@xn--bcher-kva.example' } }),
    ]);
    const condition = { type: 'field', field: 'email', operator, value };
    expect(await selectIds(organizationId, condition, new Date(middayMs))).toHaveLength(expected ? 1 : 0);
  },
);

test.each([
  ['eq', 'ju\u0308rgen.ΠΑΠΑΣ@example.com', true],
  ['starts_with', 'JÜR', true],
  ['contains', 'ΠΑΠΑΣ', true],
  ['ends_with', 'παπας@example.com', true],
  ['starts_with', 'ju', false],
])(
  'an email address beyond ASCII is compared as it is kept: %s %j, %s',
  async (operator, value, expected) => {
    const { organizationId } = await insertContacts([
      contactWith({ fields: { email: 'jürgen.παπασ@example.com' } }),
    ]);
    const condition = { type: 'field', field: 'email', operator, value };
    expect(await selectIds(organizationId, condition, new Date(middayMs))).toHaveLength(expected ? 1 : 0);
  },
);

const openedAt = (openedAtMs: number, acceptedAtMs: number) => ({
  ...clickedNow('opened'),
  openedAtMs,
  acceptedAtMs,
});

test('an open that comes more than 90 days after the message counts only where no time is given', async () => {
  const { organizationId, ids } = await insertContacts([
    contactWith({
      fields: { email: 'late@example.com', phone_number: null },
      recipients: [openedAt(middayMs, middayMs - 90 * dayMs)],
    }),
    contactWith({
      fields: { email: 'later@example.com', phone_number: null },
      recipients: [openedAt(middayMs, middayMs - 92 * dayMs)],
    }),
  ]);
  const opened = { type: 'message', channel: 'email', action: 'opened' };
  const within = { value: 1, unit: 'day' };
  expect(await selectIds(organizationId, { ...opened, within }, new Date(middayMs))).toEqual([ids[0]]);
  expect(await selectIds(organizationId, opened, new Date(middayMs))).toEqual(ids);
});

test('whatever became of a campaign counts, however long after it', async () => {
  const { organizationId, ids } = await insertContacts([
    contactWith({
      recipients: [{ ...openedAt(middayMs, 0), campaignId: campaignIds[0]!, knownBy: 'contact' }],
    }),
  ]);
  const opened = { type: 'message', channel: 'email', action: 'opened', campaign_id: campaignIds[0] };
  const later = new Date(middayMs + 200 * dayMs);
  const of = (days: number) => ({ ...opened, within: { value: days, unit: 'day' } });
  expect(await selectIds(organizationId, of(201), later)).toEqual(ids);
  expect(await selectIds(organizationId, of(200), later)).toEqual([]);
});

// Of an organization with a recipient or two each index costs the same, and the planner takes any: it takes thousands.
test.each(['not analyzed', 'analyzed'])(
  'messages and memberships are found by their indexes, also behind row-level security, in tables that are %s',
  async (state) => {
    const { organizationId } = await insertContacts([contactWith({})]);
    await insertRecipients(organizationId, 3_000);
    if (state === 'analyzed')
      await database.rows(unpreparedStatement('analyze contacts, recipients, memberships'));
    const within = { value: 1, unit: 'day' };
    const plan = await explain(organizationId, {
      type: 'group',
      match: 'any',
      conditions: [{ type: 'message', channel: 'email', action: 'opened', within }, leafOfNobody],
    });
    expect(plan).toMatch(
      /recipients_\d+_\d+_organization_id_address_key.*\n.*Index Cond: \(\(organization_id = .*\) AND \(address_key = .*\) AND \(message_id >= /,
    );
    const ofCampaign = await explain(organizationId, {
      ...{ type: 'message', channel: 'email', action: 'opened' },
      ...{ campaign_id: campaignIds[0], within },
    });
    expect(ofCampaign).toMatch(/Index Cond: \(\(organization_id = .*\) AND \(message_id = /);
    // In the only month in which they can be.
    expect(ofCampaign.match(/ on recipients_/g)).toHaveLength(1);
    const memberships = await explain(organizationId, {
      ...{ type: 'list', operator: 'not_in' },
      ids: [sets[0]!.id],
    });
    expect(memberships).toMatch(/Index Only Scan using memberships_/);
    expect(memberships).toContain('Anti Join');
  },
);

/** Of as many messages, each to another address, in the month of `middayMs`. */
async function insertRecipients(organizationId: string, count: number): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       select $1, message_id::uuid, 0, 'to', message_id, message_id, now()
       from unnest($2::text[]) as message_id`,
    ),
    [organizationId, Array.from({ length: count }, () => messageIdAt(middayMs))],
  );
}

const leafOfNobody = { type: 'field', field: 'created_at', operator: 'is_not_set' };
