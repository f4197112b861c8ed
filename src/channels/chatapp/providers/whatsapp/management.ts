import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';
import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type {
  ChatAppAccount,
  ChatAppProvider,
  ManagementDelay,
  ReviewedTemplate,
  SentTemplate,
  TemplateEdit,
  TemplateSubmission,
  WantedTemplate,
} from '../../provider.ts';
import { waitOf } from '../../../retry-after.ts';
import { findProblem } from './account.ts';
import { describeError, meaningOf } from './answers.ts';
import { type Asked, type Graph, type GraphRequest, isGraphId } from './graph.ts';
import { type GraphError, readGraphBody, regainAccessMsOf, usedShareOf } from './graph-body.ts';
import { idOf, listOf, objectOf, textOf } from './json.ts';
import { composeEdit, composeTemplate, saysTheSame } from './template-body.ts';
import { readCategory, readState, readTemplate } from './template-words.ts';

/**
 * Templates as they are submitted, followed and deleted. All of it can wait: an account that has used four fifths of
 * its calls is left alone for a while, so that the last fifth is there for what people do by hand.
 */
export type Management = {
  submit: ChatAppProvider['submitTemplate'];
  review: ChatAppProvider['reviewTemplates'];
  edit: ChatAppProvider['editTemplate'];
  delete: ChatAppProvider['deleteTemplate'];
};

const usedShareMax = 0.8;
const usedPauseMs = 300_000;
/** The calls of an account are counted over an hour. */
const pausedAccountsMax = 10_000;

/** Where nothing else is said. */
const delayMs = 60_000;
/** Until somebody may have mended an account. */
const accountDelayMs = 600_000;

const templateFields = 'id,name,language,status,category,rejected_reason,quality_score';
/** More would not fit into what is read of an answer. */
const pageLength = 50;
/** As many templates as an account may have: 6,000. */
const pagesMax = 121;

/** Subcodes of a refused submission: it exists already, and there are too many. */
const existsSubcodes: readonly (number | null)[] = [2_388_023, 2_388_024];
const limitSubcodes: readonly (number | null)[] = [2_388_019];

type Tools = { clock: Clock; graph: Graph };

export function createManagement({ clock, graph }: Tools): Management {
  const pausedUntilMs = new LRUCache<string, number>({ max: pausedAccountsMax });

  /** Asks if the account may be asked now. */
  const ask = async (
    { businessAccountId, accessToken }: ChatAppAccount,
    request: Omit<GraphRequest, 'accessToken'>,
    body?: string,
  ): Promise<Asked | ManagementDelay> => {
    if (!isGraphId(businessAccountId)) return delay('The id of the account is none.', accountDelayMs, true);
    const waitMs = (pausedUntilMs.get(businessAccountId) ?? -Infinity) - clock.monotonicMs();
    if (waitMs > 0) return delay('The account has used up most of its requests', waitMs, false);
    const asked = await graph.ask({ ...request, accessToken }, body);
    const pauseMs = asked.kind === 'answered' ? pauseOf(asked) : 0;
    if (pauseMs > 0) pausedUntilMs.set(businessAccountId, clock.monotonicMs() + pauseMs);
    return asked;
  };

  /** Goes through the account's templates until all that are wanted are found. Ends with the last page. */
  const review = async (
    account: ChatAppAccount,
    wanted: readonly WantedTemplate[],
  ): Promise<Awaited<ReturnType<ChatAppProvider['reviewTemplates']>>> => {
    const search = createSearch(wanted);
    let after: string | null = null;
    for (let page = 0; page < pagesMax && !search.isComplete(); page += 1) {
      const query = new URLSearchParams({
        fields: templateFields,
        limit: String(pageLength),
        ...(search.name !== null && { name: search.name }),
        ...(after !== null && { after }),
      });
      const path = `${account.businessAccountId}/message_templates?${query.toString()}`;
      const asked = await ask(account, { method: 'GET', path });
      if (asked.kind === 'delayed') return asked;
      const delayed = delayOf(asked);
      if (delayed !== null || asked.kind !== 'answered') return delayed ?? delay('', delayMs, false);
      const { json } = readGraphBody(asked);
      const items = listOf(json.data);
      for (const item of items) search.offer(readTemplate(objectOf(item)));
      after = textOf(objectOf(objectOf(json.paging).cursors).after);
      if (after === null || after.length > 1_000 || items.length === 0) break;
    }
    return { kind: 'reviewed', templates: search.found() };
  };

  /** One template, and whether it says this; null if it is not there. */
  const read = async (
    account: ChatAppAccount,
    { providerTemplateId, template: { content } }: Edit,
  ): Promise<{ reviewed: ReviewedTemplate; isSame: boolean } | null | ManagementDelay> => {
    const path = `${providerTemplateId}?fields=${templateFields},components`;
    const asked = await ask(account, { method: 'GET', path });
    if (asked.kind === 'delayed') return asked;
    if (isMissing(asked)) return null;
    const delayed = delayOf(asked);
    if (delayed !== null || asked.kind !== 'answered') return delayed ?? delay('', delayMs, false);
    const { json } = readGraphBody(asked);
    const reviewed = readTemplate(json);
    return reviewed && { reviewed, isSame: saysTheSame(json.components, content) };
  };

  const edit = async (account: ChatAppAccount, wanted: Edit): Promise<TemplateEdit> => {
    const { providerTemplateId, template, mayBeMade } = wanted;
    if (!isGraphId(providerTemplateId)) return missing;
    if (mayBeMade) {
      const before = await read(account, wanted);
      if (before === null) return missing;
      if ('kind' in before) return before;
      if (before.isSame) return { kind: 'edited', template: afterEdit(before.reviewed) };
    }
    const asked = await ask(account, { method: 'POST', path: providerTemplateId }, composeEdit(template));
    if (asked.kind === 'delayed') return asked;
    const outcome = editOf(asked);
    if (outcome !== 'made') return outcome;
    const after = await read(account, wanted);
    const isRead = after !== null && !('kind' in after);
    const { name, language } = template;
    const unread = { providerTemplateId, name, language, category: null, quality: null };
    return {
      kind: 'edited',
      template: isRead
        ? afterEdit(after.reviewed)
        : { ...unread, state: 'pending' as const, rejectionReason: null },
    };
  };

  return {
    submit: async (account, template) => {
      const path = `${account.businessAccountId}/message_templates`;
      const asked = await ask(account, { method: 'POST', path }, composeTemplate(template));
      return asked.kind === 'delayed' ? asked : submissionOf(asked, template);
    },
    edit,
    review: (account, wanted) => (wanted.length === 0 ? reviewedNothing : review(account, wanted)),
    delete: async (account, wanted) => {
      const reviewed = await review(account, [wanted]);
      if (reviewed.kind === 'delayed') return reviewed;
      const [template] = reviewed.templates;
      if (template === undefined || template.state === 'deleted') return { kind: 'gone' };
      // Without the id, the name would go in all of its languages.
      const query = new URLSearchParams({ name: template.name, hsm_id: template.providerTemplateId });
      const path = `${account.businessAccountId}/message_templates?${query.toString()}`;
      const asked = await ask(account, { method: 'DELETE', path });
      if (asked.kind === 'delayed') return asked;
      // What is asked for again finds out whether it was deleted.
      return delayOf(asked) ?? { kind: 'gone' };
    },
  };
}

type Edit = Parameters<ChatAppProvider['editTemplate']>[1];

const missing: Extract<TemplateEdit, { kind: 'refused' }> = {
  kind: 'refused',
  words: 'The template is not at the provider any more.',
};

/** What Graph says of an id that is nobody's, or that the access token must not see. */
function isMissing(asked: Asked): boolean {
  if (asked.kind !== 'answered' || asked.status < 400) return false;
  const { error } = readGraphBody(asked);
  return asked.status === 404 || (error.code === 100 && error.subcode === 33);
}

/** A rejection that is read right after an edit is the one before it: the review of the new text has hardly begun. */
function afterEdit(reviewed: ReviewedTemplate): ReviewedTemplate {
  return reviewed.state === 'rejected'
    ? { ...reviewed, state: 'pending', rejectionReason: null }
    : { ...reviewed, state: reviewed.state ?? 'pending' };
}

function editOf(asked: Asked): 'made' | Exclude<TemplateEdit, { kind: 'edited' }> {
  if (asked.kind !== 'answered') return undecided(asked);
  const { json, error } = readGraphBody(asked);
  if (asked.status >= 200 && asked.status < 300)
    return json.success === true ? 'made' : { kind: 'unknown', words: 'an answer that does not say success' };
  if (isMissing(asked)) return missing;
  const refusal = submissionOfRefusal(asked, error);
  // Nothing new is made by an edit, which could be there already.
  return refusal.kind === 'exists' || refusal.kind === 'submitted'
    ? { kind: 'refused', words: wordsForAuthor(error) }
    : refusal;
}

const reviewedNothing = Promise.resolve({ kind: 'reviewed', templates: [] } as const);

function delay(words: string, retryAfterMs: number, isAccountAtFault: boolean): ManagementDelay {
  return { kind: 'delayed', words: sanitiseDiagnostic(words), retryAfterMs, isAccountAtFault };
}

function pauseOf({ headers }: Extract<Asked, { kind: 'answered' }>): number {
  const regainMs = regainAccessMsOf(headers);
  if (regainMs !== undefined) return regainMs;
  return usedShareOf(headers) >= usedShareMax ? usedPauseMs : 0;
}

/** Null if the question was answered. */
function delayOf(asked: Asked): ManagementDelay | null {
  const problem = findProblem(asked);
  if (problem === null) return null;
  const { words, isAccountAtFault } = problem;
  return delay(words, waitMsOf(asked, isAccountAtFault ? accountDelayMs : delayMs), isAccountAtFault);
}

function waitMsOf(asked: Asked, otherwiseMs: number): number {
  if (asked.kind !== 'answered') return otherwiseMs;
  return waitOf(asked.headers['retry-after']).retryAfterMs ?? regainAccessMsOf(asked.headers) ?? otherwiseMs;
}

function undecided(
  asked: Exclude<Asked, { kind: 'answered' }>,
): ManagementDelay | { kind: 'unknown'; words: string } {
  if (asked.kind === 'unanswered') return { kind: 'unknown', words: sanitiseDiagnostic(asked.detail) };
  return delay(asked.detail, delayMs, false);
}

function submissionOf(asked: Asked, { name, language, category }: SentTemplate): TemplateSubmission {
  if (asked.kind !== 'answered') return undecided(asked);
  const { json, error } = readGraphBody(asked);
  if (asked.status >= 200 && asked.status < 300) {
    const providerTemplateId = idOf(json.id);
    if (providerTemplateId === null) return { kind: 'unknown', words: 'an answer that names no template' };
    const answer = {
      // Taken, and nothing is known of its review.
      state: readState(json.status) ?? 'pending',
      category: readCategory(json.category) ?? category,
      rejectionReason: null,
      quality: null,
    } as const;
    return { kind: 'submitted', template: { providerTemplateId, name, language, ...answer } };
  }
  return submissionOfRefusal(asked, error);
}

function submissionOfRefusal(
  asked: Extract<Asked, { kind: 'answered' }>,
  error: GraphError,
): TemplateSubmission {
  if (existsSubcodes.includes(error.subcode)) return { kind: 'exists' };
  const words = wordsForAuthor(error) || `HTTP status ${asked.status}`;
  if (limitSubcodes.includes(error.subcode)) return delay(words, accountDelayMs, true);
  const meaning = meaningOf(error);
  const isAccountAtFault = meaning?.kind === 'unavailable' && meaning.failure === 'sender_rejected';
  if (isAccountAtFault) return delay(words, waitMsOf(asked, accountDelayMs), true);
  const isTooMuch = asked.status === 429 || meaning?.kind === 'postponed';
  if (isTooMuch) return delay(words, waitMsOf(asked, delayMs), false);
  // Graph may have failed after it stored the template.
  if (asked.status >= 500 || meaning?.kind === 'unavailable' || error.isTransient)
    return { kind: 'unknown', words };
  // Without a code, it was not Graph who refused.
  return error.code === null ? delay(words, delayMs, false) : { kind: 'refused', words };
}

/** The only reason that there is of a refusal: Graph writes it for those who write templates. */
function wordsForAuthor(error: GraphError): string {
  const written = [error.userTitle, error.userMessage].filter((words) => words !== null && words !== '');
  return sanitiseDiagnostic(written.join(': ')) || describeError(error);
}

/** Finds templates by their ids; those without an id by name and language. */
function createSearch(wanted: readonly WantedTemplate[]) {
  const keyOf = ({ name, language }: { name: string; language: string }) => JSON.stringify([name, language]);
  const left = new Set(wanted.map((template) => template.providerTemplateId ?? keyOf(template)));
  const isWanted = new Set(left);
  const found = new Map<string, ReviewedTemplate>();
  const names = new Set(wanted.map(({ name }) => name));
  return {
    /** Where all have the same, so that the others need not be read. */
    name: names.size === 1 ? ([...names][0] ?? null) : null,
    isComplete: () => left.size === 0,
    offer: (template: ReviewedTemplate | null) => {
      if (template === null) return;
      const { providerTemplateId: id, state } = template;
      const key = isWanted.has(id) ? id : keyOf(template);
      if (!isWanted.has(key)) return;
      // The name of one that was deleted may be there once more, alive, on a page that is still to come.
      if (key === id || state !== 'deleted') left.delete(key);
      else if (found.has(key)) return;
      found.set(key, template);
    },
    found: () => [...found.values()],
  };
}
