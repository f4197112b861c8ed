import { expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { noHorizon } from '../messages/messages.ts';
import { systemClock } from '../platform/clock.ts';
import type { PublicError } from '../platform/http/errors.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createKeptContents, type KeptEmail } from './kept-content.ts';

const newId = createIds(systemClock);
const [one, other] = [newId(), newId()];
const text = JSON.stringify({ text: 'x'.repeat(400) });

let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

async function insertEmail(organizationId: string): Promise<{ organizationId: string; id: string }> {
  const id = newId();
  await database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', 'transactional', 'a@postillion.test', '{}', 1, now(), now())
       )
       insert into message_contents (organization_id, message_id, content) values ($1, $2, $3)`,
    ),
    [organizationId, id, text],
  );
  return { organizationId, id };
}

test('contents that are read at once have a limit, of which another organization still gets something', async () => {
  const [first, second, third, theirs] = [
    await insertEmail(one),
    await insertEmail(one),
    await insertEmail(one),
    await insertEmail(other),
  ];
  const readHorizon = () => Promise.resolve(noHorizon);
  const contents = createKeptContents({ database, readHorizon, bytesMax: 4 * text.length });
  let finish: () => void = () => undefined;
  const finished = new Promise<void>((resolve) => (finish = resolve));
  const held: (KeptEmail | PublicError)[] = [];
  const hold = (key: typeof first) =>
    contents.read(key, async (email) => {
      held.push(email);
      if (held.length === 3) finish();
      await finished;
    });
  const holding = [hold(first), hold(second)];
  await expect.poll(() => held.length).toBe(2);
  await expect(contents.read(third, (email) => Promise.resolve(email))).rejects.toThrow(/^Too much content/);
  await Promise.all([...holding, hold(theirs)]);
  expect(held).toMatchObject(Array.from({ length: 3 }, () => ({ content: text })));
  // What was held is given back, also by what failed.
  for (let read = 0; read < 5; read += 1)
    await expect(contents.read(third, () => Promise.reject(new Error('gone')))).rejects.toThrow('gone');
  expect(await contents.read(third, (email) => Promise.resolve(email))).toMatchObject({ content: text });
});
