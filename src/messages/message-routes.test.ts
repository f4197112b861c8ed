import { Type } from 'typebox';
import { beforeEach, expect, test } from 'vitest';
import { messageChannels } from '../../test/support/channels.ts';
import { createShuffledIds } from '../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import type { Route, RouteRequest } from '../platform/http/route.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import type { Acceptor } from './accept.ts';
import { noHorizon } from './kept.ts';
import { type LoadRecords, messageReadingRoutes } from './message-routes.ts';

const newId = createShuffledIds(systemClock);
const [own, other] = [newId(), newId()];

let database: Database;
/** The messages of which the channel was asked. */
let loaded: string[];

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeEach(() => {
  loaded = [];
});

const record = Type.Object({ id: Type.String() }, { title: 'Letter' });
const load: LoadRecords<{ id: string }> = (_transaction, { messageIds }) => {
  loaded.push(...messageIds);
  return Promise.resolve(({ id }) => ({ id }));
};

function readRoute(): Route {
  const reading = { operationId: 'x', summary: 'x', when: 'x', record, load };
  const prefixesOf = () => ({ text: '', address: null });
  const [, read] = messageReadingRoutes(
    {
      database,
      clock: systemClock,
      newId,
      onQueued: () => undefined,
      acceptor: {} as Acceptor,
      readHorizon: () => Promise.resolve(noHorizon),
    },
    {
      channel: messageChannels.email,
      path: '/email',
      scope: 'email:read',
      tag: 'Email',
      list: {
        ...reading,
        description: '',
        searched: '',
        prefixesOf,
        status: Type.String(),
        category: Type.String(),
      },
      read: reading,
    },
  );
  return read!;
}

async function insertMessage(organizationId: string, channel: string, messageClass: string): Promise<string> {
  const id = newId();
  await database.rows(
    unpreparedStatement(
      `insert into messages
         (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, $3, $4, '', '{}', 1, now(), now())`,
    ),
    [organizationId, id, channel, messageClass],
  );
  return id;
}

test('nothing is loaded of a message that is not the own one of the channel, such as the million of a campaign', async () => {
  const { handle } = readRoute();
  const read = (id: string) =>
    handle({ caller: { organizationId: own }, params: { id } } as RouteRequest<unknown, unknown, unknown>);
  const id = await insertMessage(own, 'email', 'transactional');
  const others = [
    await insertMessage(own, 'email', 'campaign'),
    await insertMessage(own, 'sms', 'transactional'),
    await insertMessage(other, 'email', 'transactional'),
    newId(),
  ];
  for (const each of others)
    await expect(read(each)).rejects.toMatchObject({ definition: { statusCode: 404 } });
  expect(loaded).toEqual([]);
  expect(await read(id)).toMatchObject({ body: { id } });
  expect(loaded).toEqual([id]);
});
