import {
  type ChatAppAccount,
  type ChatAppProvider,
  type ManagementDelay,
  type ReviewedTemplate,
  type SentTemplate,
  type TemplateEdit,
  type TemplateSubmission,
} from '../channels/chatapp/chatapp.ts';
import { sanitiseDiagnostic } from '../channels/diagnostic.ts';
import { dateOf, now } from '../platform/clock.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { ChoreTools, RunningChore } from '../platform/queue/chore.ts';
import { busyPauseMs, startTurns } from '../platform/queue/turns.ts';
import type { Secrets } from '../platform/secrets.ts';
import { loadChatAppAccounts, makeStandInAccount } from './account.ts';
import { setProblem } from './account-store.ts';
import { noEdit, pendingAgain } from './editing.ts';
import { endHolds } from './holding.ts';
import { endPauses, noRefusals } from './refusals.ts';
import { applyReview, nextReviewAtMs } from './review.ts';
import { isMeant, logMove, saveReview } from './reviewing.ts';
import type * as store from './store.ts';
import * as work from './work-store.ts';

/**
 * The work on templates at the provider, on any number of nodes. `next_step` says what is due:
 *
 * - `submit`: the provider does not have it. Before it is submitted, its step becomes `look_up`, and that is committed:
 *   a process that dies meanwhile, or an answer that is lost, leaves a template that may be there.
 * - `look_up`: it may be there. It is looked for by its name and language: if it is found, its review goes on; if not,
 *   it is submitted again. So a template is never submitted twice without a look in between.
 * - `review`: it is there. It is looked at again and again, since what the provider tells by itself may be lost: often
 *   while it is under review, and once a day after that (review.ts).
 * - `edit`: it is there, and is to say something else. That the edit may be made is committed before; if its answer is
 *   lost, the provider looks whether the template says so already before it edits again. What messages are made of changes
 *   with the answer.
 * - `delete`: its row was deleted, and it is to be deleted there too. One of the same name and language is not submitted
 *   before that is done.
 *
 * What an organization has to do is done one after the other, reviews first, all of which take one call. Nothing is ever
 * given up because the account is at fault: it waits, and says why. A step that is taken is due again after
 * `leaseMs`, in case that its process dies.
 *
 * The same chore ends what holds campaigns of an account (holding.ts), and what pauses templates (refusals.ts): another
 * one would need a connection of its own.
 */
export type TemplateWorkTools = ChoreTools & { secrets: Secrets; provider: ChatAppProvider };

/** Shorter than a call may take, and two nodes would make the same one; longer delays what a dead process had begun. */
const leaseMs = 5 * 60_000;

/** How many organizations are looked for at once. */
const organizationsMax = 100;
/** Organizations that are served at once: a provider takes a second for a call. More would only hold more connections. */
const atOnceMax = 10;
/** Templates that are looked at by one call. */
const reviewsMax = 100;
/** Of one organization before others get their turn. */
const submissionsMax = 5;
const deletionsMax = 20;
const editsMax = 5;

export function startTemplateWork(tools: TemplateWorkTools): RunningChore {
  const { database, clock } = tools;
  let endsAt: readonly (Date | null)[] = [];
  return startTurns(tools, {
    name: 'chat-app templates',
    topic: 'chat_templates',
    slicesMs: [null],
    organizationsMax,
    atOnceMax,
    find: async (after, limit) => {
      // Once a round.
      if (after === null)
        endsAt = [
          await endHolds(tools, { areOfAnother: !tools.provider.needsAccount }),
          await endPauses(tools),
        ];
      return work.findDueOrganizations(database, { at: now(clock), after, limit });
    },
    // Where nothing was done, another node is at it.
    work: async (organizationId, { signal }) =>
      (await serveOrganization(tools, organizationId, signal)) ? 'more' : busyPauseMs,
    findNextAt: async (after) => earliestOf([await work.findNextDueAt(database, after), ...endsAt]),
  });
}

function earliestOf(instants: readonly (Date | null)[]): Date | null {
  const known = instants.flatMap((at) => (at === null ? [] : [at.getTime()]));
  return known.length === 0 ? null : dateOf(Math.min(...known));
}

/** A turn of each organization. Returns false if nothing was done. */
export async function workOnTemplates(tools: TemplateWorkTools, signal: AbortSignal): Promise<boolean> {
  const wanted = { at: now(tools.clock), after: null, limit: organizationsMax };
  const due = await work.findDueOrganizations(tools.database, wanted);
  const served = await Promise.all(
    due.map((organizationId) => serveOrganization(tools, organizationId, signal)),
  );
  return served.includes(true);
}

/** Returns whether anything was done. */
async function serveOrganization(
  tools: TemplateWorkTools,
  organizationId: string,
  signal: AbortSignal,
): Promise<boolean> {
  const found = await findAccount(tools, organizationId);
  if ('delay' in found) {
    await delayWork(tools, organizationId, found.delay);
    return true;
  }
  const { account } = found;
  const steps = [
    () => reviewDue(tools, account),
    () => repeat(deletionsMax, signal, () => deleteNext(tools, account)),
    () => repeat(editsMax, signal, () => editNext(tools, account)),
    () => repeat(submissionsMax, signal, () => submitNext(tools, account)),
  ];
  let isAnythingDone = false;
  for (const step of steps) {
    const result = await step();
    if (result === 'delayed') return true;
    isAnythingDone ||= result === 'done';
  }
  if (isAnythingDone) await clearProblem(tools, organizationId);
  return isAnythingDone;
}

/** What came of a step: there was nothing to be done, or the provider wants to be left alone for now. */
type StepResult = 'done' | 'nothing' | 'delayed';

async function repeat(
  times: number,
  signal: AbortSignal,
  step: () => Promise<StepResult>,
): Promise<StepResult> {
  for (let done = 0; done < times; done += 1) {
    const result = signal.aborted ? 'nothing' : await step();
    if (result === 'delayed') return result;
    if (result === 'nothing') return done > 0 ? 'done' : 'nothing';
  }
  return 'done';
}

/** The operator may give the credentials at any time, which wakes the work. */
const accountRetryMs = 10 * 60_000;

async function findAccount(
  { database, secrets, clock, provider }: TemplateWorkTools,
  organizationId: string,
): Promise<{ account: ChatAppAccount } | { delay: ManagementDelay }> {
  const [loaded] = await database.asOrganizations([organizationId], (transaction) =>
    loadChatAppAccounts({ secrets, clock }, transaction, [organizationId]),
  );
  if (loaded === undefined && !provider.needsAccount) return { account: makeStandInAccount(organizationId) };
  if (loaded !== undefined && loaded.account !== 'unreadable') return { account: loaded.account };
  const words =
    loaded === undefined
      ? 'the organization has no account at the provider'
      : 'the credentials of the account cannot be read';
  return { delay: { kind: 'delayed', retryAfterMs: accountRetryMs, words, isAccountAtFault: true } };
}

/** All that is due at the provider waits for what one call came to know. */
async function delayWork(
  tools: TemplateWorkTools,
  organizationId: string,
  { retryAfterMs, words: given, isAccountAtFault }: ManagementDelay,
): Promise<void> {
  const words = sanitiseDiagnostic(given);
  const at = now(tools.clock);
  const pauseMs = Math.min(Math.max(retryAfterMs, pauseMsMin), pauseMsMax);
  await tools.database.asOrganizations([organizationId], async (transaction) => {
    await work.postponeDue(transaction, { organizationId, at, until: dateOf(at.getTime() + pauseMs), words });
    if (isAccountAtFault) await setProblem(transaction, organizationId, words);
  });
  const level = isAccountAtFault ? 'warn' : 'info';
  tools.log[level]({ organization_id: organizationId, words }, 'work on chat-app templates is delayed');
}

/** Shorter would be a flood of calls, longer would leave templates alone that could be submitted. */
const pauseMsMin = 1_000;
const pauseMsMax = 86_400_000;

/** Looks at what is due by one call. */
async function reviewDue(tools: TemplateWorkTools, account: ChatAppAccount): Promise<StepResult> {
  const { organizationId } = account;
  const at = now(tools.clock);
  const taken = await tools.database.asOrganizations([organizationId], (transaction) =>
    work.takeReviews(transaction, { organizationId, at, leaseUntil: leaseFrom(at), limit: reviewsMax }),
  );
  if (taken.length === 0) return 'nothing';
  const answer = await tools.provider.reviewTemplates(
    account,
    taken.map((row) => ({
      providerTemplateId: row.provider_template_id,
      name: row.name,
      language: row.language,
    })),
  );
  if (answer.kind === 'delayed') {
    await putBack(tools, organizationId, taken);
    await delayWork(tools, organizationId, answer);
    return 'delayed';
  }
  await settle(tools, organizationId, taken, (row, before, settledAt) => {
    const found = answer.templates.find((reviewed) => isMeant(row, reviewed));
    // Something else was told while the answer was on its way, which may be older.
    const isOvertaken = row.provider_state !== before.provider_state;
    if (found !== undefined)
      return applyReview(row, found, { at: settledAt, source: isOvertaken ? 'told' : 'asked' });
    return isOvertaken ? row : planMissing(row, settledAt);
  });
  return 'done';
}

function leaseFrom(at: Date): Date {
  return dateOf(at.getTime() + leaseMs);
}

/** A list may not show yet what was submitted just before. */
const appearsWithinMs = 60 * 60_000;

/** How long after a look that did not find a template, before the next one is believed. */
const missingReviewMs = 60_000;

/** What becomes of a template that the provider does not have. */
function planMissing(row: store.TemplateRow, at: Date): store.TemplateChange {
  if (row.next_step === 'look_up') return { ...row, next_step: 'submit', due_at: at };
  const sinceMs = at.getTime() - (row.submitted_at ?? row.created_at).getTime();
  if (row.status === 'pending' && sinceMs < appearsWithinMs)
    return applyReview(row, { ...asKnown(row), state: 'pending' }, { at, source: 'asked' });
  // A list may leave one out once. It is believed when it does so again.
  if (row.missing_since === null) {
    const due_at = dateOf(at.getTime() + missingReviewMs);
    return { ...row, missing_since: at, next_step: 'review', due_at };
  }
  return applyReview(row, { ...asKnown(row), state: 'deleted' }, { at, source: 'asked' });
}

function asKnown(row: store.TemplateRow): ReviewedTemplate {
  return {
    providerTemplateId: row.provider_template_id ?? '',
    name: row.name,
    language: row.language,
    state: null,
    category: null,
    rejectionReason: null,
    quality: null,
  };
}

/** Submits the template that is due for longest. There may be none, or none that may be submitted now. */
async function submitNext(tools: TemplateWorkTools, account: ChatAppAccount): Promise<StepResult> {
  const { organizationId } = account;
  const at = now(tools.clock);
  const taken = await tools.database.asOrganizations([organizationId], (transaction) =>
    work.takeSubmission(transaction, { organizationId, at, leaseUntil: leaseFrom(at) }),
  );
  if (taken === null) return 'nothing';
  const { name, language, category, content } = taken;
  const template: SentTemplate = { name, language, category, content };
  const outcome = await tools.provider.submitTemplate(account, template);
  await settle(tools, organizationId, [taken], (row, before, settledAt) =>
    row.provider_template_id === null ? settleSubmission(row, before, outcome, settledAt) : row,
  );
  if (outcome.kind === 'delayed') {
    await delayWork(tools, organizationId, outcome);
    return 'delayed';
  }
  return 'done';
}

/** `before` is as it was taken: whether an earlier submission may have succeeded. */
function settleSubmission(
  row: store.TemplateRow,
  before: store.TemplateRow,
  outcome: TemplateSubmission,
  at: Date,
): store.TemplateChange {
  switch (outcome.kind) {
    case 'submitted': {
      const { template, reviewedAfterMs } = outcome;
      const submitted = { ...row, submitted_at: at, problem: null, is_uncertain: false };
      return applyReview(submitted, template, { at, source: 'told', reviewedAfterMs });
    }
    case 'refused':
      return reject(row, sanitiseDiagnostic(outcome.words), at);
    case 'exists':
      // Only one of our own is taken over: another one of that name has a text that nobody here knows.
      return before.is_uncertain ? lookUpLater(row, at) : reject(row, existsWords, at);
    case 'unknown':
      return { ...lookUpLater(row, at), problem: sanitiseDiagnostic(outcome.words) };
    case 'delayed':
      // It is certainly not there if it was not before: there is nothing to be deleted.
      return row.deleted_at !== null && !before.is_uncertain
        ? { ...row, next_step: null, due_at: null, is_uncertain: false }
        : { ...row, next_step: stepOf(row, 'submit'), due_at: at, is_uncertain: before.is_uncertain };
  }
}

const existsWords =
  'The provider has a template of this name and language already. Delete it there, or choose another name.';

/** What was deleted meanwhile goes on to be deleted there. */
function stepOf(row: store.TemplateRow, step: store.NextStep): store.NextStep {
  return row.deleted_at === null ? step : 'delete';
}

function lookUpLater(row: store.TemplateRow, at: Date): store.TemplateChange {
  const nextMs = nextReviewAtMs(row.created_at.getTime(), at.getTime());
  return { ...row, next_step: stepOf(row, 'look_up'), due_at: dateOf(nextMs), is_uncertain: true };
}

function reject(row: store.TemplateRow, words: string, at: Date): store.TemplateChange {
  return {
    ...row,
    status: 'rejected',
    rejection_reason: words,
    reviewed_at: at,
    next_step: null,
    due_at: null,
    is_uncertain: false,
    problem: null,
  };
}

/** Edits the template at the provider that is due for longest. */
async function editNext(tools: TemplateWorkTools, account: ChatAppAccount): Promise<StepResult> {
  const { organizationId } = account;
  const at = now(tools.clock);
  const taken = await tools.database.asOrganizations([organizationId], (transaction) =>
    work.takeEdit(transaction, { organizationId, at, leaseUntil: leaseFrom(at) }),
  );
  if (taken === null) return 'nothing';
  const { name, language, category, provider_template_id: providerTemplateId } = taken;
  const { edited_content: content, is_edit_uncertain: mayBeMade } = taken;
  const outcome: TemplateEdit =
    content === null || providerTemplateId === null
      ? { kind: 'refused', words: 'The provider does not have the template.' }
      : await tools.provider.editTemplate(account, {
          providerTemplateId,
          template: { name, language, category, content },
          mayBeMade,
        });
  await settle(tools, organizationId, [taken], (row, before, settledAt) =>
    row.edited_content === null ? row : settleEdit(row, before, outcome, settledAt),
  );
  if (outcome.kind === 'delayed') {
    await delayWork(tools, organizationId, outcome);
    return 'delayed';
  }
  return 'done';
}

/** `before` is as it was taken: whether an earlier edit may have been made. */
function settleEdit(
  row: store.TemplateRow,
  before: store.TemplateRow,
  outcome: TemplateEdit,
  at: Date,
): store.TemplateChange {
  switch (outcome.kind) {
    case 'edited':
      return settleMadeEdit(row, outcome, at);
    case 'refused':
      return settleRefusedEdit(row, sanitiseDiagnostic(outcome.words), at);
    case 'unknown':
      return {
        ...row,
        next_step: 'edit',
        due_at: dateOf(nextReviewAtMs(row.updated_at.getTime(), at.getTime())),
        problem: sanitiseDiagnostic(outcome.words),
      };
    case 'delayed':
      return { ...row, next_step: 'edit', due_at: at, is_edit_uncertain: before.is_edit_uncertain };
  }
}

/** How long after an edit it is looked at again: what is read at once may be how it was before. */
const editedReviewMs = 60_000;
/** The provider counts no more of them. */
const editsKept = 10;

/** The review of the new text begins, or is over at once. */
function settleMadeEdit(
  row: store.TemplateRow,
  { template, reviewedAfterMs }: Extract<TemplateEdit, { kind: 'edited' }>,
  at: Date,
): store.TemplateChange {
  const wasApproved = row.status === 'approved' && row.provider_state === 'approved';
  const edited: store.TemplateRow = {
    ...row,
    ...noEdit,
    ...noRefusals,
    content: row.edited_content ?? row.content,
    edited_at: at,
    edits: wasApproved ? [...row.edits, at].slice(-editsKept) : row.edits,
    ...pendingAgain,
    provider_state: 'pending',
    submitted_at: at,
    problem: null,
    // A simulated review has another id each time.
    provider_template_id: template.providerTemplateId,
  };
  const after = applyReview(edited, template, { at, source: 'asked', reviewedAfterMs });
  const soonMs = at.getTime() + editedReviewMs;
  return {
    ...after,
    next_step: 'review',
    due_at: dateOf(Math.min(after.due_at?.getTime() ?? soonMs, soonMs)),
  };
}

/** One that was approved is as it was before; one that was rejected is rejected again. */
function settleRefusedEdit(row: store.TemplateRow, words: string, at: Date): store.TemplateChange {
  if (row.status === 'pending') return { ...reject(row, words, at), ...noEdit };
  const due_at = dateOf(at.getTime() + editedReviewMs);
  return { ...row, ...noEdit, edit_refusal: words, problem: null, next_step: 'review', due_at };
}

/** Deletes the template at the provider that is due for longest. */
async function deleteNext(tools: TemplateWorkTools, account: ChatAppAccount): Promise<StepResult> {
  const { organizationId } = account;
  const at = now(tools.clock);
  const taken = await tools.database.asOrganizations([organizationId], (transaction) =>
    work.takeDeletion(transaction, { organizationId, at, leaseUntil: leaseFrom(at) }),
  );
  if (taken === null) return 'nothing';
  const { provider_template_id: providerTemplateId, name, language } = taken;
  const outcome = await tools.provider.deleteTemplate(account, { providerTemplateId, name, language });
  if (outcome.kind === 'delayed') {
    await putBack(tools, organizationId, [taken]);
    await delayWork(tools, organizationId, outcome);
    return 'delayed';
  }
  await settle(tools, organizationId, [taken], (row) => ({
    ...row,
    provider_state: 'deleted',
    next_step: null,
    due_at: null,
    is_uncertain: false,
    problem: null,
  }));
  return 'done';
}

/** What was taken and could not be done is due as before. */
async function putBack(
  tools: TemplateWorkTools,
  organizationId: string,
  taken: readonly store.TemplateRow[],
): Promise<void> {
  await settle(tools, organizationId, taken, (row, before) =>
    row.next_step === null ? row : { ...row, due_at: before.due_at },
  );
}

/** Writes what became of templates over what they are by now. */
async function settle(
  tools: TemplateWorkTools,
  organizationId: string,
  taken: readonly store.TemplateRow[],
  decide: (row: store.TemplateRow, before: store.TemplateRow, at: Date) => store.TemplateChange,
): Promise<void> {
  await tools.database.asOrganizations([organizationId], async (transaction: Transaction) => {
    const at = now(tools.clock);
    const rows = await work.lockTemplates(
      transaction,
      organizationId,
      taken.map(({ id }) => id),
    );
    for (const row of rows) {
      const before = taken.find(({ id }) => id === row.id);
      if (before === undefined) throw new Error('a template is locked that was not asked for');
      const change = decide(row, before, at);
      await saveReview(transaction, row, change, at);
      logMove(tools.log, row, change);
    }
  });
}

/** The account works again. */
async function clearProblem(tools: TemplateWorkTools, organizationId: string): Promise<void> {
  await tools.database.asOrganizations([organizationId], (transaction) =>
    setProblem(transaction, organizationId, null),
  );
}
