import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

export type Choice = {
  organizationId: string;
  /** E.164. */
  address: string;
  subject: 'all' | 'marketing';
  choice: 'stop' | 'start';
  at: Date;
};

export type ChosenAddress = { organizationId: string; address: string };

/** Whether the last that a person has set in the app itself is that they want no marketing. Behind the wall. */
export async function hasStoppedMarketing(
  connection: Connection,
  { organizationId, address }: ChosenAddress,
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

/** What was said last on the subject; null if nothing was. */
export async function lockChoice(
  connection: Connection,
  choice: Choice,
): Promise<{ chosenAt: Date; withdrewConsent: boolean } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ChoiceRow>(
      `select chosen_at, withdrew_consent
       from chat_app_choices
       where organization_id = $1 and address = $2 and subject = $3
       for update`,
    ),
    [choice.organizationId, choice.address, choice.subject],
  );
  return row === undefined ? null : { chosenAt: row.chosen_at, withdrewConsent: row.withdrew_consent };
}

/** After the consent: what changes that forgets who had withdrawn it. */
export async function saveChoice(
  connection: Connection,
  choice: Choice,
  withdrewConsent: boolean,
): Promise<void> {
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
