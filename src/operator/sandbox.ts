import type { Command } from 'commander';
import { type Installation, publicUrlOf, sandboxLinkOf } from '../installation/installation.ts';
import { addCommand, type CommandOutcome, onInstallation } from './command.ts';

export function addSandboxCommands(group: Command): void {
  addCommand(group, 'link', 'Show the link that opens the sandbox, with its token.').action(
    onInstallation(runSandboxLink),
  );
}

function runSandboxLink(installation: Installation): Promise<CommandOutcome> {
  const url = sandboxLinkOf(installation, publicUrlOf(installation.config));
  return Promise.resolve(
    url === null
      ? {
          kind: 'refused',
          problem:
            'Nothing is sent into the sandbox: real providers are set for email, texts, pushes and chat-app messages.',
        }
      : { kind: 'done', json: { url }, text: url },
  );
}
