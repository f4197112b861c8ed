import {
  listTemplateParameters,
  type ReviewedTemplate,
  type TemplateContent,
  type TemplateState,
} from '../channels/chatapp/chatapp.ts';
import { dateOf } from '../platform/clock.ts';
import type { TemplateChange, TemplateRow, TemplateStatus } from './store.ts';

/**
 * What becomes of a template by what the provider says of it.
 *
 * Clients wait for `status` to be `approved` or `rejected`, which is `pending` again after an edit alone. What happens to an
 * approved template later (it is paused, disabled, archived) leaves its status, and makes it not sendable.
 *
 * What the provider tells by itself may arrive late, twice and in any order, and has no time by which it could be put in
 * order. So what comes after a decision is believed, but the template is looked at soon after: what a look returns is
 * how things are. An old word that the review is still under way is not believed at all.
 *
 * An edit is a new submission: the template is `pending` from when the provider has taken it, as long as the provider has
 * it under review, and sends nothing then. What is told meanwhile may speak of what the template said before: it is not
 * believed, but looked at.
 */

/** Why a template cannot be sent: the state that keeps it from being taken. */
export type Unsendability = Exclude<TemplateState, 'approved'>;

/** Null for one that can be sent. */
export function findUnsendability(
  template: Pick<
    TemplateChange,
    | 'status'
    | 'provider_state'
    | 'deleted_at'
    | 'content'
    | 'edited_content'
    | 'is_edit_uncertain'
    | 'paused_until'
  >,
): Unsendability | null {
  if (template.deleted_at !== null) return 'deleted';
  if (template.status !== 'approved') return template.status;
  // Nobody knows whether the provider takes values for the old text or for the new one.
  if (template.is_edit_uncertain && isChangingParameters(template)) return 'pending';
  const state = template.provider_state ?? 'pending';
  if (state !== 'approved') return state;
  return template.paused_until === null ? null : 'paused';
}

/** Whether messages must give values for the same names. */
export function hasSameParameters(one: TemplateContent, other: TemplateContent): boolean {
  const [names, otherNames] = [listTemplateParameters(one), listTemplateParameters(other)];
  return names.length === otherNames.length && names.every((name) => otherNames.includes(name));
}

/** Whether an edit is under way after which messages must give values for other names. */
export function isChangingParameters({
  content,
  edited_content: edited,
}: Pick<TemplateChange, 'content' | 'edited_content'>): boolean {
  if (edited === null) return false;
  return !hasSameParameters(content, edited);
}

/** The status that follows from a state, for one whose review is not over. */
const statusOfState: Readonly<Record<TemplateState, TemplateStatus>> = {
  pending: 'pending',
  approved: 'approved',
  rejected: 'rejected',
  // Only a template that was approved comes so far.
  paused: 'approved',
  disabled: 'approved',
  archived: 'approved',
  locked: 'approved',
  flagged: 'approved',
  deleted: 'rejected',
};

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const dayMs = 24 * hourMs;

/** When to look again at a template whose review is under way: reviews take minutes, or up to two days. */
export function nextReviewAtMs(submittedAtMs: number, nowMs: number): number {
  const ageMs = nowMs - submittedAtMs;
  if (ageMs < 10 * minuteMs) return nowMs + minuteMs;
  if (ageMs < 70 * minuteMs) return nowMs + 10 * minuteMs;
  return nowMs + (ageMs < 72 * hourMs ? hourMs : dayMs);
}

/** How long until a template is looked at again whose review is over; null for never. A pause is over after hours. */
const followingMs: Readonly<Record<Exclude<TemplateState, 'pending'>, number | null>> = {
  approved: dayMs,
  rejected: null,
  paused: hourMs,
  disabled: dayMs,
  archived: dayMs,
  locked: dayMs,
  flagged: dayMs,
  deleted: dayMs,
};

/** How long after a word that may be out of date. */
const soonMs = minuteMs;

/** What a template is judged by. */
export type ReviewedRow = TemplateChange & Pick<TemplateRow, 'category'>;

export type ReviewSource = {
  at: Date;
  /** Whether the provider was asked, or told it by itself. */
  source: 'asked' | 'told';
  /** When the provider says that its review may be over. */
  reviewedAfterMs?: number | undefined;
};

/** The template as it is after that. What is not known changes nothing. */
export function applyReview<Row extends ReviewedRow>(
  before: Row,
  reviewed: ReviewedTemplate,
  { at, source, reviewedAfterMs }: ReviewSource,
): Row {
  const { state } = reviewed;
  const known: Row = {
    ...before,
    provider_template_id: before.provider_template_id ?? reviewed.providerTemplateId,
    provider_category: reviewed.category ?? before.provider_category,
    quality: reviewed.quality ?? before.quality,
    marketing_from: findMarketingFrom(before, reviewed, { at, source }),
    missing_since: state === 'deleted' ? before.missing_since : null,
    is_uncertain: false,
    submitted_at: before.submitted_at ?? at,
  };
  // Only its deletion is of interest any more.
  if (before.deleted_at !== null) return { ...known, is_uncertain: before.is_uncertain };
  if (state === null || (source === 'told' && isOutdated(before, state)))
    return planReview(known, { at, reviewedAfterMs, isSoon: source === 'told' });
  const after = { ...known, ...decide(known, reviewed, state, at) };
  const isSurprise = source === 'told' && before.status !== 'pending' && state !== before.provider_state;
  return planReview(after, { at, reviewedAfterMs, isSoon: isSurprise });
}

/** What Meta gives between the word that a template will be marketing, and the change. */
const noticeMs = dayMs;
/** A time that is further away is not believed. */
const noticeMsMax = 40 * dayMs;
/** After this time a change that was announced does not come any more: somebody has objected, with success. */
const abandonedMs = 7 * dayMs;

/**
 * From when on a template of another category is sent as marketing alone. A day from when it was first heard of, whether it
 * was announced or had been done, so that nobody's messages stop at night; null if the provider takes it back.
 */
function findMarketingFrom(
  before: ReviewedRow,
  { category, announced }: ReviewedTemplate,
  { at, source }: ReviewSource,
): Date | null {
  const { category: own, provider_category: had, marketing_from: from } = before;
  if (own === 'marketing') return null;
  const nowMs = at.getTime();
  const isMarketing = (category ?? had) === 'marketing';
  if (isMarketing) return from ?? dateOf(nowMs + noticeMs);
  if (had === 'marketing') return null;
  if (announced?.category === 'marketing') return from ?? dateOf(announcedMs(announced.atMs, nowMs));
  const isAbandoned = source === 'asked' && from !== null && nowMs - from.getTime() > abandonedMs;
  return isAbandoned ? null : from;
}

function announcedMs(atMs: number | null, nowMs: number): number {
  const isLikely = atMs !== null && atMs > nowMs && atMs < nowMs + noticeMsMax;
  return isLikely ? atMs : nowMs + noticeMs;
}

/** Whether what is told may be of an earlier time. */
function isOutdated(
  { status, edited_content: edited, edited_at: editedAt }: TemplateChange,
  state: TemplateState,
): boolean {
  if (status !== 'pending') return state === 'pending';
  return (edited !== null || editedAt !== null) && (state === 'approved' || state === 'rejected');
}

function decide(
  before: TemplateChange,
  reviewed: ReviewedTemplate,
  state: TemplateState,
  at: Date,
): Pick<TemplateChange, 'status' | 'provider_state' | 'reviewed_at' | 'rejection_reason' | 'problem'> {
  const status = statusAfter(before.status, state);
  const isNew = status !== before.status;
  const words = reviewed.rejectionReason ?? (isNew ? null : before.rejection_reason);
  return {
    status,
    provider_state: state,
    reviewed_at: isNew ? at : before.reviewed_at,
    rejection_reason: status === 'rejected' ? (words ?? rejectionWords(state)) : null,
    problem: status === 'approved' && state !== 'approved' ? reviewed.rejectionReason : null,
  };
}

function statusAfter(before: TemplateStatus, state: TemplateState): TemplateStatus {
  if (state === 'approved' || state === 'rejected') return state;
  return before === 'pending' ? statusOfState[state] : before;
}

function rejectionWords(state: TemplateState): string {
  return state === 'deleted'
    ? 'It was deleted at the provider.'
    : 'The provider has rejected it without a reason.';
}

/** When it is looked at next. An edit comes first, after which it is looked at anyway. */
function planReview<Row extends TemplateChange>(
  after: Row,
  { at, reviewedAfterMs, isSoon }: { at: Date; reviewedAfterMs: number | undefined; isSoon: boolean },
): Row {
  const nowMs = at.getTime();
  if (after.edited_content !== null)
    return { ...after, next_step: 'edit', due_at: after.next_step === 'edit' ? after.due_at : at };
  const pauseMs = isSoon ? soonMs : pauseAfter(after, nowMs, reviewedAfterMs);
  if (pauseMs === null) return { ...after, next_step: null, due_at: null };
  // Words that come all the time would otherwise put it off for ever.
  const isSoonerDue =
    isSoon && after.next_step === 'review' && (after.due_at?.getTime() ?? 0) < nowMs + pauseMs;
  return { ...after, next_step: 'review', due_at: isSoonerDue ? after.due_at : dateOf(nowMs + pauseMs) };
}

function pauseAfter(
  { status, provider_state: state, submitted_at: submittedAt, missing_since: missingSince }: TemplateChange,
  nowMs: number,
  reviewedAfterMs: number | undefined,
): number | null {
  if (status === 'rejected') return null;
  const isUnderReview = status === 'pending' || state === null || state === 'pending';
  if (state === 'deleted' && missingSince !== null && nowMs - missingSince.getTime() < dayMs) return hourMs;
  if (!isUnderReview) return followingMs[state];
  const pauseMs = nextReviewAtMs(submittedAt?.getTime() ?? nowMs, nowMs) - nowMs;
  return reviewedAfterMs === undefined
    ? pauseMs
    : Math.min(pauseMs, Math.max(reviewedAfterMs, reviewedAfterMsMin));
}

/** A provider that is asked at once and again would be asked without end. */
const reviewedAfterMsMin = 100;
