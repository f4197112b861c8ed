import { beforeAll, beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { createOrganization, loadSendingPlans, updateOrganization } from '../../accounts/accounts.ts';
import { now } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Log, silentLog } from '../../platform/log.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { countFates, forgiveReputation, judgeReputation } from './reputation.ts';
import { findSuspension } from '../refusals.ts';
import type { RecipientStatus } from '../schema.ts';
import { emailChannel } from '../../email/channel.ts';
import type { Failure } from './store.ts';

let database: Database;
let clock: ManualClock;
let organizationId: string;
let warnings: string[];

const hourMs = 3_600_000;
const newIdOf = () => createIds(clock);
const log: Log = {
  ...silentLog,
  warn: (_context: unknown, message?: string) => {
    warnings.push(message ?? '');
  },
};

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  clock = createManualClock(Date.parse('2026-11-21T10:30:00.000Z'));
});
beforeEach(async () => {
  warnings = [];
  organizationId = (await createOrganization({ database, clock, newId: newIdOf() }, 'Test organization')).id;
});

const hardBounce: Failure = {
  type: 'hard',
  class: 'mailbox_not_found',
  smtpCode: 550,
  enhancedCode: '5.1.1',
  diagnostic: 'No such user',
  remote: null,
};

type Fate = { status: RecipientStatus; failure?: Failure; wasHandedOff?: boolean };

function count(fate: Fate, times: number): Promise<void> {
  const fates = Array.from({ length: times }, (_, ordinal) => ({
    job: { organizationId, messageId: '01934c1e-9f3a-7cc0-8b1a-0123456789ab', ordinal },
    addressKey: 'ann@example.com',
    status: fate.status,
    failure: fate.failure ?? null,
    wasHandedOff: fate.wasHandedOff ?? true,
  }));
  return database.transaction((transaction) =>
    countFates(transaction, { clock, log, random: Math.random }, emailChannel, fates),
  );
}

async function isSuspended(): Promise<boolean> {
  const [plan] = await loadSendingPlans(database, [organizationId], 'email');
  return plan!.isSuspended;
}

test.each([
  [{ sent: 499, bounced: 499, complained: 499 }, 'good'],
  [{ sent: 500, bounced: 25, complained: 0 }, 'good'],
  [{ sent: 500, bounced: 26, complained: 0 }, 'warn'],
  [{ sent: 500, bounced: 50, complained: 0 }, 'warn'],
  [{ sent: 500, bounced: 51, complained: 0 }, 'suspend'],
  [{ sent: 1_000, bounced: 0, complained: 1 }, 'good'],
  [{ sent: 1_000, bounced: 0, complained: 2 }, 'warn'],
  [{ sent: 1_000, bounced: 0, complained: 5 }, 'warn'],
  [{ sent: 1_000, bounced: 0, complained: 6 }, 'suspend'],
] as const)('%j is %s', (day, verdict) => {
  expect(judgeReputation(day)).toBe(verdict);
});

test('bounces past a tenth of a day suspend the organization, with a warning on the way', async () => {
  await count({ status: 'delivered' }, 960);
  await count({ status: 'bounced', failure: hardBounce }, 40);
  expect([await isSuspended(), warnings]).toEqual([false, []]);
  await count({ status: 'bounced', failure: hardBounce }, 20);
  await count({ status: 'bounced', failure: hardBounce }, 5);
  expect([await isSuspended(), warnings.length]).toEqual([false, 1]);
  await count({ status: 'bounced', failure: hardBounce }, 60);
  expect([await isSuspended(), warnings.length]).toEqual([true, 2]);
});

test('whoever is suspended is told by whom, with what was seen, until the operator takes it into their own hands', async () => {
  const refusal = async () => {
    const [plan] = await loadSendingPlans(database, [organizationId], 'email');
    return findSuspension(emailChannel.words, plan)?.message;
  };
  expect(await refusal()).toBeUndefined();
  await count({ status: 'delivered' }, 1_400);
  await count({ status: 'complained', wasHandedOff: false }, 1);
  await count({ status: 'bounced', failure: hardBounce }, 161);
  expect(await refusal()).toBe(
    `Sending email is suspended for this organization by the reputation guard, since ${now(clock).toISOString()}: ` +
      'of 1,561 emails within a day 161 (10.31 %) went to addresses that do not exist, and 1 (0.06 %) brought a ' +
      'complaint; the limits are 10 % and 0.5 %. Remove such addresses, then ask the operator to lift it.',
  );
  const tools = { database, clock, newId: newIdOf() };
  const byOperator =
    'Sending email is suspended for this organization by the operator. Ask the operator to lift it.';
  await updateOrganization(tools, organizationId, { suspend: ['sms'] });
  expect(await refusal()).not.toBe(byOperator);
  await updateOrganization(tools, organizationId, { suspend: ['email'] });
  expect(await refusal()).toBe(byOperator);
  await updateOrganization(tools, organizationId, { resume: ['email'] });
  expect(await refusal()).toBeUndefined();
});

test('complaints count against what was handed off before', async () => {
  await count({ status: 'delivered' }, 1_000);
  await count({ status: 'complained', wasHandedOff: false }, 5);
  expect(await isSuspended()).toBe(false);
  await count({ status: 'complained', wasHandedOff: false }, 1);
  expect(await isSuspended()).toBe(true);
});

test('a full mailbox, and a message that was refused for what it is, are nobody to be suspended for', async () => {
  await count({ status: 'bounced', failure: { ...hardBounce, type: 'soft', class: 'mailbox_full' } }, 600);
  await count({ status: 'failed', failure: { ...hardBounce, type: 'soft', class: 'spam' } }, 600);
  expect(await isSuspended()).toBe(false);
});

test('what lies more than a day back is forgotten', async () => {
  await count({ status: 'bounced', failure: hardBounce }, 499);
  clock.advance(25 * hourMs);
  await count({ status: 'delivered' }, 500);
  await count({ status: 'bounced', failure: hardBounce }, 1);
  expect(await isSuspended()).toBe(false);
});

test('what lies less than a day back is not', async () => {
  await count({ status: 'bounced', failure: hardBounce }, 499);
  clock.advance(23 * hourMs);
  await count({ status: 'bounced', failure: hardBounce }, 1);
  expect(await isSuspended()).toBe(true);
});

test('hours are those of UTC, whatever the zone of the session', async () => {
  await count({ status: 'delivered' }, 1);
  const hours = await database.rows(
    unpreparedStatement<{ hour: Date }>('select hour from reputation_counts where organization_id = $1'),
    [organizationId],
  );
  expect(hours.map(({ hour }) => hour.getTime() % hourMs)).toEqual([0]);
});

test('the operator can lift it, and the count begins anew', async () => {
  await count({ status: 'bounced', failure: hardBounce }, 600);
  expect(await isSuspended()).toBe(true);
  await updateOrganization({ database, clock }, organizationId, { resume: ['email'] });
  await forgiveReputation(database, organizationId);
  await count({ status: 'bounced', failure: hardBounce }, 499);
  expect(await isSuspended()).toBe(false);
  await count({ status: 'bounced', failure: hardBounce }, 1);
  expect(await isSuspended()).toBe(true);
});

test('the operator can forbid it', async () => {
  await updateOrganization({ database, clock }, organizationId, { hasReputationGuard: false });
  await count({ status: 'bounced', failure: hardBounce }, 600);
  expect([await isSuspended(), warnings]).toEqual([false, []]);
});

test("one organization's bounces are not another's, and all shards are one count", async () => {
  const other = (await createOrganization({ database, clock, newId: newIdOf() }, 'Another')).id;
  await Promise.all(Array.from({ length: 10 }, () => count({ status: 'bounced', failure: hardBounce }, 60)));
  expect(await isSuspended()).toBe(true);
  const [plan] = await loadSendingPlans(database, [other], 'email');
  expect(plan!.isSuspended).toBe(false);
  const rows = await database.rows(
    unpreparedStatement<{ bounced: number }>(
      'select sum(bounced)::integer as bounced from reputation_counts where organization_id = $1',
    ),
    [organizationId],
  );
  expect(rows).toEqual([{ bounced: 600 }]);
});
