import { badRequest, conflict, PublicError } from '../platform/http/errors.ts';

/**
 * The states of a campaign, and what people may do to it in each. A draft can be edited; a scheduled campaign waits for
 * its time; a queued one gets its audience, which never changes afterwards; a sending one has been handed off for at
 * least one recipient. From `queued` on, the workers move it: to `sending`, to `sent`, to `paused` and back, and to
 * `failed` if it cannot go on. Those moves are not in this table.
 */
export const campaignStatuses = [
  'draft',
  'scheduled',
  'queued',
  'sending',
  'sent',
  'paused',
  'failed',
  'cancelled',
] as const;

export type CampaignStatus = (typeof campaignStatuses)[number];

export const triggers = ['update', 'send', 'schedule', 'cancel', 'resume', 'delete'] as const;

export type Trigger = (typeof triggers)[number];

/**
 * The next state, or why there is none: `refused` is permanent, `busy` lasts as long as the campaign is in this state.
 */
export type Move = CampaignStatus | 'deleted' | 'refused' | 'busy';

/** Whether workers still move it: it is neither before its sending nor over. */
export function isUnderWay(status: CampaignStatus): boolean {
  return status === 'queued' || status === 'sending' || status === 'paused';
}

const whileUnderWay = {
  update: 'refused',
  send: 'refused',
  schedule: 'refused',
  cancel: 'cancelled',
  resume: 'refused',
  delete: 'busy',
} as const;

const whenOver = {
  update: 'refused',
  send: 'refused',
  schedule: 'refused',
  cancel: 'refused',
  resume: 'refused',
  delete: 'deleted',
} as const;

export const moves: Readonly<Record<CampaignStatus, Readonly<Record<Trigger, Move>>>> = {
  draft: {
    update: 'draft',
    send: 'queued',
    schedule: 'scheduled',
    cancel: 'refused',
    resume: 'refused',
    delete: 'deleted',
  },
  scheduled: {
    update: 'scheduled',
    send: 'queued',
    schedule: 'scheduled',
    cancel: 'cancelled',
    resume: 'refused',
    delete: 'deleted',
  },
  queued: whileUnderWay,
  sending: whileUnderWay,
  sent: whenOver,
  // It resumes by itself, unless it missed its time: then a person must decide whether it is still wanted.
  paused: { ...whenOver, resume: 'queued' },
  failed: whenOver,
  cancelled: whenOver,
};

/** Why a channel takes no copies of a campaign for now. */
export type ChannelPauseReason = 'template_paused' | 'account_held' | 'messaging_limit';

export const pauseReasons = [
  'sending_suspended',
  'quota_exceeded',
  'schedule_missed',
  'template_paused',
  'account_held',
  'messaging_limit',
] as const satisfies readonly (
  'sending_suspended' | 'quota_exceeded' | 'schedule_missed' | ChannelPauseReason
)[];

export type PauseReason = (typeof pauseReasons)[number];

/** Those after which it goes on by itself. */
export type PassingPauseReason = Exclude<PauseReason, 'schedule_missed'>;

/** Why a trigger does not move a campaign; null if it does. */
export function findRefusal(
  campaign: { status: CampaignStatus; pause_reason: PauseReason | null },
  trigger: Trigger,
): PublicError | null {
  const move = moves[campaign.status][trigger];
  if (move === 'busy') {
    return new PublicError(
      conflict,
      `A campaign that is ${campaign.status} cannot be deleted. Cancel it first.`,
    );
  }
  if (move === 'refused') {
    const where = campaignStatuses.filter((status) => moves[status][trigger] !== 'refused').map(phraseOf);
    return new PublicError(
      badRequest,
      `A campaign that is ${phraseOf(campaign.status)} cannot be ${participles[trigger]}, but only one that is ${where.join(' or ')}.`,
    );
  }
  if (trigger === 'resume' && campaign.pause_reason !== 'schedule_missed') {
    return new PublicError(
      badRequest,
      `The campaign is paused because of ${String(campaign.pause_reason)} and goes on by itself.`,
    );
  }
  return null;
}

function phraseOf(status: CampaignStatus): string {
  return status === 'draft' ? 'a draft' : status;
}

const participles: Readonly<Record<Trigger, string>> = {
  update: 'changed',
  send: 'sent',
  schedule: 'scheduled',
  cancel: 'cancelled',
  resume: 'resumed',
  delete: 'deleted',
};
