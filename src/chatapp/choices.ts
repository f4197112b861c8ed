import {
  addSuppressions,
  findConsentHolder,
  readSuppression,
  setConsent,
  type SuppressionTools,
  takeBackOptOut,
} from '../audience/audience.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import { type Connection, type Transaction, unpreparedStatement } from '../platform/postgres/database.ts';

/**
 * What a person chooses in the chat app. STOP opts the number out of everything, as with texts, and START takes that back.
 * What the app itself offers is against marketing alone: it withdraws the consent of the contact, which campaigns ask
 * for, and to resume gives it back only if nothing but this had withdrawn it.
 *
 * Choices are told late, twice and in any order, so that each has the time at which it was made: an older one than what
 * is stored changes nothing.
 */
export type ChoiceTools = SuppressionTools & ConsentTools;

type ConsentTools = { clock: Clock; newId: NewId };

export type Choice = {
  organizationId: string;
  /** E.164. */
  address: string;
  subject: 'all' | 'marketing';
  choice: 'stop' | 'start';
  at: Date;
};

/** Behind the wall of the organization. Returns whether a contact has changed. */
export async function makeChoice(
  transaction: Transaction,
  tools: ChoiceTools,
  choice: Choice,
): Promise<boolean> {
  const before = await lockChoice(transaction, choice);
  if (before !== null && before.chosen_at >= choice.at) return false;
  return choice.subject === 'all'
    ? obeyKeyword(transaction, tools, choice)
    : obeyPreference(transaction, tools, choice, before?.withdrew_consent ?? false);
}

async function obeyKeyword(transaction: Transaction, tools: ChoiceTools, choice: Choice): Promise<boolean> {
  const { organizationId, address } = choice;
  const number = { organizationId, address };
  if (choice.choice === 'stop')
    await addSuppressions(transaction, tools, 'chatapp', [{ ...number, reason: 'unsubscribe' }]);
  else await takeBackOptOut(transaction, tools, 'chatapp', number);
  const consent = choice.choice === 'stop' ? 'unsubscribed' : 'subscribed';
  const hasChanged = await changeConsent(transaction, tools, number, consent);
  await saveChoice(transaction, choice, false);
  return hasChanged;
}

async function obeyPreference(
  transaction: Transaction,
  tools: ChoiceTools,
  choice: Choice,
  hadWithdrawn: boolean,
): Promise<boolean> {
  const { organizationId, address } = choice;
  const number = { organizationId, address };
  let hasChanged = false;
  if (choice.choice === 'stop') hasChanged = await changeConsent(transaction, tools, number, 'unsubscribed');
  else if (hadWithdrawn && !(await hasSaidStop(transaction, tools, number)))
    hasChanged = await changeConsent(transaction, tools, number, 'subscribed');
  await saveChoice(transaction, choice, choice.choice === 'stop' && (hasChanged || hadWithdrawn));
  return hasChanged;
}

type Address = { organizationId: string; address: string };

async function hasSaidStop(transaction: Transaction, tools: ChoiceTools, number: Address): Promise<boolean> {
  const suppression = await readSuppression(transaction, tools, 'chatapp', number);
  return (suppression?.optedOutAt ?? null) !== null;
}

async function changeConsent(
  transaction: Transaction,
  { clock, newId }: ConsentTools,
  { organizationId, address }: Address,
  consent: 'subscribed' | 'unsubscribed',
): Promise<boolean> {
  const holder = await findConsentHolder(transaction, 'chatapp', { organizationId, addressKey: address });
  if (holder === null) return false;
  const change = { channel: 'chatapp', consent, at: now(clock) } as const;
  return (await setConsent({ transaction, newId }, holder.contact, change)) === 'changed';
}

/** As a refusal says that a person has done at some time. Behind the wall of the organization. */
export async function stopMarketing(
  transaction: Transaction,
  tools: ConsentTools,
  number: Address,
): Promise<boolean> {
  const at = now(tools.clock);
  const choice: Choice = { ...number, subject: 'marketing', choice: 'stop', at };
  const before = await lockChoice(transaction, choice);
  const hasChanged = await changeConsent(transaction, tools, number, 'unsubscribed');
  await saveChoice(transaction, choice, hasChanged || (before?.withdrew_consent ?? false));
  return hasChanged;
}

/** Carries what was said from a number to the next one of the same person. */
export async function moveChoices(
  transaction: Transaction,
  tools: ChoiceTools,
  { organizationId, from, to, at }: { organizationId: string; from: string; to: string; at: Date },
): Promise<boolean> {
  if (from === to || !(await hasSaidStop(transaction, tools, { organizationId, address: from })))
    return false;
  return makeChoice(transaction, tools, { organizationId, address: to, subject: 'all', choice: 'stop', at });
}

/** Whether the last that a person has set in the app itself is that they want no marketing. Behind the wall. */
export async function hasStoppedMarketing(
  connection: Connection,
  { organizationId, address }: Address,
): Promise<boolean> {
  const [row] = await connection.rows(
    unpreparedStatement<{ choice: 'stop' | 'start' }>(
      `select choice
       from chat_app_choices
       where organization_id = $1 and address = $2 and subject = 'marketing'`,
    ),
    [organizationId, address],
  );
  return row?.choice === 'stop';
}

type ChoiceRow = { chosen_at: Date; withdrew_consent: boolean };

async function lockChoice(connection: Connection, choice: Choice): Promise<ChoiceRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ChoiceRow>(
      `select chosen_at, withdrew_consent
       from chat_app_choices
       where organization_id = $1 and address = $2 and subject = $3
       for update`,
    ),
    [choice.organizationId, choice.address, choice.subject],
  );
  return row ?? null;
}

/** After the consent: what changes that forgets who had withdrawn it. */
async function saveChoice(connection: Connection, choice: Choice, withdrewConsent: boolean): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into chat_app_choices (organization_id, address, subject, choice, chosen_at, withdrew_consent)
       values ($1, $2, $3, $4, $5, $6)
       on conflict (organization_id, address, subject) do update
       set choice = excluded.choice, chosen_at = excluded.chosen_at, withdrew_consent = excluded.withdrew_consent`,
    ),
    [choice.organizationId, choice.address, choice.subject, choice.choice, choice.at, withdrewConsent],
  );
}
