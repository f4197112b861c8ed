/**
 * The outermost edge of the work on templates of chat-app messages: a provider in this process, which has accounts with
 * templates, and fails as a test says.
 */
import { isDeepStrictEqual } from 'node:util';
import type {
  AccountExamination,
  ChatAppAccount,
  ChatAppProvider,
  ManagementDelay,
  ReviewedTemplate,
  SentTemplate,
  TemplateEdit,
  TemplateState,
  TemplateSubmission,
} from '../../src/channels/chatapp/provider.ts';

type Call = { kind: 'submit' | 'review' | 'edit' | 'delete'; account: string; what: string[] };

/** What happens instead of the next submission; `taken_and_lost` carries it out, and its answer never comes. */
export type Mishap = TemplateSubmission | 'taken_and_lost' | 'lost';

export type Reviewer = ChatAppProvider & {
  /** Each call, in its order. */
  calls: Call[];
  /** What the account has, by name and language. */
  templatesOf: (account: string) => Map<string, ReviewedTemplate & { template: SentTemplate | null }>;
  /** The review is over, or something else happens to a template. */
  put: (account: string, key: string, change: Partial<ReviewedTemplate>) => void;
  /** For the next submissions, one after the other. */
  mishaps: Mishap[];
  /** Every call of this kind is answered so while it is set. */
  delay: ManagementDelay | null;
  /** What happens instead of the next edits, as with submissions. */
  editMishaps: (TemplateEdit | 'taken_and_lost' | 'lost')[];
  /** Those that were carried out. */
  editsTaken: string[];
  onEdit: (() => Promise<void>) | null;
  /** The state of a template after an edit. */
  editedState: TemplateState;
  /** Called within each submission, after it was carried out and before its answer. */
  onSubmit: ((template: SentTemplate) => Promise<void>) | null;
  /** Called within each look, before its answer. */
  onReview: (() => Promise<void>) | null;
};

export const keyOf = ({ name, language }: { name: string; language: string }) => `${name} ${language}`;

export function createReviewer({ needsAccount = true } = {}): Reviewer {
  const accounts = new Map<string, ReturnType<Reviewer['templatesOf']>>();
  let ids = 0;
  const templatesOf: Reviewer['templatesOf'] = (account) => {
    const present = accounts.get(account) ?? new Map<string, never>();
    accounts.set(account, present);
    return present;
  };
  const take = (account: ChatAppAccount, template: SentTemplate): ReviewedTemplate => {
    const reviewed: ReviewedTemplate = {
      providerTemplateId: `p-${(ids += 1)}`,
      name: template.name,
      language: template.language,
      state: 'pending',
      category: template.category,
      rejectionReason: null,
      quality: 'unknown',
    };
    templatesOf(account.businessAccountId).set(keyOf(template), { ...reviewed, template });
    return reviewed;
  };
  const notUsed = () => Promise.reject(new Error('nothing is handed over here'));
  const reviewer: Reviewer = {
    name: 'reviewer',
    concurrency: 1,
    isReportedById: true,
    needsAccount,
    calls: [],
    mishaps: [],
    editMishaps: [],
    editsTaken: [],
    onEdit: null,
    editedState: 'pending',
    delay: null,
    onSubmit: null,
    onReview: null,
    templatesOf,
    put: (account, key, change) => {
      const present = templatesOf(account).get(key);
      if (present === undefined) throw new Error(`there is no ${key}`);
      templatesOf(account).set(key, { ...present, ...change });
    },
    handOff: notUsed,
    submitTemplate: async (account, template) => {
      reviewer.calls.push({ kind: 'submit', account: account.businessAccountId, what: [keyOf(template)] });
      if (reviewer.delay !== null) return reviewer.delay;
      const mishap = reviewer.mishaps.shift();
      if (mishap !== undefined && typeof mishap === 'object') return mishap;
      if (mishap === 'lost') return { kind: 'unknown', words: 'the answer was lost' };
      if (templatesOf(account.businessAccountId).has(keyOf(template))) return { kind: 'exists' };
      const taken = take(account, template);
      await reviewer.onSubmit?.(template);
      if (mishap === 'taken_and_lost') return { kind: 'unknown', words: 'the answer was lost' };
      return { kind: 'submitted', template: taken };
    },
    reviewTemplates: async (account, wanted) => {
      reviewer.calls.push({ kind: 'review', account: account.businessAccountId, what: wanted.map(keyOf) });
      const present = templatesOf(account.businessAccountId);
      const templates = wanted.flatMap((one) => present.get(keyOf(one)) ?? []);
      await reviewer.onReview?.();
      return reviewer.delay ?? { kind: 'reviewed', templates };
    },
    editTemplate: async (account, { template, providerTemplateId, mayBeMade }) => {
      const key = keyOf(template);
      reviewer.calls.push({ kind: 'edit', account: account.businessAccountId, what: [key] });
      if (reviewer.delay !== null) return reviewer.delay;
      const present = templatesOf(account.businessAccountId).get(key);
      if (present?.providerTemplateId !== providerTemplateId)
        return { kind: 'refused', words: 'It is gone.' };
      if (mayBeMade && isDeepStrictEqual(present.template?.content, template.content))
        return { kind: 'edited', template: present };
      const mishap = reviewer.editMishaps.shift();
      if (typeof mishap === 'object') return mishap;
      if (mishap === 'lost') return { kind: 'unknown', words: 'the answer was lost' };
      reviewer.editsTaken.push(key);
      reviewer.put(account.businessAccountId, key, { state: reviewer.editedState });
      templatesOf(account.businessAccountId).get(key)!.template = template;
      await reviewer.onEdit?.();
      if (mishap === 'taken_and_lost') return { kind: 'unknown', words: 'the answer was lost' };
      return { kind: 'edited', template: { ...present, state: reviewer.editedState } };
    },
    deleteTemplate: async (account, wanted) => {
      reviewer.calls.push({ kind: 'delete', account: account.businessAccountId, what: [keyOf(wanted)] });
      if (reviewer.delay !== null) return reviewer.delay;
      templatesOf(account.businessAccountId).delete(keyOf(wanted));
      return { kind: 'gone' };
    },
    examineAccount: async (): Promise<AccountExamination> => ({
      kind: 'examined',
      numbers: [],
      peoplePerDayMax: null,
    }),
    probe: () => Promise.resolve(null),
    close: () => Promise.resolve(),
  };
  return reviewer;
}
