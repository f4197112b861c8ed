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

/** As a part of a message's details. Most messages have none. */
export type StoredMetadata = { metadata?: Metadata };

export function toStoredMetadata(metadata: Metadata | undefined): StoredMetadata {
  return metadata === undefined || Object.keys(metadata).length === 0 ? {} : { metadata };
}

/** Of details as they are stored. */
export function showMetadata(details: unknown): Record<string, string> {
  return { ...(details as StoredMetadata | null)?.metadata };
}
