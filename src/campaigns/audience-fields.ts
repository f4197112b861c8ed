import { findSets } from '../audience/audience.ts';
import type { Transaction } from '../platform/postgres/database.ts';

/**
 * The inputs that define a campaign's audience, each with the kind of set that its ids name. Each is stored in a column
 * of the same name.
 */
export const audienceKinds = {
  list_ids: 'list',
  tag_ids: 'tag',
  segment_ids: 'segment',
  exclude_list_ids: 'list',
  exclude_tag_ids: 'tag',
  exclude_segment_ids: 'segment',
} as const;

export type AudienceField = keyof typeof audienceKinds;

export const audienceFields = Object.keys(audienceKinds) as AudienceField[]; // Its own keys.

/** The fields that include contacts. At least one must be given. */
const including: readonly AudienceField[] = ['list_ids', 'tag_ids', 'segment_ids'];

/** Ids in lower case, each once in its field. */
export type AudienceIds = Readonly<Record<AudienceField, readonly string[]>>;

export function includesNobody(audience: AudienceIds): boolean {
  return including.every((field) => audience[field].length === 0);
}

/** Members of an included set get the campaign, unless they are in an excluded one. */
export type IncludedAndExcluded = { included: readonly string[]; excluded: readonly string[] };

export function includedAndExcluded(audience: AudienceIds): IncludedAndExcluded {
  const idsOf = (fields: readonly AudienceField[]) => fields.flatMap((field) => audience[field]);
  return {
    included: idsOf(including),
    excluded: idsOf(audienceFields.filter((field) => !including.includes(field))),
  };
}

/** Every set that the audience names, each once. */
export function listAudienceSets(audience: AudienceIds) {
  const kinds = new Map(
    audienceFields.flatMap((field) => audience[field].map((id) => [id, audienceKinds[field]] as const)),
  );
  return [...kinds].map(([id, kind]) => ({ id, kind }));
}

/**
 * Ids that name no set of the organization, or one of another kind. Sets that are found are protected from deletion
 * until the transaction ends.
 */
export async function findUnknownSets(
  transaction: Transaction,
  organizationId: string,
  audience: Partial<AudienceIds>,
): Promise<string[]> {
  const given = audienceFields.flatMap((field) =>
    (audience[field] ?? []).map((id, index) => ({ id, field, index, kind: audienceKinds[field] })),
  );
  const ids = [...new Set(given.map(({ id }) => id.toLowerCase()))];
  const found = await findSets(transaction, organizationId, ids, { areKept: true });
  return given
    .filter(({ id, kind }) => found.get(id.toLowerCase())?.kind !== kind)
    .map(({ id, field, index, kind }) => `${field}[${index}] is not a ${kind} of this organization: ${id}`);
}
