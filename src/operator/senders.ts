import { type Command, InvalidArgumentError, Option } from 'commander';
import { type SenderType, senderTypes } from '../channels/sms/sms.ts';
import type { Installation } from '../installation/installation.ts';
import { isUuid } from '../platform/ids.ts';
import { addSender, approveSender, listSenders, rejectSender, type SenderRow } from '../senders/senders.ts';
import { addCommand, type CommandOutcome, formatTable, onInstallation } from './command.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { defaultPageSize, parseOrganization, parsePageSize } from './values.ts';
import { programName } from '../platform/program-name.ts';

/** What organizations may send texts from is for the operator to say, whose contracts with carriers it is. */
export function addSenderCommands(group: Command): void {
  addCommand(group, 'add', 'Add a sender to an organization. It must be approved before it can be used.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .requiredOption('--name <name>', 'up to 11 characters with a letter, or a number of up to 15 digits')
    .addOption(
      new Option('--type <type>', 'by default, a name is alphanumeric and a number is a long code').choices(
        senderTypes,
      ),
    )
    .action(
      onInstallation((installation, options: Unresolved<SenderOptions>) =>
        onOrganization(installation, options.org, (org) => runSenderAdd(installation, { ...options, org })),
      ),
    );
  addCommand(group, 'approve', 'Approve a sender, so that its organization can send from it.')
    .argument('<sender-id>', 'its id', parseSenderId)
    .action(onInstallation(runSenderApprove));
  addCommand(group, 'reject', 'Reject a sender, or withdraw its approval.')
    .argument('<sender-id>', 'its id', parseSenderId)
    .action(onInstallation(runSenderReject));
  addCommand(group, 'list', 'List the senders of an organization, newest first, whatever their status.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .action(
      onInstallation((installation, options: Unresolved<ListOptions>) =>
        onOrganization(installation, options.org, (org) => runSenderList(installation, { ...options, org })),
      ),
    );
}

function parseSenderId(text: string): string {
  if (!isUuid(text)) {
    throw new InvalidArgumentError(`It must be an id as "${programName()} sender list" shows it.`);
  }
  return text.toLowerCase();
}

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}

function refuseSender(id: string): CommandOutcome {
  return refuse(`There is no sender ${id}. "${programName()} sender list" shows those of an organization.`);
}

type SenderOptions = { org: string; name: string; type?: SenderType };

type ListOptions = { org: string; limit: number };

async function runSenderAdd(installation: Installation, options: SenderOptions): Promise<CommandOutcome> {
  const { org: organizationId, name } = options;
  const type = options.type ?? null;
  const outcome = await addSender(installation, { organizationId, name, type });
  switch (outcome.kind) {
    case 'added': {
      const { sender } = outcome;
      return {
        kind: 'done',
        json: showSender(sender),
        text: `Added the sender ${sender.name} (${sender.type}): ${sender.id}\nIt can be used once it is approved.`,
      };
    }
    case 'held': {
      const { sender } = outcome;
      return refuse(
        `The organization has the sender ${sender.name} already: ${sender.id}, ${sender.status}.`,
      );
    }
    case 'invalid_name':
      return refuse(
        `${name} cannot be a sender: it must be a number of up to 15 digits, or have up to 11 characters ` +
          '(letters, digits, single spaces and . - _ & +), begin with a letter or digit, and have a letter in it.',
      );
    case 'wrong_type':
      return refuse(
        `${name} cannot be of the type ${type}: a name with a letter is alphanumeric, a number is not.`,
      );
    case 'no_country_code':
      return refuse(`${name} begins with 0: give the number with its country code, or --type short_code.`);
  }
}

async function runSenderApprove(installation: Installation, id: string): Promise<CommandOutcome> {
  const outcome = await approveSender(installation, id);
  switch (outcome.kind) {
    case 'approved': {
      const { sender } = outcome;
      return {
        kind: 'done',
        json: showSender(sender),
        text: `${sender.name} is approved for the organization ${sender.organization_id}.`,
      };
    }
    case 'taken':
      return refuse(
        'The number is approved for another organization, and replies to it can reach only one. Reject it there first.',
      );
    case 'not_found':
      return refuseSender(id);
  }
}

async function runSenderReject(installation: Installation, id: string): Promise<CommandOutcome> {
  const sender = await rejectSender(installation, id);
  return sender === null
    ? refuseSender(id)
    : {
        kind: 'done',
        json: showSender(sender),
        text: `${sender.name} is rejected for the organization ${sender.organization_id}.`,
      };
}

async function runSenderList(
  installation: Installation,
  { org: organizationId, limit }: ListOptions,
): Promise<CommandOutcome> {
  const found = await listSenders(installation.database, organizationId, limit + 1);
  const senders = found.slice(0, limit);
  const hasMore = found.length > limit;
  const table = formatTable(
    ['ID', 'NAME', 'TYPE', 'STATUS', 'APPROVED'],
    senders.map(({ id, name, type, status, approved_at: approvedAt }) => [
      id,
      name,
      type,
      status,
      approvedAt?.toISOString() ?? '',
    ]),
  );
  return {
    kind: 'done',
    json: { data: senders.map(showSender), has_more: hasMore },
    text: hasMore ? `${table}\nThere are more: give a larger --limit.` : table,
  };
}

function showSender(sender: SenderRow): Record<string, unknown> {
  return {
    id: sender.id,
    name: sender.name,
    type: sender.type,
    status: sender.status,
    approved_at: sender.approved_at,
    created_at: sender.created_at,
  };
}
