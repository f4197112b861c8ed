import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { messageChannels } from '../../../test/support/channels.ts';
import { eventually, rowsOf } from '../../../test/support/email-journey.ts';
import { createPigeons } from '../../../test/support/pigeons.ts';
import { startTestServer, type TestServer } from '../../../test/support/server.ts';
import { unpreparedStatement } from '../../platform/postgres/database.ts';
import { type Acceptor, createAcceptor } from '../accept.ts';
import type { MessageChannels } from '../channel.ts';
import { type Delivery, startDelivery } from './deliver.ts';

const pigeons = createPigeons();
const reply = { code: null, enhancedCode: null, diagnostic: 'taken by a hawk', remote: null };
const channels = { ...messageChannels, [pigeons.channel.name]: pigeons.channel } as MessageChannels;

let server: TestServer;
let acceptor: Acceptor;
let delivery: Delivery | null = null;

beforeAll(async () => {
  server = await startTestServer();
  pigeons.lofts.add(server.organizationId, 'loft');
  acceptor = createAcceptor({ ...server.installation, channels, onQueued: () => undefined });
});
afterAll(async () => {
  await server.stop();
});
afterEach(async () => {
  await delivery?.stop();
});

async function send(to: string): Promise<void> {
  const { organizationId } = server;
  const outcome = await acceptor.accept(
    pigeons.submit({ organizationId, loft: 'loft', to, text: 'Hello' }),
    null,
  );
  if (outcome.kind === 'refused') throw outcome.error;
}

test.each([
  ['what leaves', { kind: 'accepted', providerMessageId: 'ring 7', reply: null }],
  ['what is refused before it is announced', { kind: 'rejected', reason: 'hawk', reply }],
] as const)(
  '%s while outcomes cannot be written is no more than may wait, and the rest follows',
  async (_what, outcome) => {
    const [concurrency, underWayMax, messages] = [4, 6, 40];
    for (let each = 0; each < messages; each += 1) await send(`+49170${each}${outcome.kind.length}`);
    const carried: string[] = [];
    const { database } = server.installation;
    await database.transaction(async (transaction) => {
      // The outcomes change recipients; claims and markers do not.
      await transaction.rows(unpreparedStatement('lock table recipients in exclusive mode'), []);
      delivery = startDelivery({
        ...server.installation,
        channels,
        underWayMax,
        deliveries: [
          {
            ...pigeons.createDelivery(database, async ({ to, confirm }) => {
              if (outcome.kind === 'accepted') await confirm();
              carried.push(to);
              return outcome;
            }),
            concurrency,
          },
        ],
        onCampaignProgress: () => undefined,
        onContactsChanged: () => undefined,
      });
      await eventually(
        () => carried.length,
        (count) => count >= underWayMax,
      );
      // Many times what the other messages would take.
      for (let look = 0; look < 200; look += 1) await rowsOf(server, 'select 1');
      expect(carried.length).toBe(underWayMax);
    });
    await eventually(
      () => rowsOf(server, 'select from delivery_queue'),
      (jobs) => jobs.length === 0,
    );
    expect(new Set(carried).size).toBe(messages);
    expect(carried).toHaveLength(messages);
  },
);
