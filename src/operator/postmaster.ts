import { type Command, InvalidArgumentError } from 'commander';
import { readMailHead } from '../channels/email/email.ts';
import { sanitiseDiagnostic } from '../channels/diagnostic.ts';
import {
  deletePostmasterMail,
  findPostmasterMail,
  listPostmasterMail,
  type PostmasterMail,
} from '../email/email.ts';
import type { Installation } from '../installation/installation.ts';
import { isUuid } from '../platform/ids.ts';
import { addCommand, type CommandOutcome, formatTable, onInstallation } from './command.ts';
import { defaultPageSize, parsePageSize } from './values.ts';
import { programName } from '../platform/program-name.ts';

/** What was written to the postmaster of the installation. */
export function addPostmasterCommands(group: Command): void {
  addCommand(group, 'list', 'List the mail that is kept, newest first.')
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .action(
      onInstallation((installation, options: { limit: number }) => runList(installation, options.limit)),
    );
  addCommand(group, 'show', 'Show a mail as it came.')
    .argument('<mail-id>', 'its id', parseMailId)
    .action(onInstallation(runShow));
  addCommand(group, 'delete', 'Delete mail that was read.')
    .argument('[mail-ids...]', 'their ids', (text: string, ids: string[] = []) => [...ids, parseMailId(text)])
    .option('--all', 'all that is kept')
    .action(
      onInstallation((installation, ids: string[], options: { all?: boolean }) =>
        runDelete(installation, ids, options.all === true),
      ),
    );
}

function parseMailId(text: string): string {
  if (!isUuid(text)) {
    throw new InvalidArgumentError(`It must be an id as "${programName()} postmaster list" shows it.`);
  }
  return text.toLowerCase();
}

async function runList({ database }: Installation, limit: number): Promise<CommandOutcome> {
  const found = await listPostmasterMail(database, limit + 1);
  const shown = found.slice(0, limit).map(showMail);
  const hasMore = found.length > limit;
  const table = formatTable(
    ['ID', 'RECEIVED', 'KIND', 'TO', 'FROM', 'SUBJECT'],
    shown.map(({ id, received_at: receivedAt, kind, to, from, subject }) => [
      id,
      receivedAt.toISOString(),
      kind,
      to,
      from,
      subject,
    ]),
  );
  return {
    kind: 'done',
    json: { data: shown, has_more: hasMore },
    text: hasMore ? `${table}\nThere are more: give a larger --limit.` : table,
  };
}

async function runShow({ database }: Installation, id: string): Promise<CommandOutcome> {
  const mail = await findPostmasterMail(database, id);
  if (mail === null) {
    return {
      kind: 'refused',
      problem: `There is no mail ${id}. "${programName()} postmaster list" shows what is kept.`,
    };
  }
  const source = Buffer.from(mail.source).toString();
  return {
    kind: 'done',
    json: { ...showMail(mail), source },
    text: `${makeHarmless(source)}${mail.isCut ? '\n(There was more of it.)' : ''}`,
  };
}

/** A terminal obeys control characters, and anyone may have written this. */
function makeHarmless(source: string): string {
  return source.replaceAll('\r\n', '\n').replace(/[^\P{C}\n\t]/gu, '�');
}

async function runDelete(
  { database }: Installation,
  ids: readonly string[],
  isAll: boolean,
): Promise<CommandOutcome> {
  if (isAll === ids.length > 0) return { kind: 'refused', problem: 'Give the ids of mail, or --all.' };
  const deleted = await deletePostmasterMail(database, isAll ? null : ids);
  return { kind: 'done', json: { deleted }, text: `Deleted ${deleted}.` };
}

function showMail({ id, kind, recipient, receivedAt, source, isCut }: PostmasterMail) {
  const { from, subject } = readMailHead(source);
  return {
    id,
    received_at: receivedAt,
    kind,
    to: recipient,
    from: sanitiseDiagnostic(from),
    subject: sanitiseDiagnostic(subject),
    cut: isCut,
  };
}
