import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { aChatAppHandOff } from '../../../../../test/support/chat-app-provider-conformance.ts';
import { startGraph, type WebhookTarget } from '../../../../../test/support/graph.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { ToldByCallback } from '../../provider.ts';
import { whatsAppCallbacks } from './callbacks.ts';
import { createWhatsAppProvider } from './whatsapp.ts';

/** What was handed off, and what comes back of it: both over HTTP, by a stand-in that signs as Meta does. */

const appSecret = 'the secret of the app';
const references = new Map([['token of m', { organizationId: 'o', messageId: 'm', ordinal: 0 }]]);

const endings: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

/** Refuses so many webhooks before it takes the first. */
async function arrange(webhooks: Partial<WebhookTarget> = {}, refusedFirst = 0) {
  const told: ToldByCallback[] = [];
  const events: string[] = [];
  const [callback] = whatsAppCallbacks({ appSecret, verifyToken: '' });
  let refused = 0;
  const receiver = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      void (async () => {
        if (callback?.rawBytesMax === undefined) throw new Error('takes no raw body');
        const reading = await callback.read({
          url: '',
          header: (name) => request.headers[name]?.toString(),
          body: Buffer.concat(chunks),
          reference: null,
          readToken: (token) => references.get(token) ?? null,
          findApp: () => Promise.resolve(null),
        });
        if (typeof reading === 'string') events.push(reading);
        else if (refused < refusedFirst) refused += 1;
        else {
          events.push('told');
          told.push(...reading);
          response.statusCode = 200;
          response.end();
          return;
        }
        response.statusCode = 503;
        response.end();
      })();
    });
  });
  await new Promise<void>((resolve) => {
    receiver.listen(0, '127.0.0.1', resolve);
  });
  const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/`;
  const graph = await startGraph({ webhooks: { url, appSecret, ...webhooks } });
  const provider = createWhatsAppProvider({
    clock: createManualClock(),
    random: () => 0.5,
    origin: `http://127.0.0.1:${graph.port}`,
    version: 'v25.0',
    writeToken: ({ messageId }) => `token of ${messageId}`,
    take: () => Promise.resolve(),
  });
  endings.push(
    () => new Promise((resolve) => receiver.close(resolve)),
    () => graph.close(),
    () => provider.close(),
  );
  const handOff = async (to: string) => {
    const reference = { organizationId: 'o', messageId: 'm', ordinal: 0 };
    const outcome = await provider.handOff(aChatAppHandOff({ to, reference }));
    events.push('answered');
    await graph.whenPosted();
    expect(graph.faults).toEqual([]);
    return outcome;
  };
  const reports = () => told.flatMap((item) => (item.kind === 'status' ? [item.report] : []));
  return { graph, told, events, reports, handOff };
}

const ours = references.get('token of m');

test('statuses name the message by the id of its hand-off, and by our own', async () => {
  const { reports, handOff } = await arrange();
  const outcome = await handOff('+4915112345678');
  const providerMessageId = outcome.kind === 'accepted' ? outcome.providerMessageId : null;
  expect(reports()).toMatchObject([
    { status: 'sent', providerMessageId, reference: ours },
    { status: 'delivered', providerMessageId, reference: ours },
  ]);
});

test('a message whose answer was lost is still named', async () => {
  const { reports, handOff } = await arrange();
  expect(await handOff('+15005550013')).toMatchObject({ kind: 'unknown' });
  expect(reports()).toMatchObject([
    { status: 'sent', reference: ours },
    { status: 'delivered', reference: ours },
  ]);
});

test('statuses may come before the answer, twice and in any order, and people without a number', async () => {
  const { events, reports, told, handOff } = await arrange({
    isBeforeAnswer: true,
    isReversed: true,
    times: 2,
    hidesNumbers: true,
  });
  await handOff('+4915112345678');
  expect(events).toEqual(['told', 'answered']);
  expect(reports().map(({ status }) => status)).toEqual(['delivered', 'delivered', 'sent', 'sent']);
  expect(told).toMatchObject(Array(4).fill({ person: { waId: null, userId: 'US.4915112345678' } }));
});

test('what could not be stored comes again', async () => {
  const { graph, reports, handOff } = await arrange({}, 2);
  await handOff('+4915112345678');
  expect(graph.counts).toMatchObject({ webhooks: 3, unwelcome: 2 });
  expect(reports()).toHaveLength(2);
});

test('a failure that comes later has the reason that an answer would have had', async () => {
  const { told, handOff } = await arrange();
  expect(await handOff('+19980132015')).toMatchObject({ kind: 'accepted' });
  expect(told.at(-1)).toMatchObject({
    report: { status: 'failed', failure: 'template_unavailable' },
    finding: { kind: 'template', state: 'paused' },
  });
});

test('a webhook that another app signs is forged', async () => {
  const { graph, events, told, handOff } = await arrange({ appSecret: 'another' });
  const handedOff = handOff('+4915112345678');
  await expect.poll(() => events).toContain('forged');
  graph.setWebhooks(null);
  expect(told).toEqual([]);
  void graph.close();
  await handedOff;
});
