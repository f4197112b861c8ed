import type { Command } from 'commander';
import { type Config, readConfig, readEnvironment, settings } from '../config.ts';
import { systemClock } from '../platform/clock.ts';
import { createLog, type Log, silentLog } from '../platform/log.ts';
import { asDatabaseProblem } from './database-problem.ts';
import { describeFailure } from './failure.ts';
import { type Foundation, type Installation, openFoundation, openInstallation } from './installation.ts';

/**
 * What every operator command does alike: it opens the installation, beside a running server or without one, does
 * its work, prints the result, and closes what it opened. Standard output carries the result and nothing else: text
 * for people, or with `--json` exactly one object. What is refused ends with exit code 1 and a sentence on standard
 * error, or with `--json` as `{ "error": "…" }` on standard output.
 */

/** What a command says: as an object, and as text for people. */
export type Report = { json: Record<string, unknown>; text: string };

export type CommandOutcome = ({ kind: 'done' | 'failed' } & Report) | { kind: 'refused'; problem: string };

/** A command under `parent`, with `--json` and with errors in the form that it asks for. */
export function addCommand(parent: Command, nameAndArguments: string, description: string): Command {
  return parent
    .command(nameAndArguments)
    .description(description)
    .option('--json', 'print one JSON object')
    .showHelpAfterError('Add --help to see how it is used.')
    .configureOutput({
      // Asked of the arguments themselves: the option may stand behind the one that is wrong.
      outputError: (text, write) => {
        if (process.argv.includes('--json')) printError(true, text.trim().replace(/^error: /, ''));
        else write(text);
      },
    });
}

type CommandOptions = { migrate: boolean; isLong: boolean };

/** The action of a command that works on the installation, its schema brought up to date. */
export function onInstallation<Arguments extends unknown[]>(
  work: (installation: Installation, ...values: Arguments) => Promise<CommandOutcome>,
  options: CommandOptions = { migrate: true, isLong: false },
) {
  return onOpened(openInstallation, work, options);
}

/** The action of a command that must work although the secret of the installation is lost, or another one. */
export function onFoundation<Arguments extends unknown[]>(
  work: (foundation: Foundation, ...values: Arguments) => Promise<CommandOutcome>,
  options: CommandOptions = { migrate: true, isLong: false },
) {
  return onOpened(openFoundation, work, options);
}

function onOpened<Opened extends { close: () => Promise<void> }, Arguments extends unknown[]>(
  open: (config: Config, log: Log, options: CommandOptions) => Promise<Opened>,
  work: (opened: Opened, ...values: Arguments) => Promise<CommandOutcome>,
  options: CommandOptions,
) {
  return async function (this: Command, ...values: Arguments): Promise<void> {
    await runCommand(this, options, async (log) => {
      const config = readConfig(readEnvironment(process.env));
      const installation = await open(config, log, options);
      try {
        return await work(installation, ...values);
      } catch (cause) {
        throw config.databaseUrl === null ? cause : await asDatabaseProblem(cause, config.databaseUrl);
      } finally {
        await installation.close();
      }
    });
  };
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
  if (outcome.kind === 'refused') {
    printError(isJson, outcome.problem);
    process.exitCode = 1;
    return;
  }
  process.stdout.write(`${isJson ? JSON.stringify(outcome.json) : outcome.text}\n`);
  if (outcome.kind === 'failed') process.exitCode = 1;
}

function printError(isJson: boolean, problem: string): void {
  if (isJson) process.stdout.write(`${JSON.stringify({ error: problem })}\n`);
  else process.stderr.write(`${problem}\n`);
}

/** Silent, so that a terminal shows the result only, unless somebody wants to see more. */
async function createCommandLog(): Promise<{ log: Log; flush: () => void }> {
  const wanted = readEnvironment(process.env).LOG_LEVEL?.trim();
  // One that does not exist is reported with the other settings.
  const level = settings.LOG_LEVEL.choices.find((choice) => choice === wanted);
  if (level === undefined) return { log: silentLog, flush: () => undefined };
  const log = await createLog(level, 'operator');
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
