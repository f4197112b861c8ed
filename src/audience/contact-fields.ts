import type { SendingChannel } from '../channels/channel.ts';

/**
 * The fields of a contact, each described once. Requests and answers, statements, imports and exports, conditions of
 * segments and placeholders are made from this table, in its order.
 *
 * A field is a text or null, and its column has its name. A new one takes an entry here, a column in the schema,
 * and its names in docs/import.md and docs/audience.md; test/journeys/contact-fields.test.ts takes every field through
 * everything that knows of fields.
 */
export const contactFields = {
  // Kept to the octet, however it is composed: it is a key of another system, which may hold either spelling as its own.
  external_id: {
    schema: {
      minLength: 1,
      maxLength: 255,
      format: 'single-line',
      sensitive: true,
      description: 'Your own id for the contact; unique in the organization.',
    },
    key: 'external_id',
    isIdentifier: true,
    csvNames: ['externalid', 'customerid', 'customernumber', 'userid'],
  },
  email: {
    schema: {
      format: 'idn-email',
      description: 'Unique in the organization, ignoring case. Of `Name <address>`, the address is kept.',
    },
    key: 'email_key',
    isIdentifier: true,
    csvNames: ['email', 'emailaddress', 'mail'],
  },
  phone_number: {
    schema: { format: 'phone-number', description: 'In E.164; unique in the organization.' },
    key: 'phone_number',
    isIdentifier: true,
    csvNames: ['phonenumber', 'phone', 'mobile', 'mobilephone', 'mobilenumber', 'cellphone'],
  },
  first_name: {
    schema: { minLength: 1, maxLength: 128, format: 'single-line', composed: true, sensitive: true },
    key: 'first_name',
    isIdentifier: false,
    csvNames: ['firstname', 'givenname', 'forename'],
  },
  last_name: {
    schema: { minLength: 1, maxLength: 128, format: 'single-line', composed: true, sensitive: true },
    key: 'last_name',
    isIdentifier: false,
    csvNames: ['lastname', 'surname', 'familyname'],
  },
  locale: {
    schema: { format: 'locale', description: 'A BCP 47 language tag.' },
    key: 'locale',
    isIdentifier: false,
    csvNames: ['locale', 'language'],
  },
  timezone: {
    schema: { format: 'timezone', description: 'An IANA time zone.' },
    key: 'timezone',
    isIdentifier: false,
    csvNames: ['timezone', 'tz'],
  },
} as const satisfies Record<string, ContactFieldDescription>;

type ContactFieldDescription = {
  /** Of a value in a request, as JSON Schema. */
  schema: {
    minLength?: number;
    maxLength?: number;
    format: ContactFormat;
    composed?: boolean;
    sensitive?: boolean;
    description?: string;
  };
  /** The column by which values are compared. */
  key: string;
  /**
   * Whether it tells contacts apart: one of these is always there, each is unique in the organization by an index that
   * is called `contacts_` and its name, and the first in the order of the table goes before the others.
   */
  isIdentifier: boolean;
  /** What people call a column of it in a CSV file, without case, blanks and punctuation. */
  csvNames: readonly string[];
};

/** What a field holds: this decides how a cell of it is read, and how it is compared in a condition. */
export type ContactFormat = 'single-line' | 'idn-email' | 'phone-number' | 'locale' | 'timezone';

type Fields = typeof contactFields;

export type ContactField = keyof Fields;

/** A field by which contacts are told apart. */
export type ContactIdentifier = {
  [Field in ContactField]: Fields[Field]['isIdentifier'] extends true ? Field : never;
}[ContactField];

/** A column by which fields are compared. */
export type ContactKeyColumn = Fields[ContactField]['key'];

// Object.keys forgets which keys there are.
export const contactFieldNames = Object.keys(contactFields) as ContactField[];

export const contactIdentifiers = contactFieldNames.filter(
  (field): field is ContactIdentifier => contactFields[field].isIdentifier,
);

/** What is said of a contact without any of them. */
export const missingIdentifier = `one of ${new Intl.ListFormat('en-GB').format(contactIdentifiers)} is required`;

export function mapContactFields<Value>(
  toValue: (field: ContactField) => Value,
): Record<ContactField, Value> {
  const entries = contactFieldNames.map((field) => [field, toValue(field)] as const);
  // fromEntries forgets which keys there are.
  return Object.fromEntries(entries) as Record<ContactField, Value>;
}

/** Where a contact has its address on a channel: as it was given, and as it is compared. */
export type AddressColumns = (typeof addressColumns)[AddressedChannel];

/** A channel on which contacts have an address of their own. */
export type AddressedChannel = keyof typeof addressColumns;

export const addressColumns = {
  email: { address: 'email', key: contactFields.email.key },
  sms: { address: 'phone_number', key: contactFields.phone_number.key },
  chatapp: { address: 'phone_number', key: contactFields.phone_number.key },
} as const satisfies Partial<Record<SendingChannel, { address: ContactField; key: ContactKeyColumn }>>;

/** The fields that something can be sent to, each once. */
export const contactAddresses = contactFieldNames.filter((field) =>
  Object.values(addressColumns).some(({ address }) => address === field),
);
