import { type Command, Option } from 'commander';
import {
  countedMax,
  type CredentialsContent,
  listCredentials,
  makeSandboxCredentials,
  makeVapidPair,
  parseCredentials,
  type Platform,
  platforms,
  setCredentials,
  type ShownCredentials,
} from '../devices/devices.ts';
import type { Installation } from '../installation/installation.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { wordFor } from '../platform/wording.ts';
import { addCommand, type CommandOutcome, formatTable, onInstallation } from './command.ts';
import { readCredentialsFile } from './credentials-file.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { parseOrganization } from './values.ts';

const fileHelp = `
What --file holds, as JSON:
  android  the file of a service account that may send by Firebase Cloud Messaging
  ios      { "key": "-----BEGIN PRIVATE KEY-----…", "key_id": "…", "team_id": "…", "topic": "com.example.app" },
           where the key is what the .p8 file of Apple holds, and the topic the bundle id of the app
  web      { "publicKey": "…", "privateKey": "…" }, a VAPID pair in base64url; without a file, one is made`;

/** Credentials are the organization's accounts at Google and Apple, and its name with browsers. */
export function addPushCommands(group: Command): void {
  addCommand(group, 'credentials', 'Give an organization what the push service of a platform asks of it.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .addOption(new Option('--platform <platform>', 'of the devices').choices(platforms).makeOptionMandatory())
    .option('--file <file>', 'where they stand; see below')
    .option('--sandbox', 'make up some that no service knows, to try things out in the sandbox')
    .option(
      '--replace',
      'of web: take another VAPID pair, although every browser must subscribe again to get pushes',
    )
    .addHelpText('after', fileHelp)
    .action(
      onInstallation(
        (installation, options: Unresolved<CredentialsOptions>) =>
          onOrganization(installation, options.org, (org) =>
            runCredentials(installation, { ...options, org }),
          ),
        { schema: 'current', isLong: true },
      ),
    );
  addCommand(group, 'show', 'Show what an organization has push credentials for; never the keys themselves.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .action(
      onInstallation((installation, options: Unresolved<{ org: string }>) =>
        onOrganization(installation, options.org, (org) => runShow(installation, org)),
      ),
    );
}

type CredentialsOptions = {
  org: string;
  platform: Platform;
  file?: string;
  sandbox?: boolean;
  replace?: boolean;
};

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}

async function runCredentials(
  installation: Installation,
  options: CredentialsOptions,
): Promise<CommandOutcome> {
  const { org: organizationId, platform } = options;
  if (options.replace === true && platform !== 'web') return refuse('--replace is of use for web only.');
  const content = await readContent(options);
  if (typeof content === 'string') return refuse(content);
  const outcome = await setCredentials(installation, organizationId, content, {
    replacesPair: options.replace === true,
  });
  if (outcome.kind === 'held') {
    const { credentials, devices } = outcome;
    return refuse(
      `The organization has a VAPID pair, whose public key is ${credentials.publicPart.public_key ?? ''}. ` +
        `Browsers are subscribed under it for good: with another one, ${showCount(devices)} of them that get pushes now get none until they subscribe again. Add --replace if that is what you want.`,
    );
  }
  const { credentials, retiredDevices } = outcome;
  if (retiredDevices > 0) await wakeOnce(installation.database, 'segments');
  return {
    kind: 'done',
    json: { ...showCredentials(credentials), retired_devices: retiredDevices },
    text: [
      `Devices of ${platform} can be registered and written to: ${describePublicPart(credentials)}.`,
      ...(platform === 'web' ? ['Pages subscribe with this public key as their applicationServerKey.'] : []),
      ...(retiredDevices > 0
        ? [
            `${retiredDevices} ${wordFor(retiredDevices, 'browser was', 'browsers were')} retired; ${wordFor(retiredDevices, 'it gets', 'they get')} pushes again once subscribed again.`,
          ]
        : []),
    ].join('\n'),
  };
}

function showCount(count: number): string {
  return count >= countedMax ? `${countedMax} or more` : `${count}`;
}

/** A sentence where there is nothing to be read. */
async function readContent({
  platform,
  file,
  sandbox = false,
}: CredentialsOptions): Promise<CredentialsContent | string> {
  if (file !== undefined && sandbox) return 'Give either --file or --sandbox, not both.';
  if (sandbox) return makeSandboxCredentials(platform);
  if (file === undefined) {
    return platform === 'web'
      ? makeVapidPair()
      : `Give the credentials of ${platform} with --file, or --sandbox to try things out; --help says what the file holds.`;
  }
  const read = await readCredentialsFile(file, (text) => parseCredentials(platform, text), {
    name: `credentials of ${platform}`,
    group: 'push',
  });
  return read.kind === 'parsed' ? read.content : read.problem;
}

async function runShow(installation: Installation, organizationId: string): Promise<CommandOutcome> {
  const listed = await listCredentials(installation.database, organizationId);
  return {
    kind: 'done',
    json: { data: listed.map(showCredentials) },
    text: formatTable(
      ['PLATFORM', 'SINCE', 'CREDENTIALS'],
      listed.map((credentials) => [
        credentials.platform,
        credentials.updatedAt.toISOString(),
        describePublicPart(credentials),
      ]),
    ),
  };
}

function showCredentials({
  platform,
  publicPart,
  createdAt,
  updatedAt,
}: ShownCredentials): Record<string, unknown> {
  return { platform, ...publicPart, created_at: createdAt, updated_at: updatedAt };
}

function describePublicPart({ publicPart }: ShownCredentials): string {
  return Object.entries(publicPart)
    .map(([name, value]) => `${name.replaceAll('_', ' ')} ${value}`)
    .join(', ');
}
