import { expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { deleteMarkers } from './hand-off-store.ts';

let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

test('markers go with the claims of their worker, and those of workers that are buried with them; no others do', async () => {
  const run = <Row>(text: string) => database.rows(unpreparedStatement<Row>(text));
  await run(`insert into workers (epoch, host, pid, started_at)
    select epoch, 'here', 1, now() from unnest('{1, 2}'::bigint[]) epoch`);
  await run(`insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
    select epoch, batch, array[gen_random_uuid()], array[gen_random_uuid()], '{0}', '{1}'
    from unnest('{1, 2, 3}'::bigint[]) epoch, unnest('{1, 2}'::bigint[]) batch`);
  await deleteMarkers(database, 1);
  expect(await run('select epoch, batch from hand_offs order by batch')).toEqual([
    { epoch: 2, batch: 1 },
    { epoch: 2, batch: 2 },
  ]);
});
