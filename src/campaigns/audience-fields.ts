import { findSets } from '../audience/audience.ts';
import type { Transaction } from '../platform/postgres/database.ts';

/** The inputs that say who gets a campaign, each with what its ids name. A column has the name of its field. */
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

/** Those without which nobody gets it. */
const including: readonly AudienceField[] = ['list_ids', 'tag_ids', 'segment_ids'];

/** Ids in lower case, each once in its field. */
export type AudienceIds = Readonly<Record<AudienceField, readonly string[]>>;

export function includesNobody(audience: AudienceIds): boolean {
  return including.every((field) => audience[field].length === 0);
}

/** Whose members get it, unless they are in one of the others. */
export type IncludedAndExcluded = { included: readonly string[]; excluded: readonly string[] };

export function includedAndExcluded(audience: AudienceIds): IncludedAndExcluded {
  const idsOf = (fields: readonly AudienceField[]) => fields.flatMap((field) => audience[field]);
  return {
    included: idsOf(including),
    excluded: idsOf(audienceFields.filter((field) => !including.includes(field))),
  };
}

/** Every set that it speaks of, each once. */
export function listAudienceSets(audience: AudienceIds) {
  const kinds = new Map(
    audienceFields.flatMap((field) => audience[field].map((id) => [id, audienceKinds[field]] as const)),
  );
  return [...kinds].map(([id, kind]) => ({ id, kind }));
}

/** Ids that name nothing of the organization, or something of another kind. What is found is kept from being deleted. */
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
