import { Command, Option } from 'commander';
import { DatabaseProblem, describeFailure } from './installation/installation.ts';
import { ConfigError, forgetOwner, readConfig, readEnvironment, readVersion } from './config.ts';
import { DatabaseUnavailableError } from './platform/postgres/database.ts';
import { ForeignSchemaError } from './platform/postgres/migrate.ts';
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
  .addOption(new Option('--supervised', 'as one of the processes of a supervisor').hideHelp())
  .action(async ({ role, supervised }: { role: Role; supervised?: boolean }) => {
    // Loaded here, because a command beside it should not wait for the whole server, and a supervisor needs none of it.
    if (supervised === true) {
      const { serveSupervised } = await import('./roles/supervised.ts');
      return serveSupervised(role, describe);
    }
    const config = readConfig(readEnvironment(process.env));
    if (role === 'api' && config.apiDatabaseUrl !== null) forgetOwner(process.env);
    const { countProcesses, supervise } = await import('./roles/supervisor.ts');
    const processes = countProcesses(config, role);
    if (processes > 1) return supervise(config, role, processes);
    const { serve } = await import('./roles/serve.ts');
    await serve(config, role);
  });

await addOperatorCommands(program, process.argv.slice(2));

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
  const isKnown =
    cause instanceof ConfigError ||
    cause instanceof ForeignSchemaError ||
    cause.name === 'ProcessFailure' ||
    'code' in cause;
  return isKnown ? cause.message : (cause.stack ?? cause.message);
}
