import type { Clock } from '../../../../platform/clock.ts';
import type { TemplateCategory } from '../../template.ts';
import type {
  ReviewedTemplate,
  SentTemplate,
  TemplateEdit,
  TemplateSubmission,
  WantedTemplate,
} from '../../provider.ts';

/**
 * Reviews that take time and need no memory: the id of a template says when its review is over, and its name how that
 * ends. So any process answers, also after a restart.
 */

export type Reviews = {
  submit: (template: SentTemplate) => TemplateSubmission;
  /** Begins a review anew, which the next id of the template says. */
  edit: (template: SentTemplate) => TemplateEdit;
  /** Ids that the sandbox did not give are not among them. */
  list: (wanted: readonly WantedTemplate[]) => ReviewedTemplate[];
};

type End = Pick<ReviewedTemplate, 'state' | 'quality'> & { category?: TemplateCategory };

const approval: End = { state: 'approved', quality: 'green' };

/** How a review ends, by a part of the template's name; with an approval for all others. */
const ends: readonly (readonly [string, End])[] = [
  ['reject', { state: 'rejected', quality: null }],
  ['disable', { state: 'disabled', quality: 'red' }],
  ['archive', { state: 'archived', quality: 'unknown' }],
  ['recategorize', { ...approval, category: 'marketing' }],
];

const idPattern = /^sandbox-(\d{1,15})$/;

/** Longer than a day would be a mistake. */
const reviewMsMax = 86_400_000;

export function createReviews(clock: Clock, reviewMs: number): Reviews {
  const review = ({ providerTemplateId, name, language }: WantedTemplate): ReviewedTemplate | null => {
    const [, endsAt] = idPattern.exec(providerTemplateId ?? '') ?? [];
    if (providerTemplateId === null || endsAt === undefined) return null;
    const asked = { providerTemplateId, name, language };
    if (clock.nowMs() < Number(endsAt))
      return { ...asked, state: 'pending', category: null, rejectionReason: null, quality: null };
    const [word, end] = ends.find(([part]) => name.includes(part)) ?? [null, approval];
    const rejectionReason =
      word === null || end.state === 'approved'
        ? null
        : `The sandbox does so with every template that has ${word} in its name`;
    return { ...asked, category: null, rejectionReason, ...end };
  };
  const begin = ({ name, language, category }: SentTemplate) => {
    const providerTemplateId = `sandbox-${Math.ceil(clock.nowMs() + reviewMs)}`;
    const asked = { providerTemplateId, name, language, category };
    const answer = { state: 'pending', rejectionReason: null, quality: null } as const;
    return { template: { ...asked, ...answer }, reviewedAfterMs: reviewMs };
  };
  return {
    submit: (template) => ({ kind: 'submitted', ...begin(template) }),
    edit: (template) => ({ kind: 'edited', ...begin(template) }),
    list: (wanted) => wanted.map(review).filter((template) => template !== null),
  };
}

/** Throws, in words for the operator. */
export function parseReviewMs(setting: string): number {
  if (/^\d{1,8}$/.test(setting) && Number(setting) <= reviewMsMax) return Number(setting);
  throw new Error('POSTILLION_SANDBOX_REVIEW_MS must be a number of milliseconds, a day at most');
}
