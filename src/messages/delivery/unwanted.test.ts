import { beforeEach, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import type { Job } from '../channel.ts';
import { findObjections } from './unwanted.ts';
import { emailChannel } from '../../email/channel.ts';

let database: Database;
const newId = createShuffledIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
let organizationId: string;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeEach(() => {
  organizationId = newId();
});

function run(text: string, values: readonly unknown[]): Promise<unknown[]> {
  return database.rows(unpreparedStatement(text), values);
}

async function insertContact(
  email: string,
  more: { isUnsubscribed?: boolean; organizationId?: string } = {},
): Promise<string> {
  const id = newId();
  await run(
    `insert into contacts
       (organization_id, id, external_id, email, email_key, unsubscribed_channels, created_at, updated_at)
     values ($1, $2, $5, $3, $3, $4, now(), now())`,
    [more.organizationId ?? organizationId, id, email, more.isUnsubscribed ? ['email'] : [], id],
  );
  return id;
}

async function moveContact(id: string, email: string | null): Promise<void> {
  await run('update contacts set email = $2, email_key = $2 where id = $1', [id, email]);
}

function jobFor(contactId: string | null, addressKey: string): Job {
  return {
    organizationId,
    messageId: newId(),
    ordinal: 0,
    channel: emailChannel,
    policy: emailChannel.policyOf({ isCampaign: contactId !== null }),
    isCampaign: contactId !== null,
    ...untried,
    contactId,
    address: addressKey,
    addressKey,
    acceptedAt: new Date(0),
  };
}

/** Of each job, in their order. */
async function objectionsTo(...jobs: Job[]) {
  const objections = await findObjections({ database, clock: systemClock, secrets }, jobs);
  return jobs.map((job) => objections.get(job) ?? null);
}

test('a campaign goes to nobody who was deleted, lost the address or unsubscribed since', async () => {
  const stays = await insertContact('stays@example.com');
  const unsubscribed = await insertContact('left@example.com', { isUnsubscribed: true });
  const loses = await insertContact('lost@example.com', { isUnsubscribed: true });
  await moveContact(loses, null);
  expect(
    await objectionsTo(
      jobFor(stays, 'stays@example.com'),
      jobFor(unsubscribed, 'left@example.com'),
      jobFor(loses, 'lost@example.com'),
      jobFor(newId(), 'deleted@example.com'),
      jobFor(null, 'left@example.com'),
    ),
  ).toEqual([null, 'unsubscribed', 'no_address', 'contact_deleted', null]);
});

test('whoever moved is written to at the old address, unless somebody has it who unsubscribed', async () => {
  const moved = await Promise.all(
    ['nobodys', 'taken', 'refused', 'elsewhere'].map(async (name) => {
      const id = await insertContact(`${name}@example.com`);
      await moveContact(id, `${name}-new@example.com`);
      return jobFor(id, `${name}@example.com`);
    }),
  );
  await insertContact('taken@example.com');
  await insertContact('refused@example.com', { isUnsubscribed: true });
  await insertContact('elsewhere@example.com', { isUnsubscribed: true, organizationId: newId() });
  expect(await objectionsTo(...moved)).toEqual([null, null, 'unsubscribed', null]);
});

test('whoever moved and unsubscribed is not written to at the old address either', async () => {
  const id = await insertContact('before@example.com', { isUnsubscribed: true });
  await moveContact(id, 'after@example.com');
  await insertContact('before@example.com');
  expect(await objectionsTo(jobFor(id, 'before@example.com'))).toEqual(['unsubscribed']);
});
