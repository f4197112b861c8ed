import { toComposed, toSearchKey } from '../../platform/characters.ts';
import { type Clock, now } from '../../platform/clock.ts';
import { isUuid, type NewId } from '../../platform/ids.ts';
import type { Database } from '../../platform/postgres/database.ts';
import * as store from './import-store.ts';
import { findSets } from '../set-store.ts';

/** Lists and tags by name, as an import meets them: looked up once, and made where there are none. */

export type ImportSetTools = { database: Database; clock: Clock; newId: NewId };

type SetKind = 'list' | 'tag';

export type ImportSets = {
  /** Makes `idOf` know these names. Those that would be too many new ones stay unknown. */
  learn: (kind: SetKind, names: readonly string[]) => Promise<void>;
  idOf: (kind: SetKind, name: string) => string | undefined;
  /** Names of those that were made, or in a dry run would be. */
  created: Record<SetKind, string[]>;
};

/** A column of notes that is taken for tags must not make one of every note. */
export const createdSetsMax = 1_000;

export function createImportSets(
  tools: ImportSetTools,
  { organizationId, isDryRun }: { organizationId: string; isDryRun: boolean },
): ImportSets {
  const ids: Record<SetKind, Map<string, string>> = { list: new Map(), tag: new Map() };
  const created: Record<SetKind, string[]> = { list: [], tag: [] };
  return {
    created,
    idOf: (kind, name) => ids[kind].get(toSearchKey(name)),
    learn: async (kind, names) => {
      const namesByKey = new Map<string, string>();
      for (const name of names) {
        const key = toSearchKey(name);
        const isNews = !ids[kind].has(key) && !namesByKey.has(key);
        if (isNews) namesByKey.set(copyText(key), copyText(toComposed(name)));
      }
      if (namesByKey.size === 0) return;
      const remember = (sets: readonly store.NamedSet[]) => {
        for (const { id, name_key: key } of sets) {
          ids[kind].set(key, id);
          namesByKey.delete(key);
        }
      };
      const find = () =>
        tools.database.asOrganizations([organizationId], (transaction) =>
          store.findSetsByName(transaction, { organizationId, kind, nameKeys: [...namesByKey.keys()] }),
        );
      remember(await find());
      const room = createdSetsMax - created[kind].length;
      const rows = [...namesByKey]
        .slice(0, Math.max(room, 0))
        .map(([nameKey, name]) => ({ id: tools.newId(), name, nameKey }));
      if (rows.length === 0) return;
      const made = isDryRun
        ? rows.map(({ id, name, nameKey }) => ({ id, name, name_key: nameKey }))
        : await tools.database.asOrganizations([organizationId], (transaction) =>
            store.insertSets(transaction, { organizationId, kind, rows, at: now(tools.clock) }),
          );
      created[kind].push(...made.map(({ name }) => name));
      remember(made);
      // Another request has created the rest in the meantime.
      if (made.length < rows.length) remember(await find());
    },
  };
}

/** A part of a text keeps all of it in memory: names outlive the part of the file that they were read from. */
function copyText(text: string): string {
  return Buffer.from(text).toString();
}

export type ResolvedSets = { kind: 'resolved'; ids: string[] } | { kind: 'refused'; problem: string };

/** Lists, or tags, by id or by name. Names that are unknown are made where `sets` are given, and refused elsewhere. */
export async function resolveSets(
  database: Database,
  wanted: { organizationId: string; kind: SetKind; references: readonly string[]; sets: ImportSets | null },
): Promise<ResolvedSets> {
  const { organizationId, kind, references, sets } = wanted;
  const asIds = references.filter(isUuid).map((id) => id.toLowerCase());
  const names = references.filter((reference) => !isUuid(reference));
  const found = await database.asOrganizations([organizationId], async (transaction) => ({
    byId: await findSets(transaction, organizationId, asIds),
    byName: await store.findSetsByName(transaction, {
      organizationId,
      kind,
      nameKeys: names.map(toSearchKey),
    }),
  }));
  await sets?.learn(kind, names);
  const idsByKey = new Map(found.byName.map(({ id, name_key: key }) => [key, id]));
  const ids: string[] = [];
  for (const reference of references) {
    const id = isUuid(reference)
      ? reference.toLowerCase()
      : (sets?.idOf(kind, reference) ?? idsByKey.get(toSearchKey(reference)));
    const isThere = id !== undefined && (!isUuid(reference) || found.byId.get(id)?.kind === kind);
    if (!isThere) return { kind: 'refused', problem: `There is no ${kind} ${reference}.` };
    ids.push(id);
  }
  return { kind: 'resolved', ids: [...new Set(ids)] };
}
