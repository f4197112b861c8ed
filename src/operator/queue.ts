import { type Command, InvalidArgumentError } from 'commander';
import type { Channel } from '../channels/channel.ts';
import { sanitiseDiagnostic } from '../channels/diagnostic.ts';
import type { Installation } from '../installation/installation.ts';
import {
  giveUpAllSetAside,
  listSetAside,
  retrySetAside,
  type SetAsideFilter,
  type SetAsideJob,
  type SetAsidePosition,
  type SetAsideTools,
} from '../messages/messages.ts';
import { isUuid } from '../platform/ids.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { wordFor } from '../platform/wording.ts';
import { messageChannels } from '../roles/channels.ts';
import { addCommand, type CommandOutcome, done, formatTable, onInstallation, refuse } from './command.ts';
import { onOrganization, organizationHelp } from './organization.ts';
import { defaultPageSize, parseChannel, parseOrganization, parsePageSize } from './values.ts';
import { programName } from '../platform/program-name.ts';

/** PostgreSQL's `integer`, in which recipients are numbered. */
const ordinalMax = 2_147_483_647;

/** Jobs that no worker tries any more, because they took workers down or cannot be handed off. */
export function addQueueCommands(group: Command): void {
  withFilters(addCommand(group, 'list', 'List jobs that were set aside, those of the newest messages first.'))
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .option('--after <job>', 'only those that are listed after this one', parseJob)
    .action(
      onInstallation((installation, options: ListOptions) =>
        onChosen(installation, options, (filter) => runList(installation, filter, options)),
      ),
    );
  addCommand(group, 'show', 'Show what is known of a job that was set aside.')
    .argument('<job>', 'as "queue list" shows it', parseJob)
    .action(onInstallation(runShow));
  const change = (name: string, description: string, run: QueueCommand) =>
    withFilters(addCommand(group, name, description))
      .argument('[jobs...]', 'as "queue list" shows them', collectJob)
      .option('--all', 'all that were set aside; with --org and --channel those alone')
      .action(
        onInstallation(
          async (installation, jobs: SetAsidePosition[], options: ChangeOptions) => {
            const hasFilter = options.org !== undefined || options.channel !== undefined;
            if ((options.all === true) === jobs.length > 0)
              return refuse(`Give jobs as "${programName()} queue list" shows them, or --all.`);
            if (jobs.length > 0 && hasFilter) return refuse('--org and --channel belong to --all.');
            if (jobs.length > 0) return run(installation, jobs);
            return onChosen(installation, options, (filter) => run(installation, [filter]));
          },
          { schema: 'current', isLong: true },
        ),
      );
  change('retry', 'Let jobs be tried again: each alone, and set aside again if it fails.', runRetry);
  change('drop', 'Give jobs up: their recipients have failed, and the API says so.', runDrop);
}

type FilterOptions = { org?: string; channel?: Channel };
type ListOptions = FilterOptions & { limit: number; after?: SetAsidePosition };
type ChangeOptions = FilterOptions & { all?: boolean };
type QueueCommand = (
  installation: Installation,
  filters: readonly SetAsideFilter[],
) => Promise<CommandOutcome>;

function withFilters(command: Command): Command {
  return command
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--channel <channel>', 'only of one channel', parseChannel);
}

function onChosen(
  installation: Installation,
  { org, channel }: FilterOptions,
  work: (filter: SetAsideFilter) => Promise<CommandOutcome>,
): Promise<CommandOutcome> {
  return org === undefined
    ? work({ channel })
    : onOrganization(installation, org, (organizationId) => work({ organizationId, channel }));
}

/** `<message id>/<number of the recipient>`. */
function parseJob(text: string): SetAsidePosition {
  const [messageId = '', number = '', ...rest] = text.split('/');
  const ordinal = /^\d{1,10}$/.test(number) ? Number(number) : Infinity;
  if (!isUuid(messageId) || ordinal > ordinalMax || rest.length > 0) {
    throw new InvalidArgumentError(`It must be a job as "${programName()} queue list" shows it.`);
  }
  return { messageId: messageId.toLowerCase(), ordinal };
}

function collectJob(text: string, jobs: SetAsidePosition[] = []): SetAsidePosition[] {
  return [...jobs, parseJob(text)];
}

function nameOf({ messageId, ordinal }: SetAsidePosition): string {
  return `${messageId}/${ordinal}`;
}

async function runList(
  { database }: Installation,
  filter: SetAsideFilter,
  { limit, after = null }: { limit: number; after?: SetAsidePosition | null },
): Promise<CommandOutcome> {
  const found = await listSetAside(database, filter, { after, limit: limit + 1 });
  const shown = found.slice(0, limit);
  const last = shown.at(-1);
  const hasMore = found.length > limit && last !== undefined;
  const table = formatTable(
    ['JOB', 'SET ASIDE', 'CHANNEL', 'ORGANIZATION', 'CRASHES', 'LAST WORDS'],
    shown.map((job) => [
      nameOf(job),
      job.setAsideAt.toISOString(),
      job.channel,
      job.organizationName,
      `${job.crashes}`,
      job.crashWords,
    ]),
  );
  return done(
    { data: shown.map(toJson), has_more: hasMore },
    hasMore ? `${table}\nThere are more: --after ${nameOf(last)}` : table,
  );
}

async function runShow({ database }: Installation, position: SetAsidePosition): Promise<CommandOutcome> {
  const [job] = await listSetAside(database, position, { after: null, limit: 1 });
  if (job === undefined) {
    const problem = `There is no job ${nameOf(position)} that was set aside. "${programName()} queue list" shows them.`;
    return refuse(problem);
  }
  return done(
    toJson(job),
    [
      ['Job', nameOf(job)],
      ['Organization', `${job.organizationName} (${job.organizationId})`],
      ['Message', `${job.messageId}, ${job.channel}${job.isCampaign ? ', of a campaign' : ''}`],
      ['Recipient', `${job.field} ${sanitiseDiagnostic(job.address)}`],
      ['Accepted', job.acceptedAt.toISOString()],
      ['Set aside', job.setAsideAt.toISOString()],
      ['Crashes', `${job.crashes}, last ${job.crashedAt.toISOString()}`],
      ['Last words', job.crashWords],
      ['Attempts', `${job.attempts}`],
      ...(job.ambiguities > 0
        ? [['Uncertain', 'an earlier hand-off was cut off before its answer, and may have arrived']]
        : []),
    ]
      .map(([title = '', value = '']) => `${`${title}:`.padEnd(14)}${value}`)
      .join('\n'),
  );
}

function toJson(job: SetAsideJob): Record<string, unknown> {
  return {
    job: nameOf(job),
    organization_id: job.organizationId,
    organization: job.organizationName,
    message_id: job.messageId,
    ordinal: job.ordinal,
    channel: job.channel,
    class: job.isCampaign ? 'campaign' : 'transactional',
    recipient: job.address,
    field: job.field,
    accepted_at: job.acceptedAt,
    set_aside_at: job.setAsideAt,
    crashes: job.crashes,
    crashed_at: job.crashedAt,
    last_words: job.crashWords,
    attempts: job.attempts,
    uncertain: job.ambiguities > 0,
  };
}

function toolsOf(installation: Installation): SetAsideTools {
  return {
    ...installation,
    channels: messageChannels,
    onContactsChanged: createWaker(installation, 'segments'),
    onCampaignProgress: createWaker(installation, 'campaigns'),
  };
}

const notThere = () => `None of these was set aside. "${programName()} queue list" shows those that were.`;

async function runRetry(
  installation: Installation,
  filters: readonly SetAsideFilter[],
): Promise<CommandOutcome> {
  let retried = 0;
  for (const filter of filters) retried += await retrySetAside(toolsOf(installation), filter);
  if (retried === 0) return refuse(notThere());
  return done({ retried }, `${retried} ${wordFor(retried, 'is', 'are')} tried again.`);
}

async function runDrop(
  installation: Installation,
  filters: readonly SetAsideFilter[],
): Promise<CommandOutcome> {
  const sums = { failed: 0, uncertain: 0 };
  for (const filter of filters) {
    const { failed, uncertain } = await giveUpAllSetAside(toolsOf(installation), filter);
    sums.failed += failed;
    sums.uncertain += uncertain;
  }
  if (sums.failed + sums.uncertain === 0) return refuse(notThere());
  const failed = `${sums.failed} ${wordFor(sums.failed, 'recipient has', 'recipients have')} failed.`;
  return done(
    sums,
    sums.uncertain === 0
      ? failed
      : `${failed} ${sums.uncertain} may have been reached by an earlier hand-off, and ${wordFor(sums.uncertain, 'stays', 'stay')} uncertain.`,
  );
}
