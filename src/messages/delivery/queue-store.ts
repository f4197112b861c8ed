import type { SendingChannel } from '../../channels/channel.ts';
import {
  type Connection,
  type Database,
  type Statement,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { unburiedWorker } from '../../platform/queue/lease.ts';
import { concatInSteps, runInSteps, stepBytesMax } from '../../platform/steps.ts';
import type { Job, MessageChannel, MessageChannels } from '../channel.ts';
import type { DropReason, RecipientStatus } from '../schema.ts';
import { rankOf } from '../status.ts';

/** After the organization. */
const recipientKey = ['message_id', 'ordinal'] as const;

/** Which recipient of which message: the key of a row in the queue. */
export type JobKey = { organizationId: string; messageId: string; ordinal: number };

/** A recipient of whom something was written: the contact if it is a campaign's, and the normalised address. */
export type ChangedRecipient = JobKey & { contactId: string | null; addressKey: string };

export type ClaimWish = {
  epoch: number;
  /** Not used before by this worker. */
  claimNumber: number;
  at: Date;
  channel: MessageChannel;
  lane: 0 | 1;
  itemsMax: number;
  /** Organizations are served in turns: this one was the last to have its turn. */
  afterOrganizationId: string;
  /** Organizations looked at. */
  organizationsMax?: number;
};

export type Claim = {
  jobs: Job[];
  /** The last organization that had its turn. */
  lastOrganizationId: string;
  /** No organization stands behind it. */
  isScanOver: boolean;
  /** When the first of what was seen, and is not due yet, falls due. */
  nextDueAt: Date | null;
  hasSuspects: boolean;
};

/** After so many claims that ended with the death of their worker, a job is tried alone, and then set aside. */
export const suspectCrashes = 2;

/** Fewer would let deferred mail of many hide what is due of others. */
const defaultOrganizationsMax = 200;

/**
 * A loose index scan over delivery_queue_due finds the organizations that have something due, and each gets an equal
 * share. Rows that another worker is claiming at this moment are skipped. A worker that was buried gets nothing.
 */
const claimDue = statement<ClaimRow>(
  'queue_claim_due',
  `with recursive claimant as (
     ${unburiedWorker('$5')}
   ), active (organization_id, due_at, position) as (
     (select organization_id, due_at, 1
      from delivery_queue
      where channel = $7 and lane = $1 and claimed_by is null and set_aside_at is null and organization_id > $2
      order by organization_id, due_at
      limit 1)
     union all
     select next.organization_id, next.due_at, active.position + 1
     from active
     cross join lateral (
       select organization_id, due_at
       from delivery_queue
       where channel = $7 and lane = $1 and claimed_by is null and set_aside_at is null
         and organization_id > active.organization_id
       order by organization_id, due_at
       limit 1
     ) next
     where active.position < $8::integer
   ), served as (
     select organization_id
     from active
     where due_at <= $3 and exists (select from claimant)
     order by position
     limit $4
   ), due as (
     select job.organization_id, job.message_id, job.ordinal
     from served
     cross join lateral (
       select organization_id, message_id, ordinal
       from delivery_queue
       where channel = $7 and lane = $1 and organization_id = served.organization_id and due_at <= $3
         and claimed_by is null and set_aside_at is null and crashes < ${suspectCrashes}
       order by due_at
       limit (select greatest($4 / count(*), 1) from served)
       for update skip locked
     ) job
   ), claimed as (
     update delivery_queue q
     set claimed_by = $5, claim_number = $6
     from due
     where ${hasKeyOf('q', 'due', recipientKey)}
     returning q.organization_id, q.message_id, q.ordinal, q.channel, q.lane, q.accepted_at, q.content_bytes,
       q.attempts, q.ambiguities, q.crashes, q.claim_number
   ), seen as (
     select
       (select count(*) from served) < $4 and (select count(*) from active) < $8::integer as is_scan_over,
       case
         when (select count(*) from served) < $4
         then (select organization_id from active order by position desc limit 1)
         else (select organization_id from active where due_at <= $3 order by position offset $4 - 1 limit 1)
       end as last_organization_id,
       (select min(due_at) from active where due_at > $3) as next_due_at,
       -- In their order, which only the index of the suspects has: others would be read through to find none.
       (
         select true from delivery_queue
         where claimed_by is null and set_aside_at is null and crashes >= ${suspectCrashes} and due_at <= $3
           and lane < 2
         order by due_at
         limit 1
       ) is not null as has_suspects
   )
   select seen.*, claimed.*, r.contact_id, r.address, r.address_key, r.variables
   from seen
   left join (claimed join recipients r on ${hasKeyOf('r', 'claimed', recipientKey)}) on true`,
);

type JobRow = {
  organization_id: string;
  message_id: string;
  ordinal: number;
  channel: SendingChannel;
  lane: number;
  contact_id: string | null;
  address: string;
  address_key: string;
  variables: Job['variables'];
  accepted_at: Date;
  content_bytes: number;
  attempts: number;
  ambiguities: number;
  crashes: number;
  claim_number: number;
};

type ClaimRow = Omit<JobRow, 'message_id'> & {
  message_id: string | null;
  is_scan_over: boolean;
  last_organization_id: string | null;
  next_due_at: Date | null;
  has_suspects: boolean;
};

export async function claimDueJobs(database: Database, wish: ClaimWish): Promise<Claim> {
  const rows = await inOneRoundTrip(database, claimDue, [
    wish.lane,
    wish.afterOrganizationId,
    wish.at,
    wish.itemsMax,
    wish.epoch,
    wish.claimNumber,
    wish.channel.name,
    wish.organizationsMax ?? defaultOrganizationsMax,
  ]);
  const [first] = rows;
  return {
    jobs: rows
      .filter((row): row is ClaimRow & JobRow => row.message_id !== null)
      .map((row) => toJob(row, wish.channel)),
    lastOrganizationId: first?.last_organization_id ?? wish.afterOrganizationId,
    isScanOver: first?.is_scan_over ?? true,
    nextDueAt: first?.next_due_at ?? null,
    hasSuspects: first?.has_suspects ?? false,
  };
}

/** Claims one job that took workers down, to be tried while nothing else is under way. */
export async function claimSuspect(
  connection: Connection,
  wish: { channels: MessageChannels; epoch: number; claimNumber: number; at: Date },
): Promise<Job | null> {
  const [row] = await connection.rows(
    unpreparedStatement<JobRow>(
      `with claimant as (
         ${unburiedWorker('$2')}
       ), suspect as (
         select organization_id, message_id, ordinal
         from delivery_queue
         where claimed_by is null and set_aside_at is null and due_at <= $1 and crashes >= ${suspectCrashes}
           and lane < 2 and exists (select from claimant)
         order by due_at
         limit 1
         for update skip locked
       ), claimed as (
         update delivery_queue q
         set claimed_by = $2, claim_number = $3
         from suspect
         where q.organization_id = suspect.organization_id
           and q.message_id = suspect.message_id
           and q.ordinal = suspect.ordinal
         returning q.*
       )
       select claimed.*, r.contact_id, r.address, r.address_key, r.variables
       from claimed
       join recipients r using (organization_id, message_id, ordinal)`,
    ),
    [wish.at, wish.epoch, wish.claimNumber],
  );
  return row === undefined ? null : toJob(row, wish.channels[row.channel]);
}

export type ClaimedJob = Job & {
  /** Its worker was about to hand it off, and may have. */
  isAnnounced: boolean;
};

/** What a worker had when it ended, a batch at a time. */
export async function listClaims(
  connection: Connection,
  channels: MessageChannels,
  { epoch, itemsMax }: { epoch: number; itemsMax: number },
): Promise<ClaimedJob[]> {
  const rows = await connection.rows(
    unpreparedStatement<JobRow & { is_announced: boolean }>(
      `with announced as (
         select distinct job.*
         from hand_offs h
         cross join lateral unnest(h.organization_ids, h.message_ids, h.ordinals, h.claim_numbers)
           as job (organization_id, message_id, ordinal, claim_number)
         where h.epoch = $1
       )
       select q.*, r.contact_id, r.address, r.address_key, r.variables, a.claim_number is not null as is_announced
       from delivery_queue q
       join recipients r using (organization_id, message_id, ordinal)
       left join announced a using (organization_id, message_id, ordinal, claim_number)
       where q.claimed_by = $1
       limit $2`,
    ),
    [epoch, itemsMax],
  );
  return rows.map((row) => ({ ...toJob(row, channels[row.channel]), isAnnounced: row.is_announced }));
}

function toJob(row: JobRow, channel: MessageChannel): Job {
  const isCampaign = row.lane > 0;
  return {
    organizationId: row.organization_id,
    messageId: row.message_id,
    ordinal: row.ordinal,
    channel,
    policy: channel.policyOf({ isCampaign }),
    isCampaign,
    contactId: row.contact_id,
    address: row.address,
    addressKey: row.address_key,
    variables: row.variables,
    acceptedAt: row.accepted_at,
    contentBytes: row.content_bytes,
    attempts: row.attempts,
    ambiguities: row.ambiguities,
    crashes: row.crashes,
    claimNumber: row.claim_number,
  };
}

const announce = statement<{ batch: number }>(
  'hand_offs_announce',
  `with claimant as (
     ${unburiedWorker('$1')}
   ), over as (
     delete from hand_offs where epoch = $1 and batch = any ($3::bigint[])
   )
   insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
   select $1, $2, $4::uuid[], $5::uuid[], $6::integer[], $7::bigint[]
   from claimant
   returning batch`,
);

/**
 * Commits "about to hand off" for jobs that the worker has claimed, and removes the markers of batches that are over.
 * False if the worker was buried meanwhile: then the jobs are others' by now, or will be.
 */
export async function announceHandOffs(
  database: Database,
  jobs: readonly Job[],
  marker: { epoch: number; batch: number; batchesOver: readonly number[] },
): Promise<boolean> {
  const rows = await inOneRoundTrip(database, announce, [
    marker.epoch,
    marker.batch,
    marker.batchesOver,
    ...keyColumns(jobs),
    jobs.map(({ claimNumber }) => claimNumber),
  ]);
  return rows.length === 1;
}

/** Removes the markers of a worker whose claims have all been returned, and of those that are buried. */
export async function deleteMarkers(connection: Connection, epoch: number): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `delete from hand_offs h
       where epoch = $1 or not exists (select from workers where workers.epoch = h.epoch)`,
    ),
    [epoch],
  );
}

/** What a remote side said, as it is kept with the recipient. */
export type Failure = {
  type: 'hard' | 'soft';
  /** Of the channel's own reasons. */
  class: string;
  smtpCode: number | null;
  enhancedCode: string | null;
  diagnostic: string;
  remote: string | null;
};

/** What became of a job, ready to be written. */
export type Settlement = {
  job: Job;
  /** Where the recipient's status goes; null leaves it. */
  status: RecipientStatus | null;
  dropReason: DropReason | null;
  failure: Failure | null;
  providerMessageId: string | null;
  /** The hand-off took place, or may have. */
  wasHandedOff: boolean;
  /** The hand-off was cut off before its answer. */
  isAmbiguous: boolean;
  /** Null: the job is done. */
  requeue: { dueAt: Date; attempts: number; crashes: number; setAsideAt: Date | null } | null;
};

/** It was put off before, and is on its way now: `sent` ranks below `delayed`, but follows it here. */
const isTakenAtLast = toPredicate(`s.status = 'sent' and r.status = 'delayed'`);

const isRaised = toPredicate(`${rankOf('s.status')} > ${rankOf('r.status')} or ${isTakenAtLast}`);

/** A report has said more of the recipient meanwhile, and what it said stays; a hand-off cut off says nothing. */
const isOvertaken = toPredicate(
  `s.status is null or (${rankOf('s.status')} < ${rankOf('r.status')} and not ${isTakenAtLast})`,
);

const settle = statement<ChangedRow>(
  'queue_settle',
  `with settlement as (
     select *
     from unnest(
       $1::uuid[], $2::uuid[], $3::integer[], $6::text[], $7::text[], $8::text[], $9::text[], $10::smallint[],
       $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[], $16::boolean[], $17::timestamptz[],
       $18::smallint[], $19::smallint[], $20::timestamptz[]
     ) as settlement (
       organization_id, message_id, ordinal, status, drop_reason, failure_type, failure_class, smtp_code,
       enhanced_code, diagnostic, remote, provider_message_id, was_handed_off, is_ambiguous, due_at,
       attempts, crashes, set_aside_at
     )
   ), done as (
     delete from delivery_queue q
     using settlement s
     where ${hasKeyOf('q', 's', recipientKey)}
       and q.claimed_by = $4 and s.due_at is null
     returning s.*
   ), requeued as (
     update delivery_queue q
     set claimed_by = null, claim_number = null, due_at = s.due_at, attempts = s.attempts, crashes = s.crashes,
       ambiguities = q.ambiguities + s.is_ambiguous::integer, set_aside_at = s.set_aside_at
     from settlement s
     where ${hasKeyOf('q', 's', recipientKey)}
       and q.claimed_by = $4 and s.due_at is not null
     returning s.*
   )
   update recipients r
   set
     status = case when ${isRaised} then s.status else r.status end,
     status_at = case when ${isRaised} then $5 else r.status_at end,
     drop_reason = coalesce(r.drop_reason, s.drop_reason),
     handed_off_at = case when s.was_handed_off then coalesce(r.handed_off_at, $5) else r.handed_off_at end,
     ambiguities = r.ambiguities + s.is_ambiguous::integer,
     -- Whoever was reported on meanwhile was handed it, and if only that it is on its way.
     uncertain = (r.uncertain and s.due_at is not null)
       or (s.is_ambiguous and r.status in ('sent', 'delayed') and (r.handed_off_at is null or r.uncertain)),
     provider_message_id = coalesce(s.provider_message_id, r.provider_message_id),
     failure_type = case when ${isOvertaken} then r.failure_type else s.failure_type end,
     failure_class = case when ${isOvertaken} then r.failure_class else s.failure_class end,
     smtp_code = case when ${isOvertaken} then r.smtp_code else s.smtp_code end,
     enhanced_code = case when ${isOvertaken} then r.enhanced_code else s.enhanced_code end,
     diagnostic = case when ${isOvertaken} then r.diagnostic else s.diagnostic end,
     remote = case when ${isOvertaken} then r.remote else s.remote end
   from (select * from done union all select * from requeued) s
   where ${hasKeyOf('r', 's', recipientKey)}
     and (s.status is not null or s.is_ambiguous or s.drop_reason is not null)
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
);

/**
 * Writes what became of jobs, as far as they are still claimed under this epoch, and returns those whose recipient
 * was changed. The queue's row and the recipient's change together, so that nothing is in both or in neither.
 */
export async function settleJobs(
  connection: Connection,
  settlements: readonly Settlement[],
  claim: { epoch: number; at: Date },
): Promise<ChangedRecipient[]> {
  const rows = await connection.rows(settle, [
    ...keyColumns(settlements.map(({ job }) => job)),
    claim.epoch,
    claim.at,
    settlements.map(({ status }) => status),
    settlements.map(({ dropReason }) => dropReason),
    settlements.map(({ failure }) => failure?.type),
    settlements.map(({ failure }) => failure?.class),
    settlements.map(({ failure }) => failure?.smtpCode),
    settlements.map(({ failure }) => failure?.enhancedCode),
    settlements.map(({ failure }) => failure?.diagnostic),
    settlements.map(({ failure }) => failure?.remote),
    settlements.map(({ providerMessageId }) => providerMessageId),
    settlements.map(({ wasHandedOff }) => wasHandedOff),
    settlements.map(({ isAmbiguous }) => isAmbiguous),
    settlements.map(({ requeue }) => requeue?.dueAt),
    settlements.map(({ requeue }) => requeue?.attempts),
    settlements.map(({ requeue }) => requeue?.crashes),
    settlements.map(({ requeue }) => requeue?.setAsideAt),
  ]);
  return rows.map(toChanged);
}

export type MessageKey = { organizationId: string; messageId: string };

const lockMessages = statement(
  'messages_lock',
  `select
   from messages m
   join unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
     on ${hasKeyOf('m', 'wanted', ['id'])}
   order by wanted.organization_id, wanted.id
   for no key update of m`,
);

/**
 * Holds messages until the transaction ends, so that two workers that finish the last two recipients of one at the
 * same moment do not both take it for unfinished. Always taken in the order of the ids.
 */
export async function lockMessagesOf(connection: Connection, messages: readonly MessageKey[]): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(lockMessages, messageColumns(messages));
}

const lockRecipients = statement(
  'recipients_lock',
  `select
   from recipients r
   join unnest($1::uuid[], $2::uuid[], $3::integer[]) as wanted (organization_id, message_id, ordinal)
     on ${hasKeyOf('r', 'wanted', recipientKey)}
   order by wanted.organization_id, wanted.message_id, wanted.ordinal
   for no key update of r`,
);

/**
 * Holds recipients until the transaction ends, in the order of their keys: an update takes them in whatever order its
 * plan finds them, and what settles a campaign does not hold its message, which whoever reports on it does. Taken
 * after the messages.
 */
export async function lockRecipientsOf(connection: Connection, jobs: readonly JobKey[]): Promise<void> {
  if (jobs.length < 2) return;
  await connection.rows(lockRecipients, keyColumns(jobs));
}

/**
 * Brings the status of messages of a channel, each named once, up to date with their recipients; campaigns have none, and too many
 * of those.
 */
export async function refreshMessages(
  connection: Connection,
  { refreshStatus }: MessageChannel,
  messages: readonly MessageKey[],
  at: Date,
): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(refreshStatus, [...messageColumns(messages), at]);
}

const deleteAttachments = statement(
  'messages_delete_attachments',
  `delete from attachment_contents a
   using unnest($1::uuid[], $2::uuid[]) as finished (organization_id, message_id)
   where ${hasKeyOf('a', 'finished', ['message_id'])}
     and not exists (
       select from delivery_queue q
       where ${hasKeyOf('q', 'finished', ['message_id'])}
     )`,
);

/** Removes the sealed attachments of those messages that nobody is waiting for any more. */
export async function deleteFinishedAttachments(
  connection: Connection,
  messages: readonly MessageKey[],
): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(deleteAttachments, messageColumns(messages));
}

export type DeliverableMessage = MessageKey & {
  sender: string;
  subject: string | null;
  details: unknown;
  content: unknown;
  recipientCount: number;
  /** Placeholders are filled with each recipient's own values. */
  isPersonalised: boolean;
  createdAt: Date;
};

const selectDeliverable = statement<{
  organization_id: string;
  id: string;
  sender: string;
  subject: string | null;
  details: unknown;
  content: unknown;
  recipient_count: number;
  is_personalised: boolean;
  created_at: Date;
}>(
  'messages_select_deliverable',
  `select m.organization_id, m.id, m.sender, m.subject, m.details, c.content, m.recipient_count,
     m.class = 'campaign' as is_personalised, m.created_at
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
   -- A limit keeps each a search by its own key: all three ids are equal, and might be compared in any order.
   cross join lateral (
     select * from messages where ${hasKeyOf('messages', 'wanted', ['id'])} limit 1
   ) m
   cross join lateral (
     select content from message_contents c where ${hasKeyOf('c', 'wanted', [['message_id', 'id']])} limit 1
   ) c`,
);

export async function loadDeliverableMessages(
  database: Database,
  messages: readonly MessageKey[],
): Promise<DeliverableMessage[]> {
  const rows = await inOneRoundTrip(database, selectDeliverable, messageColumns(messages));
  return rows.map((row) => ({
    organizationId: row.organization_id,
    messageId: row.id,
    sender: row.sender,
    subject: row.subject,
    details: row.details,
    content: row.content,
    recipientCount: row.recipient_count,
    isPersonalised: row.is_personalised,
    createdAt: row.created_at,
  }));
}

const selectSealedBeginnings = unpreparedStatement<{ ordinal: number; bytes: number; beginning: Buffer }>(
  `select ordinal, octet_length(sealed) as bytes, substring(sealed from 1 for $3) as beginning
   from attachment_contents
   where organization_id = $1 and message_id = $2
   order by ordinal`,
);

/** Stored uncompressed and in chunks, of which only those are read that are asked for. */
const selectSealedPart = unpreparedStatement<{ part: Buffer }>(
  `select substring(sealed from $4 for $5) as part
   from attachment_contents
   where organization_id = $1 and message_id = $2 and ordinal = $3`,
);

/**
 * The sealed attachments of a message, in their order; those from one on that is deleted meanwhile are left out. Large
 * ones are read part by part: what comes in one row is converted in one piece.
 */
export async function loadSealedAttachments(connection: Connection, message: MessageKey): Promise<Buffer[]> {
  const { organizationId, messageId } = message;
  const rows = await connection.rows(selectSealedBeginnings, [organizationId, messageId, stepBytesMax]);
  const attachments: Buffer[] = [];
  for (const { ordinal, bytes, beginning } of rows) {
    const parts = [beginning];
    for (let read = beginning.length; read < bytes; read += stepBytesMax) {
      const key = [organizationId, messageId, ordinal];
      const [row] = await connection.rows(selectSealedPart, [...key, read + 1, stepBytesMax]);
      if (row === undefined) return attachments;
      parts.push(row.part);
    }
    attachments.push(parts.length === 1 ? beginning : await runInSteps(concatInSteps(parts)));
  }
  return attachments;
}

export type ReportedChange = {
  job: JobKey;
  status: RecipientStatus;
  failure: Failure | null;
};

const applyReports = statement<ChangedRow>(
  'recipients_apply_reports',
  `update recipients r
   set
     status = case when report.status = 'sent' and r.status <> 'delayed' then r.status else report.status end,
     status_at = case when report.status = 'sent' and r.status <> 'delayed' then r.status_at else $4 end,
     -- A delay settles nothing of a hand-off that was cut off.
     uncertain = r.uncertain and report.status = 'delayed',
     -- It may be here before the outcome of the hand-off that it speaks of.
     handed_off_at = coalesce(r.handed_off_at, $4),
     opened_at = case when report.status in ('opened', 'clicked') then coalesce(r.opened_at, $4) else r.opened_at end,
     clicked_at = case when report.status = 'clicked' then coalesce(r.clicked_at, $4) else r.clicked_at end,
     failure_type = coalesce(report.failure_type, r.failure_type),
     failure_class = coalesce(report.failure_class, r.failure_class),
     smtp_code = coalesce(report.smtp_code, r.smtp_code),
     enhanced_code = coalesce(report.enhanced_code, r.enhanced_code),
     -- Remote servers like to name the address, which may have been erased.
     diagnostic = case when r.address <> '' then coalesce(report.diagnostic, r.diagnostic) end,
     remote = case when r.address <> '' then coalesce(report.remote, r.remote) end
   from unnest(
     $1::uuid[], $2::uuid[], $3::integer[], $5::text[], $6::text[], $7::text[], $8::smallint[], $9::text[],
     $10::text[], $11::text[]
   ) as report (
     organization_id, message_id, ordinal, status, failure_type, failure_class, smtp_code, enhanced_code,
     diagnostic, remote
   )
   where ${hasKeyOf('r', 'report', recipientKey)}
     and r.drop_reason is null
     and (
       ${rankOf('report.status')} > ${rankOf('r.status')}
       -- It says that a hand-off took place that nobody was sure of, or whose outcome is still to be written.
       or (report.status = 'sent' and r.status in ('sent', 'delayed') and (r.uncertain or r.handed_off_at is null))
     )
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
);

/** Raises statuses by reports; returns those that changed. A dropped recipient gets none. */
export async function raiseStatuses(
  connection: Connection,
  reports: readonly ReportedChange[],
  at: Date,
): Promise<ChangedRecipient[]> {
  const rows = await connection.rows(applyReports, [
    ...keyColumns(reports.map(({ job }) => job)),
    at,
    reports.map(({ status }) => status),
    reports.map(({ failure }) => failure?.type),
    reports.map(({ failure }) => failure?.class),
    reports.map(({ failure }) => failure?.smtpCode),
    reports.map(({ failure }) => failure?.enhancedCode),
    reports.map(({ failure }) => failure?.diagnostic),
    reports.map(({ failure }) => failure?.remote),
  ]);
  return rows.map(toChanged);
}

/** The normalised addresses of recipients, for suppressing them. */
export async function findAddressKeys(
  connection: Connection,
  jobs: readonly JobKey[],
): Promise<(JobKey & { addressKey: string })[]> {
  const rows = await connection.rows(
    unpreparedStatement<{
      organization_id: string;
      message_id: string;
      ordinal: number;
      address_key: string;
    }>(
      `select r.organization_id, r.message_id, r.ordinal, r.address_key
       from unnest($1::uuid[], $2::uuid[], $3::integer[]) as job (organization_id, message_id, ordinal)
       join recipients r on ${hasKeyOf('r', 'job', recipientKey)}`,
    ),
    keyColumns(jobs),
  );
  return rows.map((row) => ({ ...toKey(row), addressKey: row.address_key }));
}

/** Those of these that answer a text of their recipient, who may have stopped everything else by it. */
export async function findAnswers(connection: Connection, jobs: readonly Job[]): Promise<Set<Job>> {
  if (jobs.length === 0) return new Set();
  const rows = await connection.rows(
    unpreparedStatement<{ position: number }>(
      `select job.position
       from unnest($1::uuid[], $2::uuid[], $3::integer[]) with ordinality
         as job (organization_id, message_id, ordinal, position)
       join recipients r using (organization_id, message_id, ordinal)
       where r.field = 'answer'`,
    ),
    keyColumns(jobs),
  );
  return new Set(rows.flatMap(({ position }) => jobs[position - 1] ?? []));
}

/**
 * Those addresses (by index) of which the last so many messages all ended in a soft bounce; those that have not ended,
 * or failed for what they were, say nothing. Read off recipients_address, a few rows each.
 */
export async function findSoftRuns(
  connection: Connection,
  addresses: readonly { organizationId: string; addressKey: string }[],
  { length, failureClasses }: { length: number; failureClasses: readonly string[] },
): Promise<Set<number>> {
  const rows = await connection.rows(
    unpreparedStatement<{ position: number }>(
      `select wanted.position
       from unnest($1::uuid[], $2::text[]) with ordinality as wanted (organization_id, address_key, position)
       cross join lateral (
         select count(*) filter (
           where latest.status in ('bounced', 'failed') and latest.failure_type = 'soft'
             and latest.failure_class = any ($4::text[])
         ) as soft
         from (
           select status, failure_type, failure_class
           from recipients
           where organization_id = wanted.organization_id
             and address_key = wanted.address_key
             and drop_reason is null
             and status not in ('sent', 'delayed')
             and not (status = 'failed' and failure_class <> all ($4::text[]))
           order by message_id desc
           limit $3
         ) latest
       ) run
       where run.soft = $3`,
    ),
    [
      addresses.map(({ organizationId }) => organizationId),
      addresses.map(({ addressKey }) => addressKey),
      length,
      failureClasses,
    ],
  );
  return new Set(rows.map(({ position }) => position - 1));
}

/** For `toChanged`. */
export type ChangedRow = {
  organization_id: string;
  message_id: string;
  ordinal: number;
  contact_id: string | null;
  address_key: string;
};

export function toChanged(row: ChangedRow): ChangedRecipient {
  return { ...toKey(row), contactId: row.contact_id, addressKey: row.address_key };
}

function toKey(row: { organization_id: string; message_id: string; ordinal: number }): JobKey {
  return { organizationId: row.organization_id, messageId: row.message_id, ordinal: row.ordinal };
}

function keyColumns(jobs: readonly JobKey[]): [string[], string[], number[]] {
  return [
    jobs.map(({ organizationId }) => organizationId),
    jobs.map(({ messageId }) => messageId),
    jobs.map(({ ordinal }) => ordinal),
  ];
}

function messageColumns(messages: readonly MessageKey[]): [string[], string[]] {
  return [messages.map(({ organizationId }) => organizationId), messages.map(({ messageId }) => messageId)];
}

/** Each message once, in the order of the ids, so that transactions that lock the same ones cannot deadlock. */
export function uniqueMessages(jobs: readonly JobKey[]): MessageKey[] {
  const messages = new Map(
    jobs.map(({ organizationId, messageId }) => [messageId, { organizationId, messageId }]),
  );
  return [...messages.values()];
}

export function textOfKey({ organizationId, messageId, ordinal }: JobKey): string {
  return `${organizationId} ${messageId} ${ordinal}`;
}

/** One statement in a transaction of its own, for the sake of its plan. */
export function inOneRoundTrip<Row>(
  database: Database,
  given: Statement<Row>,
  values: readonly unknown[],
): Promise<Row[]> {
  return database.transactionByIndex(async (transaction) => {
    const [rows] = await Promise.all([transaction.rows(given, values), transaction.commit()]);
    return rows;
  });
}
