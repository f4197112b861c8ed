import { Type } from 'typebox';

/**
 * What a program wants to find again with a message: it is shown with the message and in what programs are told of it, is
 * never sent to anybody, and is erased with what the message says. It is kept with the details of the message, whatever the
 * channel.
 */
export type Metadata = Readonly<Record<string, string>>;

const keyPattern = '^[ -~]{1,40}$';

/** A field of what a request sends. */
export const metadataInput = Type.Record(
  Type.String({ pattern: keyPattern }),
  Type.String({ maxLength: 500, sensitive: true }),
  {
    maxProperties: 20,
    additionalProperties: false,
    description:
      'Your own texts about the message, by keys of at most 40 characters of printable ASCII: shown with it, in events and to webhooks, and never sent.',
  },
);

/** A field of what is shown. */
export const metadataRecord = Type.Record(Type.String(), Type.String(), {
  description: 'As it was given; empty after it was erased together with its contact.',
});

const tagLengthMax = 100;

/** A field of what a request sends. */
export const tagsInput = Type.Array(
  Type.String({ minLength: 1, maxLength: tagLengthMax, format: 'filled-line', composed: true }),
  {
    maxItems: 10,
    description: 'Labels of your own, at most ten, by which messages are listed; never sent.',
  },
);

/** A field of what is shown. */
export const tagsRecord = Type.Array(Type.String());

/** In a query: messages with this tag alone. */
export const tagFilter = Type.String({ minLength: 1, maxLength: tagLengthMax, composed: true });

/** What a program gives a message for itself. */
export type Labels = { metadata?: Metadata | undefined; tags?: readonly string[] | undefined };

/** As a part of a message's details. Most messages have none. */
export type StoredLabels = { metadata?: Metadata; tags?: readonly string[] };

/** A tag that is given twice is one. */
export function toStoredLabels({ metadata = {}, tags = [] }: Labels): StoredLabels {
  return {
    ...(Object.keys(metadata).length > 0 && { metadata }),
    ...(tags.length > 0 && { tags: [...new Set(tags)] }),
  };
}

/** Of details as they are stored. */
export function showLabels(details: unknown): { metadata: Record<string, string>; tags: string[] } {
  const { metadata = {}, tags = [] } = (details ?? {}) as StoredLabels;
  return { metadata: { ...metadata }, tags: [...tags] };
}
