/**
 * Several nodes make ids at once, so that a message that was accepted first may have the greater id. Lists still hold
 * everything once, and what is due earlier is sent earlier.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../src/platform/clock.ts';
import { send } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createShuffledIds } from '../support/shuffled-ids.ts';
import { addApprovedSender, sendSms } from '../support/sms-journey.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ newId: createShuffledIds(systemClock) });
  await addApprovedSender(server, 'Acme');
});
afterAll(() => server.stop());

type List = { has_more: boolean; data: { id: string }[] };

const idsOf = ({ data }: List) => data.map(({ id }) => id);
const newestFirst = (ids: readonly string[]) => ids.toSorted().reverse();

/** A whole list by pages of two, from the newest to the oldest, or from the oldest on in the order of the responses. */
async function readPages(path: string, direction: 'after' | 'before'): Promise<string[]> {
  const ids: string[] = [];
  let cursor = direction === 'before' ? '&before=00000000-0000-7000-8000-000000000000' : '';
  // Ends because each page goes on after the last.
  for (;;) {
    const { body } = await server.request<List>('GET', `${path}&limit=2${cursor}`);
    const page = idsOf(body);
    if (direction === 'after') ids.push(...page);
    else ids.unshift(...page);
    const last = direction === 'after' ? page.at(-1) : page[0];
    if (!body.has_more || last === undefined) return ids;
    cursor = `&${direction}=${last}`;
  }
}

test('lists of messages hold each of seven on exactly one page, by every filter and in both directions', async () => {
  const other = await createSender(server.installation, 'other.example');
  const made = { email: [] as string[], sms: [] as string[] };
  for (let index = 0; index < 7; index += 1) {
    made.email.push(await send(server, { subject: 'Parcel', category: 'parcels', to: ['ann@example.com'] }));
    await send(server, { from: 'a@other.example', subject: 'Parcel', category: 'parcels' }, other);
    made.sms.push(await sendSms(server, { from: 'Acme', to: '+33612345678', category: 'parcels' }));
  }
  const searched = { email: ['parc', 'ann@'], sms: ['acm', '336'] };
  for (const channel of ['email', 'sms'] as const) {
    const ids = made[channel];
    const inOrder = newestFirst(ids);
    expect(inOrder, 'the ids have an order').not.toEqual(ids.toReversed());
    const filters = [
      '',
      'status=queued',
      'category=parcels',
      ...searched[channel].map((text) => `search=${text}`),
    ];
    for (const filter of filters) {
      const path = `/v1/${channel}?${filter}`;
      expect([path, await readPages(path, 'after')]).toEqual([path, inOrder]);
      expect([path, await readPages(path, 'before')]).toEqual([path, inOrder]);
    }
  }
});
