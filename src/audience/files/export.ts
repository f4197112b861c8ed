import { channels } from '../../channels/channel.ts';
import type { Database } from '../../platform/postgres/database.ts';
import { contactFieldNames } from '../contact-fields.ts';
import type { Properties } from '../contact-values.ts';
import { joinTexts, writeRecord } from './csv-writer.ts';
import { columnNameOf } from './import-columns.ts';
import { resolveSets } from './import-sets.ts';
import { countForExport, type ExportedRow, listForExport, listSetNames } from './import-store.ts';
import { loadProperties } from '../property-store.ts';
import type { Property, PropertyValue } from '../schema.ts';

/**
 * Contacts as a CSV file that `importContacts` reads, in the order of their creation. Pages are read one by one and not
 * in one long transaction, which would keep PostgreSQL from vacuuming: a contact is in the file as it was when its page
 * was read, and one that is created during the export may be missing.
 */

export type ExportOptions = {
  organizationId: string;
  /** By name or id. Only contacts that belong to all of these lists and tags. */
  lists: readonly string[];
  tags: readonly string[];
  /** Smaller in tests. */
  pageRowsMax?: number;
};

export type OpenedExport =
  | { kind: 'refused'; problem: string }
  /** Lines without their ends, those of a page together. */
  | {
      kind: 'opened';
      head: string;
      pages: AsyncGenerator<string[], void, undefined>;
      /** How many contacts there are at the moment; of a million, a fraction of a second. */
      count: () => Promise<number>;
    };

export async function openExport(database: Database, options: ExportOptions): Promise<OpenedExport> {
  const { organizationId, lists, tags, pageRowsMax = defaultPageRowsMax } = options;
  const setIds: string[] = [];
  for (const [kind, references] of [['list', lists] as const, ['tag', tags] as const]) {
    const resolved = await resolveSets(database, { organizationId, kind, references, sets: null });
    if (resolved.kind === 'refused') return resolved;
    setIds.push(...resolved.ids);
  }
  const properties = await database.asOrganizations([organizationId], (transaction) =>
    loadProperties(transaction, organizationId),
  );
  const setNames = await database.asOrganizations([organizationId], (transaction) =>
    listSetNames(transaction, organizationId),
  );
  const sets = new Map(setNames.map(({ id, kind, name }, rank) => [id, { kind, name, rank }]));
  const inOrder = [...properties.values()].sort((first, second) => first.number - second.number);
  return {
    kind: 'opened',
    head: writeHead(inOrder, properties),
    pages: readPages(database, { organizationId, setIds, pageRowsMax, shape: { properties: inOrder, sets } }),
    count: () =>
      database.asOrganizations([organizationId], (transaction) =>
        countForExport(transaction, { organizationId, setIds }),
      ),
  };
}

/** What the columns are made of: the properties, and by their ids the lists and tags in the order of their names. */
type Shape = {
  properties: readonly Property[];
  sets: ReadonlyMap<string, { kind: 'list' | 'tag'; name: string; rank: number }>;
};

/** Fewer cost more round trips, more cost memory: a contact may carry 500 texts. */
const defaultPageRowsMax = 1_000;

async function* readPages(
  database: Database,
  wanted: { organizationId: string; setIds: readonly string[]; pageRowsMax: number; shape: Shape },
): AsyncGenerator<string[], void, undefined> {
  const { organizationId, setIds, pageRowsMax, shape } = wanted;
  const readPage = (after: string | null) =>
    database.asOrganizations([organizationId], (transaction) =>
      listForExport(transaction, { organizationId, setIds, after, limit: pageRowsMax }),
    );
  let rows = await readPage(null);
  // Ends because each page begins after the previous one.
  for (let last = rows.at(-1); last !== undefined; last = rows.at(-1)) {
    // PostgreSQL reads the next page while this one is written.
    const coming = readPage(last.id);
    coming.catch(() => undefined);
    yield rows.map((row) => writeContact(row, shape));
    rows = await coming;
  }
}

function writeHead(inOrder: readonly Property[], properties: Properties): string {
  return writeRecord([
    ...contactFieldNames,
    ...inOrder.map((property) => columnNameOf(property, properties)),
    ...channels.map((channel) => `${channel}_consent`),
    'lists',
    'tags',
  ]);
}

function writeContact(row: ExportedRow, { properties, sets }: Shape): string {
  const cells: (PropertyValue | null)[] = contactFieldNames.map((field) => row[field]);
  for (const { number } of properties) cells.push(row.properties[`${number}`] ?? null);
  for (const channel of channels) {
    cells.push(row.unsubscribed_channels.includes(channel) ? 'unsubscribed' : 'subscribed');
  }
  const own = row.set_ids
    .flatMap((id) => sets.get(id) ?? [])
    .sort((first, second) => first.rank - second.rank);
  for (const kind of ['list', 'tag']) {
    cells.push(joinTexts(own.filter((set) => set.kind === kind).map(({ name }) => name)));
  }
  return writeRecord(cells);
}
