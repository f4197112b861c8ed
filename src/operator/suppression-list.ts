import { type Command } from 'commander';
import { type Channel, channels } from '../channels/channel.ts';
import { listSuppressions, type StoredSuppression } from '../audience/audience.ts';
import type { Installation } from '../installation/installation.ts';
import { addCommand, type CommandOutcome, formatTable, onInstallation } from './command.ts';
import { writeTo } from './files.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { defaultPageSize, parseChannel, parseOrganization, parsePageSize } from './values.ts';

/** `suppression list`: a few, as the other lists, or with `--all` every one, however many there are. */
export function addSuppressionList(group: Command): void {
  addCommand(group, 'list', 'List what is suppressed, by channel and newest first.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--channel <channel>', 'only of one channel', parseChannel)
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .option('--all', 'list all, regardless of --limit')
    .action(
      onInstallation(
        (installation, options: Unresolved<ListOptions>) =>
          onOrganization(installation, options.org, (org) =>
            options.all === true
              ? writeAll(installation, { ...options, org })
              : showSome(installation, { ...options, org }),
          ),
        { schema: 'current', isLong: true },
      ),
    );
}

type ListOptions = { org: string; channel?: Channel; limit: number; all?: boolean; json?: boolean };

/** Of so many a page is read; more would only take memory. */
const pageRowsMax = 1_000;

/** In pages, each beginning after the one before, so that neither a transaction nor a page grows with the list. */
async function* readPages(
  installation: Installation,
  { org: organizationId, channel: wanted }: ListOptions,
  limit: number,
): AsyncGenerator<StoredSuppression[], void, undefined> {
  for (const channel of wanted === undefined ? channels : [wanted]) {
    let after: string | null = null;
    do {
      const rows: StoredSuppression[] = await listSuppressions(installation.database, installation, {
        organizationId,
        filter: { channel },
        page: { limit, after, before: null },
      });
      const page = rows.slice(0, limit);
      if (page.length > 0) yield page;
      after = rows.length > limit ? (page.at(-1)?.id ?? null) : null;
    } while (after !== null);
  }
}

async function showSome(installation: Installation, options: ListOptions): Promise<CommandOutcome> {
  const { limit } = options;
  const found: StoredSuppression[] = [];
  for await (const page of readPages(installation, options, limit + 1)) {
    found.push(...page);
    if (found.length > limit) break;
  }
  const shown = found.slice(0, limit);
  const hasMore = found.length > limit;
  const table = formatTable(
    ['CHANNEL', 'ADDRESS', 'REASON', 'SCOPE', 'SINCE', 'OPTED OUT'],
    shown.map(toCells),
  );
  return {
    kind: 'done',
    json: { data: shown.map(toJson), has_more: hasMore },
    text: hasMore ? `${table}\nThere are more: give a larger --limit, or --all.` : table,
  };
}

/** Line by line, so that a million of them need no more memory than a page. */
async function writeAll(installation: Installation, options: ListOptions): Promise<CommandOutcome> {
  const { write } = writeTo(process.stdout);
  const isJson = options.json === true;
  await write(
    isJson ? '{"data":[' : ['CHANNEL', 'ADDRESS', 'REASON', 'SCOPE', 'SINCE', 'OPTED OUT'].join('\t'),
  );
  let isFirst = true;
  for await (const page of readPages(installation, options, pageRowsMax)) {
    const texts = page.map((row) => (isJson ? JSON.stringify(toJson(row)) : `\n${toCells(row).join('\t')}`));
    await write(isJson ? `${isFirst ? '' : ','}${texts.join(',')}` : texts.join(''));
    isFirst = false;
  }
  await write(isJson ? '],"has_more":false}\n' : '\n');
  return { kind: 'written' };
}

/** What is left of an address that was erased. */
function showErased(addressHash: Buffer): string {
  return `(erased, ${addressHash.toString('hex').slice(0, 12)}…)`;
}

function toCells({
  channel,
  address,
  addressHash,
  reason,
  scope,
  createdAt,
  optedOutAt,
}: StoredSuppression): string[] {
  return [
    channel,
    address ?? showErased(addressHash),
    reason,
    scope,
    createdAt.toISOString(),
    optedOutAt?.toISOString() ?? '',
  ];
}

function toJson(row: StoredSuppression): Record<string, unknown> {
  return {
    id: row.id,
    channel: row.channel,
    address: row.address,
    address_hash: row.addressHash.toString('hex'),
    erased: row.address === null,
    reason: row.reason,
    scope: row.scope,
    note: row.note,
    source: row.source,
    created_at: row.createdAt,
    expires_at: row.expiresAt,
    opted_out_at: row.optedOutAt,
  };
}
