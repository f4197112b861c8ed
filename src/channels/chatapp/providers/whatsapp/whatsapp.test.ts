import { createServer, type Server, type Socket } from 'node:net';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import {
  aChatAppHandOff,
  aCodeTemplate,
  anAccount,
  aTemplate,
  describeChatAppProvider,
} from '../../../../../test/support/chat-app-provider-conformance.ts';
import { type Graph, type GraphOptions, startGraph } from '../../../../../test/support/graph.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { ChatAppHandOff, ChatAppOutcome } from '../../provider.ts';
import { fillTemplateText, type WrittenTemplate } from '../../template.ts';
import { chooseNumber, createWhatsAppProvider, type WhatsAppOptions } from './whatsapp.ts';

const endings: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

const wide = { perSecondUntilKnown: 100_000, pairBurst: 100_000 };

/** A provider before a stand-in, with nothing to slow it down unless `more` says so. */
async function arrange(graphOptions: GraphOptions = {}, more: Partial<WhatsAppOptions> = {}) {
  const graph = await startGraph({ throughput: 'HIGH', ...graphOptions });
  const clock = createManualClock();
  const provider = createWhatsAppProvider({
    clock,
    random: () => 0.5,
    origin: `http://127.0.0.1:${graph.port}`,
    version: 'v25.0',
    writeToken: ({ messageId, ordinal }) => `token of ${messageId} ${ordinal}`,
    take: () => Promise.resolve(),
    limits: wide,
    ...more,
  });
  const handOff = (changes: Partial<ChatAppHandOff> = {}): Promise<ChatAppOutcome> =>
    provider.handOff(aChatAppHandOff(changes));
  return { graph, clock, provider, handOff };
}

async function arrangeOne(...[graphOptions, more]: Parameters<typeof arrange>) {
  const arranged = await arrange(graphOptions, more);
  endings.push(async () => {
    await arranged.provider.close();
    await arranged.graph.close();
  });
  return arranged;
}

function bodyOf({ values }: Graph['messages'][number]): string {
  return values.first_name === undefined
    ? `Your code is ${values['body 0'] ?? ''}.`
    : `Hello ${values.first_name}, it is on its way.`;
}

describeChatAppProvider('whatsapp', async () => {
  const { graph, clock, provider } = await arrange();
  return {
    provider,
    recipients: { accepted: '+4915112345678', rejected: '+15005550001', deferred: '+15005550014' },
    recipientOfLostAnswer: '+15005550013',
    silence: {
      recipient: '+15005550020',
      whenTaken: () => graph.nextMessage(),
      passTime: clock.advance,
    },
    delivered: async () => graph.messages.map((message) => ({ to: message.to, body: bodyOf(message) })),
    passReview: async () => {
      graph.review(aTemplate.name, 'APPROVED');
    },
    dispose: async () => {
      expect(graph.faults).toEqual([]);
      await graph.close();
    },
  };
});

test('a message goes out in the form that Meta describes', async () => {
  const { graph, handOff } = await arrangeOne();
  const outcome = await handOff();
  expect(outcome).toEqual({
    kind: 'accepted',
    providerMessageId: graph.messages[0]?.id,
    reply: {
      code: 200,
      enhancedCode: null,
      diagnostic: 'accepted (trace Bz5iGI1bQgF)',
      remote: '127.0.0.1',
    },
  });
  expect(graph.requests).toContain('POST /v25.0/106540352242922/messages');
  expect(graph.messages[0]).toMatchObject({ accessToken: 'EAAJB', token: 'token of msg_test 0' });
  expect(graph.messages[0]?.body).toEqual({
    messaging_product: 'whatsapp',
    recipient_type: 'individual',
    to: '4915112345678',
    type: 'template',
    biz_opaque_callback_data: 'token of msg_test 0',
    template: {
      name: 'order_shipped',
      language: { policy: 'deterministic', code: 'en_US' },
      components: [
        { type: 'header', parameters: [{ type: 'text', parameter_name: 'order_number', text: '1047' }] },
        { type: 'body', parameters: [{ type: 'text', parameter_name: 'first_name', text: 'Ana' }] },
        // By its place among all buttons, and its variable by number.
        { type: 'button', sub_type: 'url', index: '1', parameters: [{ type: 'text', text: 'abc' }] },
      ],
    },
  });
});

test('a value in the address of a button is what the preview and the example have', async () => {
  const { graph, handOff } = await arrangeOne();
  for (const url of [
    'https://a.example/?q={{v}}',
    'https://a.example/x/{{v}}',
    'https://a.example/x/{{{v}}}',
  ]) {
    const button = { type: 'url', text: 'Open', url } as const;
    const parameters = { v: 'a b/c&d=e' };
    const content: WrittenTemplate = {
      kind: 'written',
      components: [
        { type: 'body', text: 'Hello.' },
        { type: 'buttons', buttons: [button] },
      ],
      examples: parameters,
    };
    await handOff({ template: { ...aTemplate, content }, parameters });
    const sent = url.replace(/\{+v\}+$/, graph.messages.at(-1)?.values['button 0'] ?? '');
    expect(fillTemplateText(url, parameters)).toBe(sent);
  }
  expect(graph.messages.map(({ values }) => values['button 0'])).toEqual([
    'a%20b%2Fc%26d%3De',
    'a%20b/c&d=e',
    'a b/c&d=e',
  ]);
});

test('a code goes into the text and into the button', async () => {
  const { graph, handOff } = await arrangeOne();
  await handOff({ template: aCodeTemplate, parameters: { code: '482913' } });
  expect(graph.messages[0]?.values).toEqual({ 'body 0': '482913', 'button 0': '482913' });
});

test('a template without parameters has no components', async () => {
  const { graph, handOff } = await arrangeOne();
  const components = [{ type: 'body', text: 'Hello.' }] as const;
  const template = { ...aTemplate, content: { kind: 'written', components, examples: {} } } as const;
  expect(await handOff({ template, parameters: {} })).toMatchObject({ kind: 'accepted' });
  expect(graph.messages[0]?.body).not.toHaveProperty('template.components');
});

test.each([
  [true, 'Ana Maria  Lopez'],
  [false, ' Ana\n\tMaria  Lopez     '],
])('white space that is refused is folded in a campaign alone: %s', async (isCampaign, first_name) => {
  const { graph, handOff } = await arrangeOne();
  const parameters = { first_name: ' Ana\n\tMaria  Lopez     ', order_number: '1', track_id: 'a' };
  await handOff({ isCampaign, parameters });
  expect(graph.messages[0]?.values).toMatchObject({ first_name });
});

test('a person who has other digits than their number is known by both', async () => {
  const { handOff } = await arrangeOne({
    answer: () => ({
      status: 200,
      body: JSON.stringify({
        contacts: [{ input: '5511987654321', wa_id: '551187654321' }],
        messages: [{ id: 'wamid.HBgL=', message_status: 'held_for_quality_assessment' }],
      }),
    }),
  });
  expect(await handOff({ to: '+5511987654321' })).toMatchObject({
    kind: 'accepted',
    providerMessageId: 'wamid.HBgL=',
    knownAs: '551187654321',
    reply: { diagnostic: expect.stringMatching(/^held while/) },
  });
});

describe('whether a message was sent is uncertain only after its request', () => {
  test.each(['+15005550013', '+15005550021', '+15005550022'])('%s', async (to) => {
    const { handOff } = await arrangeOne();
    expect(await handOff({ to })).toMatchObject({ kind: 'unknown' });
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
  });

  test('nothing listens', async () => {
    const { graph, handOff, provider } = await arrangeOne();
    await graph.close();
    let confirmed = 0;
    const confirm = async () => {
      confirmed += 1;
    };
    expect(await handOff({ confirm })).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
    expect(confirmed).toBe(0);
    expect(await provider.probe()).toMatch(/^127\.0\.0\.1: ECONNREFUSED/);
  });

  test('the connection is closed while the confirmation is written: another one will do', async () => {
    const { graph, handOff } = await arrangeOne();
    await handOff();
    const confirm = async () => {
      await graph.dropConnections();
    };
    expect(await handOff({ confirm })).toMatchObject({ kind: 'accepted' });
    expect(graph.messages).toHaveLength(2);
  });

  test('an answer that comes late is waited for', async () => {
    const { graph, handOff } = await arrangeOne();
    const taken = graph.nextMessage();
    const handedOff = handOff({ to: '+15005550023' });
    await taken;
    graph.releaseAnswers();
    expect(await handedOff).toMatchObject({ kind: 'accepted' });
  });

  const page = '<html>Welcome to the hotel</html>';
  test.each([
    ['a page instead of JSON', { status: 200, body: page }, 'unknown'],
    ['a success without an id', { status: 200, body: '{"messages":[{}]}' }, 'unknown'],
    ['a list', { status: 200, body: '[]' }, 'unknown'],
    ['an id of another kind', { status: 200, body: '{"messages":[{"id":"wamid.\\u0000"}]}' }, 'unknown'],
    [
      'a compressed body',
      { status: 200, body: '\u001f\u008b\b', headers: { 'content-encoding': 'gzip' } },
      'unknown',
    ],
    ['an endless body', { status: 200, body: ' '.repeat(100_000) }, 'unknown'],
    ['a page of a server that fails', { status: 502, body: page }, 'unknown'],
    [
      'a page that asks for a pause',
      { status: 503, body: page, headers: { 'retry-after': '7' } },
      'deferred',
    ],
    ['a page that refuses', { status: 403, body: page }, 'deferred'],
    ['a redirection', { status: 302, body: '', headers: { location: 'http://127.0.0.1:1/' } }, 'deferred'],
    ['a proxy that has too many', { status: 429, body: page }, 'postponed'],
  ] as const)('%s', async (_, answer, kind) => {
    const { handOff } = await arrangeOne({ answer: () => answer });
    const outcome = await handOff();
    expect(outcome.kind).toBe(kind);
    expect(outcome.reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
  });

  test('a server that answers before it is asked', async () => {
    const early = await listen((socket) => {
      socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}');
    });
    const { handOff } = await arrangeOne({}, { origin: `http://127.0.0.1:${early.port}` });
    expect((await handOff()).kind).not.toBe('accepted');
    early.server.close();
  });
});

async function listen(onConnection: (socket: Socket) => void): Promise<{ server: Server; port: number }> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    onConnection(socket);
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  return { server, port: (server.address() as AddressInfo).port };
}

test.each([
  ['an id of a number that is none', { phoneNumberIds: ['../../me'] }],
  ['no number', { phoneNumberIds: [] }],
  ['an id of an account that is none', { businessAccountId: '1?x=2' }],
  ['a token that would be another header', { accessToken: 'EAA\r\nx: y' }],
])('an account with %s is asked nothing', async (_, changes) => {
  const { graph, handOff, provider } = await arrangeOne();
  const account = { ...anAccount, ...changes };
  expect(await handOff({ account })).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  expect(await provider.examineAccount(account)).toMatchObject({ kind: 'failed' });
  expect(graph.requests).toEqual([]);
});

test('what an account says of its limit is told by the first message, and once in an hour, until it was taken', async () => {
  const told: unknown[] = [];
  let isTaken = false;
  const take = (what: unknown) => {
    told.push(what);
    return isTaken ? Promise.resolve() : Promise.reject(new Error('cannot be stored'));
  };
  const { graph, handOff, clock } = await arrangeOne({ peopleLimit: 'TIER_2K' }, { take });
  const asked = () => graph.requests.filter((request) => request.startsWith('GET')).length;
  const toldBy = async (times: number) => {
    await handOff();
    await expect.poll(() => [asked(), told.length]).toEqual([times, times]);
  };
  await toldBy(1);
  isTaken = true;
  await toldBy(2);
  await toldBy(2);
  clock.advance(3_600_000);
  await toldBy(3);
  const { organizationId, businessAccountId } = anAccount;
  const limit = { kind: 'people_limit', organizationId, businessAccountId, peoplePerDayMax: 2_000 };
  expect(told).toEqual([limit, limit, limit]);
});

test('a person always hears from the same number, and numbers share people', () => {
  const three = ['11', '22', '33'];
  const people = Array.from({ length: 300 }, (_, at) => `+49151${10_000_000 + at}`);
  const chosen = people.map((to) => chooseNumber(three, to));
  for (const id of three) expect(chosen.filter((each) => each === id).length).toBeGreaterThan(60);
  expect(people.map((to) => chooseNumber([...three].reverse(), to))).toEqual(chosen);
  const withFourth = people.map((to) => chooseNumber([...three, '44'], to));
  for (const [at, id] of withFourth.entries()) expect(['44', chosen[at]]).toContain(id);
});

describe('the pace', () => {
  test('is learned of the number itself, and before that the one of every number', async () => {
    const { graph, clock, handOff } = await arrangeOne(
      {},
      { limits: { perSecondUntilKnown: 80, pairBurst: 45 } },
    );
    const send = (count: number) =>
      Promise.all(Array.from({ length: count }, (_, at) => handOff({ to: `+4915110000${100 + at}` })));
    // The stand-in answers the question after the first messages: 21 leave at once, and 20 wait a little.
    const first = send(100);
    await clock.whenWaiting(20);
    clock.advance(250);
    const kinds = (await first).map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === 'postponed')).toHaveLength(59);
    expect(graph.requests.filter((request) => request.startsWith('GET'))).toHaveLength(1);
    clock.advance(1_000);
    expect(new Set((await send(200)).map(({ kind }) => kind))).toEqual(new Set(['accepted']));
  });

  test('to one person ends after 45 messages at once, and others are not held up', async () => {
    const { handOff, clock } = await arrangeOne({}, { limits: { ...wide, pairBurst: 45 } });
    for (let count = 0; count < 45; count += 1) expect((await handOff()).kind).toBe('accepted');
    expect(await handOff()).toMatchObject({ kind: 'postponed', retryAfterMs: 6_000 });
    expect((await handOff({ to: '+4915112345679' })).kind).toBe('accepted');
    clock.advance(6_000);
    expect((await handOff()).kind).toBe('accepted');
    expect((await handOff()).kind).toBe('postponed');
  });

  test('of a pair that WhatsApp finds too fast is held for six seconds, and then four times as long', async () => {
    const { graph, handOff, clock } = await arrangeOne();
    const to = '+19990131056';
    expect(await handOff({ to })).toMatchObject({ kind: 'postponed', retryAfterMs: 6_000 });
    expect(await handOff({ to })).toMatchObject({ kind: 'postponed' });
    expect(graph.counts.refused).toBe(1);
    expect((await handOff()).kind).toBe('accepted');
    clock.advance(6_000);
    expect(await handOff({ to })).toMatchObject({ kind: 'postponed', retryAfterMs: 24_000 });
    expect(graph.counts.refused).toBe(2);
  });

  test('of a number that is too fast stops for a second, for all of its messages', async () => {
    const { graph, handOff, clock } = await arrangeOne();
    expect(await handOff({ to: '+19990130429' })).toMatchObject({ kind: 'postponed', retryAfterMs: 1_000 });
    expect(await handOff()).toMatchObject({ kind: 'postponed' });
    expect(graph.counts.accepted).toBe(0);
    clock.advance(1_000);
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
  });

  test('a limit of calls is kept for as long as it says', async () => {
    const usage = {
      '102290129340398': [{ type: 'messaging', call_count: 100, estimated_time_to_regain_access: 3 }],
    };
    const { handOff } = await arrangeOne({
      answer: () => ({
        code: 80_007,
        headers: { 'x-business-use-case-usage': JSON.stringify(usage) },
      }),
    });
    expect(await handOff()).toMatchObject({ kind: 'postponed', retryAfterMs: 180_000 });
  });
});

test('a template that is not known yet is waited for, and given up ten minutes after its review', async () => {
  const { handOff, clock } = await arrangeOne();
  const to = '+19990132001';
  const reviewedAt = new Date(clock.nowMs());
  const waits = { kind: 'deferred', reason: 'template_unavailable', retryAfterMs: 60_000 };
  expect(await handOff({ to, reviewedAt })).toMatchObject(waits);
  clock.advance(599_999);
  expect(await handOff({ to, reviewedAt })).toMatchObject(waits);
  clock.advance(1);
  const refused = {
    ...{ kind: 'rejected', reason: 'template_unavailable' },
    finding: { kind: 'template', state: null },
  };
  expect(await handOff({ to, reviewedAt })).toMatchObject(refused);
  // One that was reviewed long ago is not there any more, though nobody has said so before.
  expect(await handOff({ to, reviewedAt: new Date(0) })).toMatchObject(refused);
  expect(await handOff({ to, reviewedAt: null })).toMatchObject(refused);
});
