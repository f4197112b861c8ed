/** What a worker does for a campaign when its statements were planned while every table was empty. */
import pg from 'pg';
import { expect, inject, test } from 'vitest';
import { eventually, rowsOf, send, settled } from '../support/email-journey.ts';
import { startTestServer } from '../support/server.ts';
import { clientConfigOf, addressOf } from '../support/test-database.ts';

const recipients = 1_000;

test('a worker that starts before the first row finds each recipient of a large campaign by its key', async () => {
  const server = await startTestServer({ worker: true });
  const [{ name } = { name: '' }] = await rowsOf<{ name: string }>(
    server,
    'select current_database() as name',
  );
  // Every connection has used its statements so often that it no longer plans them for their values.
  for (let count = 0; count < 12; count += 1) await settled(server, await send(server));
  const [row] = await rowsOf<{ id: string }>(
    server,
    `with campaign as (
       select organization_id, overlay(gen_random_uuid()::text placing left(id::text, 18) from 1)::uuid as id, id as model
       from messages where organization_id = $2 limit 1
     ), message as (
       insert into messages (organization_id, id, channel, class, sender, subject, details, recipient_count, created_at, updated_at)
       select c.organization_id, c.id, m.channel, 'campaign', m.sender, m.subject, m.details, $1, now(), now()
       from campaign c join messages m on m.id = c.model
     ), content as (
       insert into message_contents (organization_id, message_id, content)
       select c.organization_id, c.id, m.content
       from campaign c join message_contents m on m.message_id = c.model
     ), copies as (
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       select organization_id, id, n, 'to', 'r' || n || '@example.com', 'r' || n || '@example.com', now()
       from campaign cross join generate_series(1, $1::integer) as n
     ), queued as (
       insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
       select organization_id, id, n, 'email', 1, now(), now(), 100
       from campaign cross join generate_series(1, $1::integer) as n
     )
     select id from campaign`,
    [recipients, server.organizationId],
  );
  expect(row).toBeDefined();
  await rowsOf(server, "select pg_notify('postillion_deliveries', '')");
  await eventually(
    () => rowsOf(server, 'select from delivery_queue limit 1'),
    (left) => left.length === 0,
  );
  const databaseServer = inject('databaseServer');
  const client = new pg.Client(clientConfigOf(addressOf(databaseServer, name)));
  await client.connect();
  try {
    // Sessions report what they read when they end, or after ten seconds without work.
    await client.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and application_name = 'postillion'`,
    );
    const read = await eventually(
      () =>
        client
          .query<{ by_key: number; broadly: number }>(
            `select
               (select sum(idx_tup_read) from pg_stat_all_indexes
                where relname ~ '^recipients_2' and indexrelname ~ 'pkey')::integer as by_key,
               (select coalesce(sum(idx_tup_read), 0) from pg_stat_all_indexes
                where relname ~ '^recipients_2' and indexrelname !~ 'pkey')::integer
                 + (select sum(seq_tup_read) from pg_stat_all_tables where relname ~ '^recipients_2')::integer as broadly`,
          )
          .then(({ rows }) => rows[0]!),
      ({ by_key: byKey, broadly }) => byKey >= 2 * recipients || broadly > 100 * recipients,
    );
    expect(read.broadly).toBeLessThan(10 * recipients);
  } finally {
    await client.end();
    await server.stop();
  }
});
