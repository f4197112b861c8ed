import { once } from 'node:events';
import { createInterface } from 'node:readline/promises';
import type { Command } from 'commander';
import { countRowsUpTo, deleteOrganization } from '../accounts/accounts.ts';
import type { Installation } from '../installation/installation.ts';
import { toComposed } from '../platform/characters.ts';
import { programName } from '../platform/program-name.ts';
import { wordFor } from '../platform/wording.ts';
import { addCommand, type CommandOutcome, done, escapeControls, onInstallation, refuse } from './command.ts';
import { type NamedOrganization, onOrganizationToDelete } from './organization.ts';
import { formatCount, interruptedExitCode, listenForInterruption, startProgress } from './progress.ts';
import { parseName, parseOrganization } from './values.ts';

/** What goes that a person would miss, by the table that has it. */
const shownTables = {
  contacts: 'contacts',
  contact_sets: 'lists, tags and segments',
  suppressions: 'suppressions, opt-outs among them',
  devices: 'devices',
  events: 'events',
  messages: 'messages',
  campaigns: 'campaigns',
  templates: 'templates',
  chat_templates: 'chat-app templates',
  domains: 'domains',
  senders: 'senders',
  api_keys: 'API keys',
} as const;

/** Of each table; counting more takes longer than a person likes to wait. */
const countMax = 100_000;

type DeletionOptions = { org: string; confirm?: string; json?: boolean };

/** `org delete` */
export function addOrganizationDeletion(group: Command): void {
  addCommand(
    group,
    'delete',
    'Delete an organization with everything of it. Run again, it goes on where it ended.',
  )
    .requiredOption('--org <org>', 'id or name of the organization', parseOrganization)
    .option('--confirm <name>', 'its name, to confirm; asked for in a terminal', parseName)
    .action(
      onInstallation(
        (installation, options: DeletionOptions) =>
          onOrganizationToDelete(installation, options.org, (organization) =>
            runOrganizationDelete(installation, organization, options),
          ),
        { schema: 'current', isLong: true },
      ),
    );
}

async function runOrganizationDelete(
  installation: Installation,
  { id, name }: NamedOrganization,
  options: DeletionOptions,
): Promise<CommandOutcome> {
  const counts = await countRowsUpTo(installation.database, id, {
    tables: Object.keys(shownTables) as (keyof typeof shownTables)[], // The keys of a constant.
    most: countMax + 1,
  });
  const goes = Object.entries(shownTables).flatMap(([table, noun]) => {
    const count = counts[table as keyof typeof shownTables];
    return count === 0
      ? []
      : [`${count > countMax ? `more than ${formatCount(countMax)}` : formatCount(count)} ${noun}`];
  });
  const confirmation = options.confirm ?? (await ask(id, name, goes));
  if (confirmation !== name) {
    return refuse(
      confirmation === null
        ? `Nothing was deleted. ${name} would go with ${goes.join('; ') || 'nothing in it'}. Add --confirm with its name to delete it.`
        : `Nothing was deleted: the organization is called ${name}, and not ${confirmation}.`,
    );
  }
  // It takes half of the program, which the other commands here need not load.
  const { hasClaims } = await import('../messages/messages.ts');
  const interruption = listenForInterruption();
  const display = startProgress(installation.clock);
  try {
    const { kind, rows } = await deleteOrganization(installation, {
      organizationId: id,
      isAtWork: hasClaims,
      signal: interruption.signal,
      onProgress: (deleted) => {
        display.update({ rows: deleted, share: null });
      },
    });
    display.end();
    const json = { id, name, deleted: kind === 'deleted', rows };
    const soFar = `${formatCount(rows)} ${wordFor(rows, 'row')}`;
    if (kind === 'deleted') return done(json, `Deleted the organization ${name}: ${soFar}.`);
    if (kind === 'not_found') return refuse(`There is no organization ${id} any more.`);
    process.exitCode = interruptedExitCode;
    return {
      kind: 'failed',
      json: { ...json, interrupted: true },
      text: `Interrupted after ${soFar}. The organization is out of service; run "${programName()} org delete --org ${id}" again to delete the rest.`,
    };
  } finally {
    display.end();
    interruption.ignore();
  }
}

/** What a person types in a terminal; null where there is none, or nothing was typed. */
async function ask(id: string, name: string, goes: readonly string[]): Promise<string | null> {
  if (!process.stdin.isTTY || !process.stderr.isTTY) return null;
  const lines = [
    `The organization ${name} (${id}) is deleted with everything of it:`,
    ...goes.map((each) => `  ${each}`),
    'Its API keys are refused within five seconds, and nothing more of it is sent. This cannot be undone.',
    '',
  ];
  process.stderr.write(escapeControls(lines.join('\n')));
  const questions = createInterface({ input: process.stdin, output: process.stderr });
  // With Ctrl+D, and in some releases of Node.js with Ctrl+C, the question is never answered; in others it rejects.
  const left = once(questions, 'close').then(() => '');
  try {
    const answer = await Promise.race([questions.question('Type its name to go on: ').catch(() => ''), left]);
    return toComposed(answer.trim()) || null;
  } finally {
    questions.close();
  }
}
