import { type Command, Help, type Option } from 'commander';
import { readConfig, readEnvironment, settings } from '../config.ts';
import {
  asDatabaseProblem,
  describeFailure,
  type Foundation,
  hasInstallation,
  type Installation,
  openFoundation,
  openSecretsOf,
} from '../installation/installation.ts';
import { now, systemClock } from '../platform/clock.ts';
import { createLog, type Log, silentLog } from '../platform/log.ts';
import { migrate, pendingMigrations } from '../platform/postgres/migrate.ts';
import { createPartitions } from '../platform/postgres/partitions.ts';
import { programName } from '../platform/program-name.ts';
import { examples } from './examples.ts';

/**
 * What every operator command does alike: it opens the installation, beside a running server or without one, does
 * its work, prints the result, and closes what it opened. Standard output carries the result and nothing else: text
 * for people, or with `--json` exactly one object. What is refused ends with exit code 1 and a sentence on standard
 * error, or with `--json` as `{ "error": "…" }` on standard output.
 */

/** What a command says: as an object, and as text for people. */
export type Report = { json: Record<string, unknown>; text: string };

export type CommandOutcome =
  | ({ kind: 'done' | 'failed' } & Report)
  | { kind: 'refused'; problem: string }
  /** The command has printed its result itself, part by part. */
  | { kind: 'written' };

export function refuse(problem: string): Extract<CommandOutcome, { kind: 'refused' }> {
  return { kind: 'refused', problem };
}

export function done(json: Record<string, unknown>, text: string): CommandOutcome {
  return { kind: 'done', json, text };
}

/**
 * A command under `parent`, with `--json`, with errors in the form that it asks for, and with examples in its help. `printed`
 * is what it prints with `--json`.
 */
export function addCommand(
  parent: Command,
  name: string,
  description: string,
  { printed = 'one JSON object' }: { printed?: string } = {},
): Command {
  const place = parent.parent === null ? name : `${parent.name()} ${name}`;
  return parent
    .command(name)
    .description(description)
    .configureHelp({ optionDescription: describeOption })
    .addHelpText('after', () => showExamples(examples[place] ?? []))
    .option('--json', `print ${printed}`)
    .showHelpAfterError('Add --help to see how it is used.')
    .configureOutput({
      // Looked up in the arguments themselves: the option may come after the one that is wrong.
      outputError: (text, write) => {
        if (process.argv.includes('--json')) printError(true, text.trim().replace(/^error: /, ''));
        else write(text);
      },
    });
}

/** As it is usually described, and whether it may be left out. */
function describeOption(option: Option): string {
  const described = new Help().optionDescription(option);
  return option.mandatory ? `${described} (required)` : described;
}

function showExamples(lines: readonly string[]): string {
  const shown = lines.map((line) => `  ${programName()} ${line}`);
  return `\n${shown.length === 1 ? 'Example' : 'Examples'}:\n${shown.join('\n')}`;
}

/**
 * What a command needs of the schema. `current`: that of this release, which the command never makes by itself, since
 * processes of the release before may still run. `begins`: the same, but in an empty database it is made, so that
 * there is a way to begin. `any`: nothing.
 */
type SchemaNeed = 'current' | 'begins' | 'any';

type CommandOptions = { schema: SchemaNeed; isLong: boolean };

/** The action of a command that works on the installation. */
export function onInstallation<Arguments extends unknown[]>(
  work: (installation: Installation, ...values: Arguments) => Promise<CommandOutcome>,
  options: CommandOptions = { schema: 'current', isLong: false },
) {
  return onOpened(openSecretsOf, work, options);
}

/** The action of a command that must work although the secret of the installation is lost, or another one. */
export function onFoundation<Arguments extends unknown[]>(
  work: (foundation: Foundation, ...values: Arguments) => Promise<CommandOutcome>,
  options: CommandOptions = { schema: 'current', isLong: false },
) {
  return onOpened((foundation) => Promise.resolve(foundation), work, options);
}

function onOpened<Opened, Arguments extends unknown[]>(
  complete: (foundation: Foundation) => Promise<Opened>,
  work: (opened: Opened, ...values: Arguments) => Promise<CommandOutcome>,
  options: CommandOptions,
) {
  return async function (this: Command, ...values: Arguments): Promise<void> {
    await runCommand(this, options, async (log) => {
      const config = readConfig(readEnvironment(process.env));
      if (options.schema === 'current' && !hasInstallation(config)) {
        return {
          kind: 'refused',
          problem: `There is no installation in ${config.dataDirectory} yet. "${programName()} serve" or "${programName()} org create" begins one.`,
        };
      }
      const foundation = await openFoundation(config, log, { migrate: false });
      try {
        const problem = await prepareSchema(foundation, options.schema);
        if (problem !== null) return { kind: 'refused', problem };
        return await work(await complete(foundation), ...values);
      } catch (cause) {
        throw config.databaseUrl === null ? cause : await asDatabaseProblem(cause, config.databaseUrl);
      } finally {
        await foundation.close();
      }
    });
  };
}

/** What is wrong with the schema, in a sentence; null if the command may begin. */
async function prepareSchema(
  { config, database, clock }: Foundation,
  need: SchemaNeed,
): Promise<string | null> {
  if (need === 'any') return null;
  const pending = await pendingMigrations(database);
  if (pending.length === 0) return null;
  const isEmpty = pending.some(({ version }) => version === 1);
  if (isEmpty && need === 'begins') {
    await migrate(database);
    await createPartitions(database, now(clock), config.partitionSize);
    return null;
  }
  return isEmpty
    ? `The database has no schema yet. Run "${programName()} migrate", or start the server, which does the same.`
    : `The database lacks ${pending.length === 1 ? 'a migration' : `${pending.length} migrations`} of this release. Run "${programName()} migrate", or start the server, which does the same.`;
}

/**
 * Prints what `work` comes to, and sets the exit code. A refusal that only PostgreSQL could see, such as a lost
 * connection, is a sentence as well; its stack is logged where LOG_LEVEL asks for a log.
 */
export async function runCommand(
  command: Command,
  options: { isLong: boolean },
  work: (log: Log) => Promise<CommandOutcome>,
): Promise<void> {
  const isJson = command.opts<{ json?: boolean }>().json === true;
  const { log, flush } = await createCommandLog();
  const stopWatching = options.isLong ? () => undefined : endWhenStuck(isJson);
  try {
    print(isJson, await work(log));
  } catch (cause) {
    log.error({ err: cause }, 'the command failed');
    printError(isJson, describeFailure(cause));
    process.exitCode = 1;
  } finally {
    stopWatching();
    flush();
  }
}

function print(isJson: boolean, outcome: CommandOutcome): void {
  if (outcome.kind === 'written') return;
  if (outcome.kind === 'refused') {
    printError(isJson, outcome.problem);
    // Some refusals have set a code of their own.
    process.exitCode ??= 1;
    return;
  }
  process.stdout.write(`${escapeControls(isJson ? JSON.stringify(outcome.json) : outcome.text)}\n`);
  if (outcome.kind === 'failed') process.exitCode = 1;
}

function printError(isJson: boolean, problem: string): void {
  if (isJson) process.stdout.write(`${escapeControls(JSON.stringify({ error: problem }))}\n`);
  else process.stderr.write(`${escapeControls(problem)}\n`);
}

/**
 * What is printed may quote a file, a name or another server: characters that a terminal would obey, such as ESC, are
 * written out as JSON writes them, which has the same meaning within JSON.
 */
export function escapeControls(text: string): string {
  return text.replace(
    /[^\P{Cc}\n\t]/gu,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Silent, so that a terminal shows only the result, unless the user asks for more. */
async function createCommandLog(): Promise<{ log: Log; flush: () => void }> {
  const wanted = readEnvironment(process.env).LOG_LEVEL?.trim();
  // One that does not exist is reported with the other settings.
  const level = settings.LOG_LEVEL.choices.find((choice) => choice === wanted);
  if (level === undefined) return { log: silentLog, flush: () => undefined };
  const log = await createLog(level, { role: 'operator' });
  return { log, flush: log.flush };
}

/**
 * Every step has a limit of its own; the longest is the wait for another process that makes the embedded
 * PostgreSQL's files. Shorter would give up beside a slow disk, longer leaves a script hanging on a dead network.
 */
const commandTimeoutMs = 180_000;

function endWhenStuck(isJson: boolean): () => void {
  return systemClock.after(commandTimeoutMs, () => {
    printError(isJson, `The command was given up after ${commandTimeoutMs / 1_000} seconds.`);
    process.exit(1);
  });
}

/** Columns as wide as their widest cell. */
export function formatTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  return [head, ...rows]
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
