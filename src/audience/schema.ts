import { type Static, Type } from 'typebox';
import { type Channel, channels } from '../channels/channel.ts';
import { readAddress } from '../channels/email/email.ts';
import {
  instant,
  literals,
  nameText,
  optionalText,
  scalar,
  textOrNull,
  itemError,
  itemIndex,
} from '../platform/http/shapes.ts';
import type { Schema } from '../platform/http/openapi.ts';
import type { TextFormat } from '../platform/http/validation.ts';
import { contactFields, type ContactFormat, mapContactFields } from './contact-fields.ts';

/** Why an address must not be written to any more. */
export const suppressionReasons = [
  'hard_bounce',
  'soft_bounces',
  'complaint',
  'unsubscribe',
  /** The organization has said so, by a request. */
  'manual',
  'operator',
  /** The medium does not reach it. That may end, and does so at the first sign of it. */
  'unreachable',
] as const;

export type SuppressionReason = (typeof suppressionReasons)[number];

/** What a suppression keeps from an address: everything on its channel, or campaigns alone. */
export const suppressionScopes = ['all', 'marketing'] as const;

export type SuppressionScope = (typeof suppressionScopes)[number];

/** Where a suppression came from. None says who a person is: it outlives what is known of them. */
export const suppressionSources = [
  /** What became of a message, or was said by a link in it. */
  'message',
  /** A keyword that somebody texted. */
  'reply',
  /** The consent of a contact. */
  'consent',
  'device',
  'api_key',
  'operator',
  'import',
] as const;

/** The id is that of the message or of the API key, if it is known which. */
export type SuppressionSource = { type: (typeof suppressionSources)[number]; id: string | null };

export type Suppression = {
  id: string;
  reason: SuppressionReason;
  scope: SuppressionScope;
  /** As it is compared; null once it was erased. */
  address: string | null;
  note: string | null;
  source: SuppressionSource;
  /** When its owner has last said that they want nothing; null for every reason but `unsubscribe`. */
  optedOutAt: Date | null;
  createdAt: Date;
  /** Null if it stays. */
  expiresAt: Date | null;
};

/** With its plus. ITU-T E.164 §6.2.1: fifteen digits at most, of which the first is not 0. */
export function isPhoneNumber(text: string): boolean {
  return /^\+[1-9]\d{6,14}$/.test(text);
}

/** Text formats of this room's schemas, to be handed to `createValidation`. */
export const audienceFormats: Record<Exclude<ContactFormat, 'single-line'>, TextFormat> = {
  'idn-email': { test: (text) => readAddress(text) !== null, mustBe: 'an email address' },
  'phone-number': {
    test: isPhoneNumber,
    mustBe: 'a phone number in E.164, such as +14155550123',
  },
  locale: { test: isLocale, mustBe: 'a BCP 47 language tag, such as en-GB' },
  timezone: { test: isTimezone, mustBe: 'an IANA time zone, such as Europe/Berlin' },
};

/** RFC 5646 §4.4.1: buffers of 35 characters hold every tag that is of practical use. */
const localeLengthMax = 35;

function isLocale(text: string): boolean {
  if (text.length > localeLengthMax) return false;
  try {
    return Intl.getCanonicalLocales(text).length === 1;
  } catch {
    return false;
  }
}

const timezoneLengthMax = 64;
/** Asking for one costs 50 µs, and there are a few hundred. */
const knownTimezones = new Set<string>();

function isTimezone(text: string): boolean {
  if (knownTimezones.has(text)) return true;
  // What begins with a sign or a digit is an offset, which Intl takes as well.
  if (text.length > timezoneLengthMax || !/^[A-Za-z]/.test(text)) return false;
  try {
    new Intl.DateTimeFormat('en', { timeZone: text });
  } catch {
    return false;
  }
  // Spelled in any case, each is known by a great many names: only the usual spelling is remembered.
  if (Intl.supportedValuesOf('timeZone').includes(text)) knownTimezones.add(text);
  return true;
}

export const consentStates = ['subscribed', 'unsubscribed'] as const;

export type ConsentState = (typeof consentStates)[number];

export const propertyTypes = ['string', 'number', 'boolean', 'date'] as const;

export type PropertyType = (typeof propertyTypes)[number];

/** A property as values are read and written by it; contacts carry them under its number. */
export type Property = { id: string; number: number; key: string; type: PropertyType };

export type PropertyValue = string | number | boolean;

export type SetKind = 'list' | 'tag' | 'segment';

/** Longer ones are documents, and belong elsewhere. */
export const propertyTextLengthMax = 1_000;

const id = Type.String({ format: 'uuid' });

const consentState = literals(consentStates, { title: 'ConsentState' });

const propertyType = literals(propertyTypes, { title: 'PropertyType' });

const consent = <State>(state: State) =>
  Object.fromEntries(channels.map((channel) => [channel, state])) as Record<Channel, State>;

const contactInput = {
  ...mapContactFields((field) => optionalText(contactFields[field].schema)),
  properties: Type.Optional(
    Type.Record(
      Type.String(),
      Type.Unsafe<PropertyValue | null>({
        type: ['string', 'number', 'boolean', 'null'],
        maxLength: propertyTextLengthMax,
        composed: true,
        sensitive: true,
      }),
      {
        maxProperties: 500,
        description:
          'Values of defined properties, by key. Null removes a value; properties that are not given stay unchanged.',
      },
    ),
  ),
  consent: Type.Optional(
    Type.Object(consent(Type.Optional(consentState)), {
      title: 'ConsentInput',
      additionalProperties: false,
      description: 'Whether campaigns may write to the contact, by channel; `subscribed` by default.',
    }),
  ),
};

const setIds = (description: string) => Type.Optional(Type.Array(id, { maxItems: 100, description }));

/** Body of `POST /contacts`. What properties hold is checked in contact-values.ts. */
export const contactBody = Type.Object(
  {
    ...contactInput,
    list_ids: setIds('Lists that the contact is added to.'),
    tag_ids: setIds('Tags that the contact gets.'),
  },
  { title: 'CreateContactRequest', additionalProperties: false, rules: ['contact-identifiers'] },
);

/** Body of `PUT /contacts`, and one contact of `POST /contacts/bulk`. */
export const contactUpsert = Type.Object(
  {
    ...contactInput,
    list_ids: setIds('Lists that the contact is added to. It stays in those that it is in.'),
    tag_ids: setIds('Tags that the contact gets. It keeps those that it has.'),
  },
  { title: 'UpsertContactRequest', additionalProperties: false, rules: ['contact-identifiers'] },
);

/** Body of `POST /contacts/bulk`: what is wrong with one of them is said in its own result. */
export const contactsBody = Type.Object(
  {
    contacts: Type.Array(Type.Unsafe<unknown>({ title: 'BulkContact' }), { minItems: 1, maxItems: 1_000 }),
  },
  { title: 'UpsertContactsRequest', additionalProperties: false },
);

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeContacts(): Record<'BulkContact', Schema> {
  const { type, properties } = contactUpsert;
  return {
    BulkContact: {
      type,
      properties,
      additionalProperties: false,
      description: 'What is said of one contact; its own result tells what is wrong with it.',
    },
  };
}

/** Body of `PATCH /contacts/:id`. */
export const contactPatch = Type.Object(contactInput, {
  title: 'UpdateContactRequest',
  additionalProperties: false,
});

export type ContactInput = Static<typeof contactPatch>;

export type ContactBody = Static<typeof contactBody>;

export const contactRecord = Type.Object(
  {
    id,
    ...mapContactFields(() => textOrNull),
    properties: Type.Record(Type.String(), scalar, {
      description: 'Values by the keys of their properties.',
    }),
    consent: Type.Object(consent(consentState), { title: 'Consent' }),
    list_ids: Type.Array(id),
    tag_ids: Type.Array(id),
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Contact' },
);

export type ContactRecord = Static<typeof contactRecord>;

/** What programs are told of a contact (told-events.ts). Of one that is gone, or too large, `object` and `id` are left. */
const toldFields = {
  object: Type.Literal('contact'),
  ...Type.Partial(contactRecord).properties,
  id,
  data_truncated: Type.Optional(
    Type.Literal(true, { description: 'It has too many values to be told: read it by its `id`.' }),
  ),
};

export const toldContact = Type.Object(
  {
    ...toldFields,
    changed: Type.Optional(
      Type.Object(
        { consent: Type.Partial(Type.Object(consent(consentState))) },
        {
          title: 'WebhookEventChange',
          description:
            'Of `contact.consent_changed`: what is said now, on the channels on which it was something else.',
        },
      ),
    ),
  },
  {
    title: 'WebhookEventContact',
    description: 'A contact. Of one that is gone, `object` and `id` are left.',
  },
);

/** Whoever entered or left a segment. */
export const toldMember = Type.Object(toldFields, {
  title: 'WebhookEventMember',
  description: 'The contact that entered or left. Of one that is gone, `object` and `id` are left.',
});

/** What `POST /contacts/bulk` answers. */
export const bulkContacts = Type.Object(
  {
    data: Type.Array(
      Type.Union([
        Type.Object(
          { index: itemIndex, id, created: Type.Boolean({ description: 'False if the contact was there.' }) },
          { title: 'BulkContactResult' },
        ),
        Type.Object(
          {
            index: itemIndex,
            error: itemError,
          },
          { title: 'BulkContactRefusal' },
        ),
      ]),
    ),
  },
  { title: 'BulkContacts' },
);

export type BulkContacts = Static<typeof bulkContacts>;

/** Body of whatever speaks of several contacts at once. */
export const contactIdsBody = Type.Object(
  { contact_ids: Type.Array(id, { minItems: 1, maxItems: 1_000 }) },
  { title: 'ContactIdsRequest', additionalProperties: false },
);

const setName = (maxLength: number) => nameText(maxLength, { description: 'Unique, ignoring case.' });

const description = optionalText({ maxLength: 1_000 });

export const listBody = Type.Object(
  { name: setName(255), description },
  { title: 'CreateListRequest', additionalProperties: false },
);
export const listPatch = Type.Object(
  { name: Type.Optional(setName(255)), description },
  { title: 'UpdateListRequest', additionalProperties: false },
);
export const tagBody = Type.Object(
  { name: setName(100) },
  { title: 'CreateTagRequest', additionalProperties: false },
);
export const tagPatch = Type.Object(
  { name: Type.Optional(setName(100)) },
  { title: 'UpdateTagRequest', additionalProperties: false },
);

export type SetPatch = { name?: string; description?: string | null };

const contactCount = Type.Integer({ description: 'The number of its contacts.' });

export const tagRecord = Type.Object(
  {
    id,
    name: Type.String(),
    contact_count: contactCount,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Tag' },
);

export const listRecord = Type.Object(
  {
    id,
    name: Type.String(),
    description: textOrNull,
    contact_count: contactCount,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'List' },
);

export const propertyBody = Type.Object(
  {
    key: Type.String({
      maxLength: 50,
      pattern: '^[a-z][a-z0-9_]{0,49}$',
      description: 'The name of the property in requests; never changes.',
    }),
    name: nameText(255),
    type: propertyType,
    description,
  },
  { title: 'CreatePropertyRequest', additionalProperties: false, rules: ['property-key'] },
);

/** `key` and `type` never change: giving the present ones again is no error. */
export const propertyPatch = Type.Object(
  {
    key: Type.Optional(Type.String({ maxLength: 50 })),
    name: Type.Optional(nameText(255)),
    type: Type.Optional(propertyType),
    description,
  },
  { title: 'UpdatePropertyRequest', additionalProperties: false },
);

export type PropertyBody = Static<typeof propertyBody>;

export type PropertyPatch = Static<typeof propertyPatch>;

export const propertyRecord = Type.Object(
  {
    id,
    key: Type.String(),
    name: Type.String(),
    type: propertyType,
    description: textOrNull,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Property' },
);

/** What `POST /contacts/bulk-delete` answers. */
export const bulkDeletion = Type.Object(
  {
    object: Type.Literal('bulk_delete'),
    deleted_count: Type.Integer(),
    not_found_ids: Type.Array(id),
  },
  { title: 'BulkDeletion' },
);

/** What adding contacts to a set answers, and removing them. */
export const membershipChange = Type.Object(
  {
    object: Type.Literal('membership_change'),
    changed: Type.Integer(),
    unchanged: Type.Integer(),
    not_found_ids: Type.Array(id),
  },
  { title: 'MembershipChange' },
);

export type PropertyRecord = Static<typeof propertyRecord>;
