import type { Command } from 'commander';
import {
  type AddressedChannel,
  addressedChannels,
  addSuppressions,
  normaliseAddress,
  nounOfAddress,
  optIn,
  readGrant,
  readSuppressions,
  removeSuppressions,
  type SuppressionReason,
  type SuppressionScope,
} from '../audience/audience.ts';
import type { Channel } from '../channels/channel.ts';
import type { Installation } from '../installation/installation.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { addCommand, type CommandOutcome, done, onInstallation, refuse } from './command.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { addSuppressionImport } from './suppression-import.ts';
import { addSuppressionList } from './suppression-list.ts';
import { parseChannel, parseOrganization } from './values.ts';

/** `suppression`: addresses that must not be written to any more. */
export function addSuppressionCommands(group: Command): void {
  const add = (name: string, description: string, run: SuppressionCommand) =>
    addCommand(group, name, description)
      .option('--org <org>', organizationHelp, parseOrganization)
      .requiredOption('--channel <channel>', 'email, sms or chatapp', parseChannel)
      .requiredOption('--address <address>', 'the email address, or the phone number in E.164')
      .action(
        onInstallation(async (installation, options: Unresolved<SuppressionOptions>) => {
          const channel = addressedChannels.find((one) => one === options.channel);
          if (channel === undefined)
            return refuse(`Nobody can name an address of ${options.channel}; use email, sms or chatapp.`);
          const address = normaliseAddress(channel, options.address);
          if (address === null) return refuse(`${options.address} is not ${nounOfAddress(channel)}.`);
          return onOrganization(installation, options.org, (organizationId) =>
            run(installation, { organizationId, channel, address }),
          );
        }),
      );
  add('add', 'Suppress an address: nothing more is sent to it.', runSuppressionAdd);
  add(
    'remove',
    'Remove the suppression of an address, so that messages can be sent to it again.',
    runSuppressionRemove,
  );
  add('show', 'Show whether an address is suppressed, since when and why.', runSuppressionShow);
  addSuppressionList(group);
  addSuppressionImport(group);
}

type SuppressionOptions = { org: string; channel: Channel; address: string };

type Suppressed = { organizationId: string; channel: AddressedChannel; address: string };

type SuppressionCommand = (installation: Installation, suppressed: Suppressed) => Promise<CommandOutcome>;

async function runSuppressionAdd(
  installation: Installation,
  suppressed: Suppressed,
): Promise<CommandOutcome> {
  const { organizationId, channel, address } = suppressed;
  await installation.database.asOrganizations([organizationId], (transaction) =>
    addSuppressions(transaction, installation, channel, [{ organizationId, address, reason: 'operator' }]),
  );
  return runSuppressionShow(installation, suppressed);
}

async function runSuppressionRemove(
  installation: Installation,
  suppressed: Suppressed,
): Promise<CommandOutcome> {
  const { channel, address } = suppressed;
  const wasSuppressed = await liftSuppression(installation, suppressed);
  const [left] = await readSuppressions(installation.database, installation, channel, suppressed);
  if (left !== undefined) {
    return done(
      { channel, address, suppressed: true, removed: wasSuppressed, reason: left.reason },
      `${address} is still suppressed: its owner opted out on ${(left.optedOutAt ?? left.createdAt).toISOString()}. Repeat the command to remove that too.`,
    );
  }
  return done(
    { channel, address, suppressed: false, removed: wasSuppressed },
    wasSuppressed ? `Messages can be sent to ${address} again.` : `${address} was not suppressed.`,
  );
}

/** What suppresses the address first, and what its owner has said only if nothing else does. */
async function liftSuppression(installation: Installation, suppressed: Suppressed): Promise<boolean> {
  const { channel, organizationId } = suppressed;
  const inTransaction = installation.database.asOrganizations;
  const wasRemoved = await inTransaction([organizationId], (transaction) =>
    removeSuppressions(transaction, installation, channel, suppressed),
  );
  if (wasRemoved) return true;
  const { hadOptedOut, contact } = await inTransaction([organizationId], (transaction) =>
    optIn(transaction, installation, channel, suppressed),
  );
  if (contact === 'changed') createWaker(installation, 'segments')();
  return hadOptedOut;
}

async function runSuppressionShow(
  installation: Installation,
  suppressed: Suppressed,
): Promise<CommandOutcome> {
  const { channel, address } = suppressed;
  const suppressions = await readSuppressions(installation.database, installation, channel, suppressed);
  const [found] = suppressions;
  if (found === undefined) {
    const grant = await readGrant(installation.database, installation, channel, suppressed);
    return done(
      {
        channel,
        address,
        suppressed: false,
        ...(grant !== null && { consented_at: grant.grantedAt, consented_by_key: grant.apiKeyId }),
      },
      grant === null
        ? `${address} is not suppressed.`
        : `${address} is not suppressed: ${grant.apiKeyId === null ? 'its owner, or the operator,' : `a request with the API key ${grant.apiKeyId}`} said on ${grant.grantedAt.toISOString()} that messages are wanted again.`,
    );
  }
  const sentences = suppressions.map(
    ({ reason, scope, createdAt, expiresAt }) =>
      `${address} has been ${describeScope(reason, scope)} since ${createdAt.toISOString()} (${reason})${expiresAt === null ? '' : `, until ${expiresAt.toISOString()}`}.`,
  );
  return done(
    {
      channel,
      address,
      suppressed: true,
      reason: found.reason,
      scope: found.scope,
      created_at: found.createdAt,
      reasons: suppressions.map(({ reason }) => reason),
    },
    sentences.join('\n'),
  );
}

function describeScope(reason: SuppressionReason, scope: SuppressionScope): string {
  if (scope === 'all') return 'suppressed';
  return reason === 'unsubscribe' ? 'opted out of campaigns' : 'suppressed for campaigns';
}
