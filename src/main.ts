import { Command, Option } from 'commander';
import { DatabaseProblem, describeFailure } from './installation/installation.ts';
import { ConfigError, readConfig, readEnvironment, readVersion } from './config.ts';
import { DatabaseUnavailableError } from './platform/postgres/database.ts';
import { addOperatorCommands } from './operator/operator.ts';
import type { Role } from './roles/serve.ts';

const program = new Command('postillion')
  .description('A self-hosted messaging service. Settings come from the environment and from .env.')
  .version(readVersion(), '--version', 'print the version')
  .showHelpAfterError();

program
  .command('serve')
  .description('Serve the API and deliver messages, until stopped by SIGTERM or SIGINT.')
  .addOption(
    new Option('--role <role>', 'what this process does').choices(['all', 'api', 'worker']).default('all'),
  )
  .action(async (options: { role: Role }) => {
    const config = readConfig(readEnvironment(process.env));
    // Loaded here, because a command beside it should not wait for the whole server.
    const { serve } = await import('./roles/serve.ts');
    await serve(config, options.role);
  });

addOperatorCommands(program);

/** Enough for the output to be written. */
const lingerMs = 1_000;

try {
  await program.parseAsync();
} catch (cause) {
  process.stderr.write(`${describe(cause)}\n`);
  process.exitCode = 1;
}
if (process.exitCode === 1) {
  // What is no PostgreSQL may hold on to a connection that the client has given up.
  setTimeout(() => process.exit(), lingerMs).unref();
}

/** What has a cause outside of the program is a sentence; of a fault in the program the stack is wanted. */
function describe(cause: unknown): string {
  if (cause instanceof DatabaseProblem || cause instanceof DatabaseUnavailableError)
    return describeFailure(cause);
  if (!(cause instanceof Error)) return String(cause);
  const isKnown = cause instanceof ConfigError || 'code' in cause;
  return isKnown ? cause.message : (cause.stack ?? cause.message);
}
