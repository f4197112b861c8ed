import type { Command } from 'commander';
import type { Finding } from '../doctor/doctor.ts';
import { examineSecret, type Foundation, openSecrets } from '../installation/installation.ts';
import { readEnvironment } from '../config.ts';
import { migrate } from '../platform/postgres/migrate.ts';
import type { BackupOptions } from './backup.ts';
import { addCommand, type CommandOutcome, done, onFoundation, runCommand } from './command.ts';
import type { ListenOptions } from './listen.ts';
import type { RestoreOptions } from './restore.ts';

type Group = { name: string; description: string; load: () => Promise<(group: Command) => void> };

/** In the order of the help. */
const groups: readonly Group[] = [
  {
    name: 'org',
    description: 'Organizations and their plans.',
    load: async () => (await import('./organizations.ts')).addOrganizationCommands,
  },
  {
    name: 'key',
    description: 'API keys.',
    load: async () => (await import('./keys.ts')).addKeyCommands,
  },
  {
    name: 'contacts',
    description: 'Import contacts from CSV files, and export them.',
    load: async () => (await import('./contacts.ts')).addContactCommands,
  },
  {
    name: 'events',
    description: 'Import what contacts did from files.',
    load: async () => (await import('./events.ts')).addEventCommands,
  },
  {
    name: 'domain',
    description: 'Sending domains.',
    load: async () => (await import('./domains.ts')).addDomainCommands,
  },
  {
    name: 'sender',
    description: 'Names and numbers that texts are sent from.',
    load: async () => (await import('./senders.ts')).addSenderCommands,
  },
  {
    name: 'push',
    description: 'Push credentials of organizations.',
    load: async () => (await import('./push.ts')).addPushCommands,
  },
  {
    name: 'chatapp',
    description: 'Accounts of organizations for chat-app messages.',
    load: async () => (await import('./chat-app.ts')).addChatAppCommands,
  },
  {
    name: 'sandbox',
    description: 'The inbox of the sandbox.',
    load: async () => (await import('./sandbox.ts')).addSandboxCommands,
  },
  {
    name: 'suppression',
    description: 'Addresses that must not be written to any more.',
    load: async () => (await import('./suppressions.ts')).addSuppressionCommands,
  },
  {
    name: 'queue',
    description: 'Jobs that were set aside because they took workers down.',
    load: async () => (await import('./queue.ts')).addQueueCommands,
  },
  {
    name: 'postmaster',
    description: 'What was written to the postmaster of the installation.',
    load: async () => (await import('./postmaster.ts')).addPostmasterCommands,
  },
  {
    name: 'secret',
    description: 'The secret of the database, and its replacement.',
    load: async () => (await import('./secret.ts')).addSecretCommands,
  },
];

/**
 * Adds every command that an operator runs beside the server, or without one. The commands of a group are loaded if its
 * name is among the words of the call, since nothing else leads to them: all groups together would double what a call
 * loads.
 */
export async function addOperatorCommands(program: Command, words: readonly string[]): Promise<void> {
  for (const { name, description, load } of groups) {
    const group = program.command(name).description(description);
    if (!words.includes(name)) continue;
    const addCommands = await load();
    addCommands(group);
  }
  addCommand(program, 'migrate', 'Bring the schema of the database up to date, as serve does too.').action(
    onFoundation(runMigrate, { schema: 'any', isLong: true }),
  );
  addCommand(
    program,
    'listen',
    'Bring events to a program on this machine, signed as webhooks are, until Ctrl-C.',
    {
      printed: 'one JSON object a line',
    },
  )
    .requiredOption('--forward <url>', 'where each event is posted to, such as http://localhost:3000/hooks')
    .option('--url <url>', 'of the server; POSTILLION_URL or this machine unless given')
    .option('--key <key>', 'API key; POSTILLION_KEY unless given')
    .option('--events <types>', 'types of events, or email.* and the like, with commas between them', '*')
    .option('--campaigns', 'with the recipients of campaigns')
    .option('--from <position>', 'from this position of the log on, and not from its end')
    .option('--secret <secret>', 'to sign with; one that belongs to the key unless given')
    .action(runListen);
  const programsOption = [
    '--programs <folder>',
    'where pg_dump and pg_restore are, if not on the PATH',
  ] as const;
  addCommand(program, 'backup', 'Write all of the database into a new file, while servers go on.')
    .argument('<file>', 'which must not be there yet')
    .option(...programsOption)
    .option('--without-secret', 'leave the secret of the embedded PostgreSQL out')
    .option('--passphrase-file <file>', 'encrypt it under the passphrase in this file')
    .action(runBackup);
  addCommand(program, 'restore', 'Restore a backup into an empty database, or a new data directory.')
    .argument('<file>', 'of "backup", or of pg_dump -Fc')
    .option(...programsOption)
    .option('--passphrase-file <file>', 'with the passphrase that it was encrypted under')
    .action(runRestore);
  addCommand(
    program,
    'doctor',
    'Check everything that Postillion depends on, and say what to correct.',
  ).action(runDoctor);
}

/** The secret is taken up where none was used yet: a user that may only serve requests, and may start next, cannot. */
async function runMigrate(foundation: Foundation): Promise<CommandOutcome> {
  const { database } = foundation;
  const applied = (await migrate(database)).map(({ name }) => name);
  if ((await examineSecret(foundation)).kind === 'unused') await openSecrets(foundation);
  return done(
    { applied },
    applied.length === 0 ? 'The schema was up to date.' : `Applied ${applied.join(', ')}.`,
  );
}

async function runListen(options: ListenOptions, command: Command): Promise<void> {
  await (await import('./listen.ts')).runListen(options, command);
}

async function runBackup(file: string, options: BackupOptions, command: Command): Promise<void> {
  await (await import('./backup.ts')).runBackup(file, options, command);
}

async function runRestore(file: string, options: RestoreOptions, command: Command): Promise<void> {
  await (await import('./restore.ts')).runRestore(file, options, command);
}

async function runDoctor(_options: unknown, command: Command): Promise<void> {
  await runCommand(command, { isLong: false }, async (log) => {
    // It knows every provider, and the other commands would wait a quarter of a second for them.
    const { examine } = await import('../doctor/doctor.ts');
    const findings = await examine(readEnvironment(process.env), log);
    const isHealthy = findings.every(({ level }) => level !== 'problem');
    return {
      kind: isHealthy ? 'done' : 'failed',
      json: { healthy: isHealthy, findings },
      text: formatFindings(findings),
    };
  });
}

/** Wider than any level. */
const levelWidth = 8;

function formatFindings(findings: readonly Finding[]): string {
  const subjectWidth = Math.max(...findings.map(({ subject }) => subject.length));
  const indent = ' '.repeat(levelWidth + subjectWidth + 2);
  return findings
    .map(({ level, subject, found, advice }) => {
      const line = `${level.padEnd(levelWidth)} ${subject.padEnd(subjectWidth)} ${found}`;
      return advice === null ? line : `${line}\n${indent}→ ${advice}`;
    })
    .join('\n');
}
