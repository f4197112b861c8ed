import {
  findOptOuts,
  hasOptedInSince,
  hasOptedOutOfChannel,
  optIn,
  optOut,
  type OptOutTools,
} from '../audience/audience.ts';
import { now } from '../platform/clock.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { type Choice, type ChosenAddress, lockChoice, saveChoice } from './choice-store.ts';

/**
 * What a person chooses in the chat app. STOP opts the number out of everything, as with texts, and START takes that back.
 * What the app itself offers is against marketing alone: it opts the number out of campaigns, and to resume takes that
 * back only if nothing but this had withdrawn the consent.
 *
 * Choices are told late, twice and in any order, so that each has the time at which it was made: an older one than what
 * is stored changes nothing.
 */
export type ChoiceTools = OptOutTools;

/** A keyword that was texted, or what was set in the app, which is told in the same way. */
const source = { type: 'reply', id: null } as const;

/** Behind the wall of the organization. Returns whether a contact has changed. */
export async function makeChoice(
  transaction: Transaction,
  tools: ChoiceTools,
  choice: Choice,
): Promise<boolean> {
  const before = await lockChoice(transaction, choice);
  if (before !== null && before.chosenAt >= choice.at) return false;
  return choice.subject === 'all'
    ? obeyKeyword(transaction, tools, choice)
    : obeyPreference(transaction, tools, choice, before?.withdrewConsent ?? false);
}

async function obeyKeyword(transaction: Transaction, tools: ChoiceTools, choice: Choice): Promise<boolean> {
  const { organizationId, address, at } = choice;
  const number = { organizationId, address };
  const contact =
    choice.choice === 'stop'
      ? await optOut(transaction, tools, 'chatapp', number, { scope: 'all', source, at })
      : // What a deletion has forgotten of the times of choices, the opt-out itself still knows.
        (await optIn(transaction, tools, 'chatapp', number, { saidUntil: at })).contact;
  await saveChoice(transaction, choice, false);
  return contact === 'changed';
}

async function obeyPreference(
  transaction: Transaction,
  tools: ChoiceTools,
  choice: Choice,
  hadWithdrawn: boolean,
): Promise<boolean> {
  const { organizationId, address, at } = choice;
  const number = { organizationId, address };
  if (choice.choice === 'stop') return withdraw(transaction, tools, choice, hadWithdrawn);
  const isResumed = hadWithdrawn && !(await hasOptedOutOfChannel(transaction, tools, 'chatapp', number));
  const hasChanged =
    isResumed &&
    (await optIn(transaction, tools, 'chatapp', number, { saidUntil: at })).contact === 'changed';
  await saveChoice(transaction, choice, false);
  return hasChanged;
}

/** Nothing else had withdrawn the consent if no opt-out was there before. */
async function withdraw(
  transaction: Transaction,
  tools: ChoiceTools,
  choice: Choice,
  hadWithdrawn: boolean,
): Promise<boolean> {
  const { organizationId, address, at } = choice;
  const number = { organizationId, address };
  const before = await findOptOuts(transaction, tools, [{ ...number, channel: 'chatapp' }]);
  const contact = await optOut(transaction, tools, 'chatapp', number, { scope: 'marketing', source, at });
  await saveChoice(transaction, choice, hadWithdrawn || before.size === 0);
  return contact === 'changed';
}

/**
 * As the refusal of a message that was sent at `sentAt`, or just now, says that a person has done before: what the person, or
 * the organization for them, has said since then stands. Behind the wall of the organization.
 */
export async function stopMarketing(
  transaction: Transaction,
  tools: ChoiceTools,
  { sentAt, ...number }: ChosenAddress & { sentAt: Date | null },
): Promise<boolean> {
  const at = sentAt ?? now(tools.clock);
  const choice: Choice = { ...number, subject: 'marketing', choice: 'stop', at };
  const before = await lockChoice(transaction, choice);
  if (before !== null && before.chosenAt >= at) return false;
  if (sentAt !== null && (await hasOptedInSince(transaction, tools, 'chatapp', number, sentAt))) return false;
  return withdraw(transaction, tools, choice, before?.withdrewConsent ?? false);
}

/** Carries what was said from a number to the next one of the same person. */
export async function moveChoices(
  transaction: Transaction,
  tools: ChoiceTools,
  { organizationId, from, to, at }: { organizationId: string; from: string; to: string; at: Date },
): Promise<boolean> {
  if (from === to) return false;
  const old = { organizationId, address: from };
  const optedOut = await findOptOuts(transaction, tools, [{ ...old, channel: 'chatapp' }]);
  if (optedOut.size === 0) return false;
  const subject = (await hasOptedOutOfChannel(transaction, tools, 'chatapp', old)) ? 'all' : 'marketing';
  return makeChoice(transaction, tools, { organizationId, address: to, subject, choice: 'stop', at });
}
