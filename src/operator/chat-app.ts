import type { Command } from 'commander';
import type { ChatAppProviderName } from '../channels/chatapp/providers/registry.ts';
import {
  type CampaignsHeld,
  parseAccount,
  type PeopleLimit,
  releaseCampaigns,
  setAccount,
  showAccount,
} from '../chat-templates/chat-templates.ts';
import { type Installation, publicUrlOf } from '../installation/installation.ts';
import { addCommand, type CommandOutcome, formatTable, onInstallation } from './command.ts';
import { readCredentialsFile } from './credentials-file.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { parseOrganization } from './values.ts';

const fileHelp = `
What --file holds, as JSON:
  { "business_account_id": "…", "phone_number_id": "…", "access_token": "…" }
  phone_number_ids  instead of phone_number_id: a list, if messages come from several numbers
  app_secret, verify_token  if the organization has an app of its own at Meta, which then reports to an address of its
                    own: "chatapp list" shows it`;

/** The provider that has accounts, whichever is in use: an account may be set up before it is chosen. */
const provider: ChatAppProviderName = 'whatsapp';

/** What organizations are at the provider of chat-app messages. */
export function addChatAppCommands(group: Command): void {
  addCommand(group, 'credentials', 'Give an organization its account for chat-app messages.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .requiredOption('--file <file>', 'where they stand; see below')
    .addHelpText('after', fileHelp)
    .action(
      onInstallation(
        (installation, options: Unresolved<CredentialsOptions>) =>
          onOrganization(installation, options.org, (org) =>
            runCredentials(installation, { ...options, org }),
          ),
        { schema: 'current', isLong: false },
      ),
    );
  addCommand(group, 'list', 'Show the account of an organization; never its tokens and secrets.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .action(
      onInstallation((installation, options: Unresolved<{ org: string }>) =>
        onOrganization(installation, options.org, (org) => runList(installation, org)),
      ),
    );
  addCommand(
    group,
    'release',
    'Let campaigns go on that are held because of the account, once that is mended.',
  )
    .option('--org <org>', organizationHelp, parseOrganization)
    .action(
      onInstallation((installation, options: Unresolved<{ org: string }>) =>
        onOrganization(installation, options.org, (org) => runRelease(installation, org)),
      ),
    );
}

type CredentialsOptions = { org: string; file: string };

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}

async function runCredentials(
  installation: Installation,
  { org, file }: CredentialsOptions,
): Promise<CommandOutcome> {
  const read = await readCredentialsFile(file, parseAccount, { name: 'account', group: 'chatapp' });
  if (read.kind === 'refused') return read;
  const outcome = await setAccount(installation, org, read.content);
  if (outcome.kind === 'taken')
    return refuse(
      `Another organization has the business account ${read.content.businessAccountId}: what is reported of it must lead to one organization. Give each organization a business account of its own.`,
    );
  const callbackUrl = showCallbackUrl(installation, outcome.callbackToken);
  return {
    kind: 'done',
    json: { business_account_id: outcome.businessAccountId, callback_url: callbackUrl },
    text: [
      `Chat-app messages can be sent by the business account ${outcome.businessAccountId}.`,
      ...(callbackUrl === null ? [] : [`Its app must report to ${callbackUrl}`]),
    ].join('\n'),
  };
}

function showCallbackUrl({ config }: Installation, token: string | null): string | null {
  return token === null ? null : `${publicUrlOf(config)}/callbacks/${provider}/${token}`;
}

async function runList(installation: Installation, organizationId: string): Promise<CommandOutcome> {
  const account = await showAccount(installation, organizationId);
  const listed = account === null ? [] : [account];
  return {
    kind: 'done',
    json: {
      data: listed.map((shown) => ({
        business_account_id: shown.businessAccountId,
        phone_number_ids: shown.phoneNumberIds,
        callback_url: showCallbackUrl(installation, shown.callbackToken),
        problem: shown.problem,
        campaigns_held: shown.campaignsHeld,
        people_per_day_max: showLimit(shown.peopleLimit),
        people_reached: shown.reached,
        created_at: shown.createdAt,
        updated_at: shown.updatedAt,
      })),
    },
    text: formatTable(
      ['BUSINESS ACCOUNT', 'NUMBERS', 'SINCE', 'REPORTS TO', 'PROBLEM', 'CAMPAIGNS HELD', 'PEOPLE A DAY'],
      listed.map((shown) => [
        shown.businessAccountId,
        shown.phoneNumberIds?.join(', ') ?? '',
        shown.updatedAt.toISOString(),
        showCallbackUrl(installation, shown.callbackToken) ?? '',
        shown.problem ?? '',
        describeHeld(shown.campaignsHeld),
        describeLimit(shown.peopleLimit, shown.reached),
      ]),
    ),
  };
}

function describeHeld(held: CampaignsHeld | null): string {
  if (held === null) return '';
  return held.until === null ? held.words : `until ${held.until.toISOString()}: ${held.words}`;
}

function showLimit(limit: PeopleLimit | null): number | 'unlimited' | null {
  return limit === null ? null : (limit.peoplePerDayMax ?? 'unlimited');
}

function describeLimit(limit: PeopleLimit | null, reached: number | null): string {
  const shown = showLimit(limit);
  if (shown === null) return 'not known yet';
  return reached === null ? `${shown}` : `${reached} of ${shown}`;
}

async function runRelease({ database }: Installation, organizationId: string): Promise<CommandOutcome> {
  const wereHeld = await database.asOrganizations([organizationId], (transaction) =>
    releaseCampaigns(transaction, organizationId),
  );
  return {
    kind: 'done',
    json: { released: wereHeld },
    text: wereHeld
      ? 'Its chat-app campaigns go on. They are held again if the provider still refuses them.'
      : 'Its chat-app campaigns are not held.',
  };
}
