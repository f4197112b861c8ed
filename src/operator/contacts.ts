import { type Command, Option } from 'commander';
import { importContacts, type ImportOutcome } from '../audience/audience.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { addCommand, type CommandOutcome, onInstallation } from './command.ts';
import { runExport } from './export.ts';
import {
  addImportCommand,
  collectText,
  type DescribedImport,
  type ImportArguments,
  longRunning,
} from './imports.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { formatCount } from './progress.ts';
import { parseOrganization } from './values.ts';

/** `contacts import` and `contacts export`. Files are read and written a part at a time, whatever their size. */
export function addContactCommands(group: Command): void {
  addImportCommand<ContactImportArguments, EndedContactImport>(group, {
    description: 'Create and update contacts from a CSV file.',
    mapped: 'the field that a column holds',
    options: [
      new Option(
        '--list <name-or-id>',
        'add all contacts to a list, created if it does not exist; repeatable',
      ).argParser(collectText),
      new Option(
        '--tag <name-or-id>',
        'give all contacts a tag, created if it does not exist; repeatable',
      ).argParser(collectText),
    ],
    importRows: (installation, request, { list: lists = [], tag: tags = [] }) =>
      importContacts(installation, {
        ...request,
        lists,
        tags,
        // Each by a waker of its own, which does not wait; batches are far enough apart.
        onChanged: () => {
          createWaker(installation, 'segments')();
        },
      }),
    describe: describeImport,
  });
  addCommand(group, 'export', 'Write contacts to a CSV file.')
    .argument('[file]', 'path of the file; without it, or with -, standard output')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--list <name-or-id>', 'only members of a list; repeatable', collectText)
    .option('--tag <name-or-id>', 'only contacts with a tag; repeatable', collectText)
    .action(
      onInstallation(
        async (installation, given: string | undefined, options: Unresolved<ExportArguments>) => {
          const file = given === undefined || given === '-' ? null : given;
          if (file === null && options.json === true)
            return refuse('With --json, name a file: standard output is needed for the result.');
          const { list: lists = [], tag: tags = [] } = options;
          return onOrganization(installation, options.org, (organizationId) =>
            runExport(installation, { organizationId, file, lists, tags }),
          );
        },
        longRunning,
      ),
    );
}

type ExportArguments = { org: string; list?: string[]; tag?: string[]; json?: boolean };

type ContactImportArguments = ImportArguments & { list?: string[]; tag?: string[] };

type EndedContactImport = Exclude<ImportOutcome, { kind: 'refused' }>;

function describeImport(ended: EndedContactImport): DescribedImport {
  const { counts, sharedLists, sharedTags, createdLists, createdTags } = ended;
  const { created, updated, unchanged, keptUnsubscribed } = counts;
  return {
    json: {
      created,
      updated,
      unchanged,
      kept_unsubscribed: keptUnsubscribed,
      lists: sharedLists,
      tags: sharedTags,
      created_lists: createdLists,
      created_tags: createdTags,
    },
    counted: [
      `${formatCount(created)} created`,
      `${formatCount(updated)} updated`,
      `${formatCount(unchanged)} unchanged`,
    ],
    sentences: [
      keptUnsubscribed > 0 &&
        `${formatCount(keptUnsubscribed)} say "subscribed" for contacts that have unsubscribed, which stay unsubscribed.`,
      ...sharedLists.map(({ id, name }) => `List ${name}: ${id}`),
      ...sharedTags.map(({ id, name }) => `Tag ${name}: ${id}`),
      createdLists.length > 0 && `Lists created: ${showNames(createdLists)}.`,
      createdTags.length > 0 && `Tags created: ${showNames(createdTags)}.`,
    ],
    repeated: 'nothing is created twice',
  };
}

const shownNamesMax = 20;

function showNames(names: readonly string[]): string {
  const shown = names.slice(0, shownNamesMax).join(', ');
  return names.length > shownNamesMax ? `${shown} and ${names.length - shownNamesMax} more` : shown;
}

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}
