import { Command, Option } from 'commander';
import { ConfigError, readConfig, readEnvironment } from './config.ts';
import { addOperatorCommands } from './roles/operator.ts';
import type { Role } from './roles/serve.ts';

const program = new Command('postillion')
  .description('A self-hosted messaging service. Settings come from the environment and from .env.')
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

try {
  await program.parseAsync();
} catch (cause) {
  const isKnown = cause instanceof ConfigError || (cause instanceof Error && 'code' in cause);
  const text =
    cause instanceof Error ? (isKnown ? cause.message : (cause.stack ?? cause.message)) : String(cause);
  process.stderr.write(`${text}\n`);
  process.exitCode = 1;
}
