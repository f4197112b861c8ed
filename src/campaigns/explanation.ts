import type { SetKind, Suppression } from '../audience/audience.ts';
import { type CampaignRecipient, campaignRecipientStatuses, type DropReason } from '../messages/messages.ts';
import type { ChannelWords } from './channel.ts';
import type { CampaignStatus, PauseReason } from './states.ts';

/**
 * Explains in words why a contact got a campaign or did not. For contacts in the audience everything is known. Contacts
 * that were left out at freezing were only counted: their explanation uses present data, which may have changed since.
 */
export const outcomes = [...campaignRecipientStatuses, 'excluded', 'not_in_audience'] as const;

export type Outcome = (typeof outcomes)[number];

/** From the least to the most: how far a campaign got, where a contact has it on several devices. */
const outcomesByRank: readonly Outcome[] = [
  'not_in_audience',
  'excluded',
  'dropped',
  'cancelled',
  'failed',
  'bounced',
  'pending',
  'delayed',
  'sent',
  'delivered',
  'complained',
  'unsubscribed',
  'opened',
  'clicked',
];

export function rankOfOutcome(outcome: Outcome): number {
  return outcomesByRank.indexOf(outcome);
}

export type Explanation = { outcome: Outcome; reason: string; steps: Step[] };

export type Step = { at: Date | null; text: string };

export type ExplainedCampaign = {
  status: CampaignStatus;
  scheduledAt: Date | null;
  frozenAt: Date | null;
  /** The first part of a large audience is frozen ahead of the rest. */
  isPartlyFrozen: boolean;
  cancelledAt: Date | null;
  pauseReason: PauseReason | null;
  failureReason: string | null;
  /** Whether a part of its audience never got rows as recipients. */
  isCutOff: boolean;
};

/** The contact's present relation to the campaign. */
export type Standing = {
  createdAt: Date;
  includedBy: readonly NamedSet[];
  excludedBy: readonly NamedSet[];
  hasAddress: boolean;
  isUnsubscribed: boolean;
  suppression: Pick<Suppression, 'reason' | 'createdAt'> | null;
};

export type NamedSet = { kind: SetKind; name: string };

export type Facts = {
  words: ChannelWords;
  campaign: ExplainedCampaign;
  /** Null if the contact no longer exists. */
  standing: Standing | null;
  recipient: CampaignRecipient | null;
  /** For a contact that is still waiting: how many are before it. */
  waiting: { countBefore: number } | null;
};

export function explain(facts: Facts): Explanation {
  const { campaign, recipient, waiting } = facts;
  if (recipient !== null) {
    const outcome = recipient.shownStatus;
    return {
      outcome,
      reason: `${placeOf(facts)} ${reasonOf(facts, recipient)}`,
      steps: listSteps(facts, recipient),
    };
  }
  if (waiting !== null) {
    const reason = `${placeOf(facts)} ${describeWaiting(campaign, waiting)}`;
    return { outcome: 'pending', reason, steps: frozenStep(campaign) };
  }
  return campaign.frozenAt === null ? foretell(facts) : explainAbsence(facts, campaign.frozenAt);
}

/** Why a contact is in the audience. */
function placeOf({ standing, campaign }: Facts): string {
  if (standing === null) return 'The contact was deleted.';
  if (standing.includedBy.length === 0)
    return `Was in the audience when it was frozen${on(campaign.frozenAt)}, and is in none of its lists, tags and segments now.`;
  return `Is in ${listSets(standing.includedBy)}.`;
}

const setsMax = 5;

function listSets(sets: readonly NamedSet[], adjective = ''): string {
  const named = sets.slice(0, setsMax).map(({ kind, name }) => `the ${adjective}${kind} “${name}”`);
  if (sets.length > setsMax) named.push(`${count(sets.length - setsMax)} more`);
  const last = named.pop() ?? '';
  return named.length === 0 ? last : `${named.join(', ')} and ${last}`;
}

function on(at: Date | null): string {
  return at === null ? '' : ` on ${at.toISOString()}`;
}

const numbers = new Intl.NumberFormat('en');

function count(number: number): string {
  return numbers.format(number);
}

function reasonOf(facts: Facts, recipient: CampaignRecipient): string {
  const { words, campaign, waiting } = facts;
  const at = on(recipient.status_at);
  switch (recipient.shownStatus) {
    case 'pending':
      return describeWaiting(campaign, waiting);
    case 'dropped':
      return recipient.drop_reason === null
        ? ''
        : describeDrop(facts, recipient.drop_reason, campaign.frozenAt);
    case 'delayed':
      return `Was deferred${at} by ${describeAnswer(words, recipient)}, and will be tried again for up to ${words.retriedFor}.`;
    case 'sent':
      return recipient.uncertain
        ? `Was handed off${on(recipient.handed_off_at)}, and the connection broke before the response: ${words.cutOff}.`
        : describeUnconfirmed(words, recipient);
    case 'delivered':
      return `Was handed off${on(recipient.handed_off_at)}, and ${words.arrival}.`;
    case 'opened':
      return `Was delivered, and ${words.opened}${on(recipient.opened_at)}.`;
    case 'clicked':
      return `Was delivered, and ${words.clicked}${on(recipient.clicked_at)}.`;
    case 'bounced':
      return `Was refused${at} because of the address, by ${describeAnswer(words, recipient)}.`;
    case 'failed':
      return `Could not be delivered: given up${at} after ${describeAnswer(words, recipient)}.`;
    case 'complained':
      return `Was delivered, and was reported as spam${at}.`;
    case 'unsubscribed':
      return `Was delivered, and unsubscribed from ${words.medium} by it${at}.`;
    case 'cancelled':
      return `The campaign was cancelled${on(campaign.cancelledAt)} before its turn.`;
  }
}

function describeUnconfirmed({ taker }: ChannelWords, recipient: CampaignRecipient): string {
  return `Was handed off${on(recipient.handed_off_at)}, and ${taker} took it; whether it arrived is not known yet.`;
}

function describeWaiting(campaign: ExplainedCampaign, waiting: Facts['waiting']): string {
  const before = waiting === null ? '' : `; ${waitersBefore(waiting.countBefore)}`;
  const pause = campaign.status === 'paused' ? ` ${describePause(campaign.pauseReason)}` : '';
  return `Waits to be handed off${before}.${pause}`;
}

function waitersBefore(number: number): string {
  if (number === 0) return 'none are before it';
  return number === 1 ? 'one other is before it' : `${count(number)} are before it`;
}

function describePause(reason: PauseReason | null): string {
  switch (reason) {
    case 'sending_suspended':
      return 'The campaign is paused, since sending is suspended.';
    case 'quota_exceeded':
      return 'The campaign is paused, since the quota is used up.';
    case 'template_paused':
      return 'The campaign is paused, since its template is paused.';
    case 'account_held':
      return 'The campaign is paused, since the account may send no campaigns for now.';
    case 'messaging_limit':
      return 'The campaign is paused, since no more people may be written to within 24 hours.';
    case 'schedule_missed':
      return 'The campaign missed its schedule, and waits to be resumed.';
    case null:
      return 'The campaign is paused.';
  }
}

/** Who refused, and the exact reply. */
function describeAnswer({ taker }: ChannelWords, row: CampaignRecipient): string {
  const codes = [row.smtp_code, row.enhanced_code].filter((code) => code !== null).join(' ');
  const kind = [row.failure_type, row.failure_class].filter((part) => part !== null).join(', ');
  const said = [codes, row.diagnostic].filter((part) => part !== null && part !== '').join(' ');
  return [row.remote ?? taker, kind === '' ? '' : ` (${kind})`, said === '' ? '' : `: “${said}”`].join('');
}

function describeDrop({ words, standing }: Facts, reason: DropReason, frozenAt: Date | null): string {
  const after = `after the audience was frozen${on(frozenAt)}`;
  const suppression = standing?.suppression ?? null;
  switch (reason) {
    case 'unsubscribed':
      return `Unsubscribed from ${words.medium} ${after}.`;
    case 'suppressed':
      return suppression === null
        ? 'The address was suppressed when its turn came.'
        : `${capitalise(describeSuppression(words, suppression))}.`;
    case 'contact_deleted':
      return `The contact was deleted ${after}.`;
    case 'no_address':
      return `Lost its ${words.address} ${after}.`;
    case 'duplicate':
      return `Its ${words.address} belonged to another contact of the audience before, who got the campaign there.`;
    case 'invalid_domain':
      return 'The domain of the address does not exist.';
    case 'no_mx':
      return 'The domain of the address has no mail server.';
    case 'null_mx':
      return 'The domain of the address says that it accepts no mail.';
    case 'disposable':
      return 'The address belongs to a service for disposable addresses.';
    case 'unreachable':
      return words.unreachable;
  }
}

const suppressionReasons: Readonly<Record<Suppression['reason'], string>> = {
  hard_bounce: 'it does not exist',
  soft_bounces: 'it has not accepted mail for a long time',
  complaint: 'mail to it was reported as spam',
  unsubscribe: 'it was unsubscribed',
  manual: 'it was suppressed by a request',
  operator: 'the operator suppressed it',
  unreachable: 'messages to it were refused again and again, and none ever arrived',
};

function describeSuppression(
  { address }: ChannelWords,
  { reason, createdAt }: Pick<Suppression, 'reason' | 'createdAt'>,
): string {
  return `the ${address} has been suppressed since ${createdAt.toISOString()}: ${suppressionReasons[reason]}`;
}

function capitalise(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function frozenStep({ frozenAt }: ExplainedCampaign): Step[] {
  return frozenAt === null
    ? []
    : [{ at: frozenAt, text: 'The audience was frozen, with this contact in it.' }];
}

function listSteps(facts: Facts, recipient: CampaignRecipient): Step[] {
  const { campaign, words } = facts;
  const later: (Step & { at: Date })[] = [];
  const add = (at: Date | null, text: string) => {
    if (at !== null) later.push({ at, text });
  };
  add(recipient.opened_at, `${capitalise(words.opened)}.`);
  add(recipient.clicked_at, `${capitalise(words.clicked)}.`);
  const { shownStatus } = recipient;
  if (shownStatus === 'delivered') add(recipient.status_at, `${capitalise(words.arrival)}.`);
  if (!toldAlready.has(shownStatus))
    add(shownStatus === 'cancelled' ? campaign.cancelledAt : recipient.status_at, reasonOf(facts, recipient));
  later.sort((one, other) => one.at.getTime() - other.at.getTime());
  const handedOff =
    recipient.handed_off_at === null ? [] : [{ at: recipient.handed_off_at, text: 'Was handed off.' }];
  // The time of a drop is not stored.
  const dropped = shownStatus === 'dropped' ? [{ at: null, text: reasonOf(facts, recipient) }] : [];
  // A carrier reports the time of arrival by its own clock, which may be behind ours.
  return [...frozenStep(campaign), ...handedOff, ...later, ...dropped];
}

const toldAlready: ReadonlySet<string> = new Set([
  'pending',
  'dropped',
  'sent',
  'delivered',
  'opened',
  'clicked',
]);

/** Why the contact would not be in an audience that is frozen now; null if it would. */
function findObstacle(
  words: ChannelWords,
  standing: Standing,
): { outcome: 'excluded' | 'not_in_audience'; phrase: string } | null {
  const { includedBy, excludedBy, suppression } = standing;
  if (includedBy.length === 0)
    return {
      outcome: 'not_in_audience',
      phrase: 'is in none of the lists, tags and segments of this campaign',
    };
  if (excludedBy.length > 0)
    return { outcome: 'excluded', phrase: `is in ${listSets(excludedBy, 'excluded ')}` };
  if (!standing.hasAddress) return { outcome: 'excluded', phrase: `has no ${words.address}` };
  if (standing.isUnsubscribed) {
    const since =
      suppression?.reason === 'unsubscribe' ? ` since ${suppression.createdAt.toISOString()}` : '';
    return { outcome: 'excluded', phrase: `is unsubscribed from ${words.medium}${since}` };
  }
  return suppression === null
    ? null
    : { outcome: 'excluded', phrase: describeSuppression(words, suppression) };
}

/** For a campaign whose audience is not frozen yet. */
function foretell({ words, campaign, standing }: Facts): Explanation {
  const over = describeEnd(campaign);
  if (over !== null) return { ...over, steps: [] };
  if (standing === null) throw new Error('nothing is known of this contact');
  const obstacle = findObstacle(words, standing);
  if (obstacle !== null) {
    const { outcome, phrase } = obstacle;
    const reason = outcome === 'excluded' ? `Would be excluded: ${phrase}.` : `Would not get it: ${phrase}.`;
    return { outcome, reason, steps: [] };
  }
  const reason = `Is in ${listSets(standing.includedBy)}, and would get it. ${describeBeginning(campaign)}`;
  return { outcome: 'pending', reason, steps: [] };
}

/** For a campaign that ended before the part of its audience was frozen that the contact would be in. */
function describeEnd(campaign: ExplainedCampaign): { outcome: Outcome; reason: string } | null {
  const early = campaign.isPartlyFrozen
    ? 'before this contact could be chosen'
    : 'before it was sent to any contact';
  if (campaign.status === 'cancelled') {
    const at = on(campaign.cancelledAt);
    return { outcome: 'cancelled', reason: `The campaign was cancelled${at} ${early}.` };
  }
  if (campaign.status !== 'failed') return null;
  return {
    outcome: 'failed',
    reason: `The campaign failed ${early}. ${campaign.failureReason ?? ''}`.trim(),
  };
}

function describeBeginning({ status, scheduledAt, pauseReason }: ExplainedCampaign): string {
  if (status === 'draft') return 'The campaign is a draft.';
  if (status === 'scheduled')
    return `The campaign is scheduled for ${scheduledAt?.toISOString() ?? 'later'}.`;
  return status === 'paused' ? describePause(pauseReason) : 'The audience is about to be frozen.';
}

/** For an audience that was frozen without the contact. */
function explainAbsence({ words, campaign, standing }: Facts, frozenAt: Date): Explanation {
  if (standing === null) throw new Error('nothing is known of this contact');
  const steps: Step[] = [{ at: frozenAt, text: 'The audience was frozen, without this contact.' }];
  if (standing.createdAt > frozenAt) {
    const created = `Was created${on(standing.createdAt)}, after the audience was frozen${on(frozenAt)}.`;
    return { outcome: 'not_in_audience', reason: created, steps };
  }
  // A suppression that was made after the freezing was not the reason.
  const isSuppressedSince = standing.suppression !== null && standing.suppression.createdAt > frozenAt;
  const obstacle = findObstacle(words, {
    ...standing,
    suppression: isSuppressedSince ? null : standing.suppression,
  });
  if (obstacle?.outcome === 'excluded') {
    const reason = `Was excluded when the audience was frozen${on(frozenAt)}: ${obstacle.phrase}.`;
    return { outcome: 'excluded', reason, steps };
  }
  if (obstacle !== null) return { ...obstacle, reason: `${capitalise(obstacle.phrase)}.`, steps };
  if (campaign.status === 'cancelled' && campaign.isCutOff) {
    const reason = `Is in ${listSets(standing.includedBy)}. The campaign was cancelled${on(campaign.cancelledAt)} before its turn.`;
    return { outcome: 'cancelled', reason, steps: [] };
  }
  const reason = `Was not in the audience when it was frozen${on(frozenAt)}, and would be now: it is in ${listSets(standing.includedBy)}.`;
  return { outcome: 'not_in_audience', reason, steps };
}
