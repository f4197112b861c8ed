import { afterEach, expect, test } from 'vitest';
import {
  aCodeTemplate,
  anAccount,
  aTemplate,
} from '../../../../../test/support/chat-app-provider-conformance.ts';
import { findTemplateFault } from '../../../../../test/support/graph-shapes.ts';
import {
  type Graph,
  type GraphAnswer,
  type GraphQuestion,
  type GraphTemplate,
  startGraph,
} from '../../../../../test/support/graph.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { ChatAppProvider, SentTemplate } from '../../provider.ts';
import { composeTemplate } from './template-body.ts';
import { createWhatsAppProvider } from './whatsapp.ts';

const endings: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

async function arrange(
  answerQuestion: (question: GraphQuestion) => GraphAnswer | undefined = () => undefined,
  onEdit: (template: GraphTemplate) => 'lost' | undefined = () => undefined,
) {
  const graph = await startGraph({ answerQuestion, onEdit });
  const clock = createManualClock();
  const provider = createWhatsAppProvider({
    clock,
    random: () => 0.5,
    origin: `http://127.0.0.1:${graph.port}`,
    version: 'v25.0',
    writeToken: () => 'token',
    take: () => Promise.resolve(),
  });
  endings.push(async () => {
    await provider.close();
    await graph.close();
  });
  return { graph, clock, provider };
}

const wanted = { providerTemplateId: null, name: aTemplate.name, language: aTemplate.language };

test('a template is submitted in the form that Meta describes', () => {
  const body: unknown = JSON.parse(composeTemplate(aTemplate));
  expect(findTemplateFault(body)).toBeNull();
  expect(body).toEqual({
    name: 'order_shipped',
    language: 'en_US',
    category: 'UTILITY',
    parameter_format: 'NAMED',
    components: [
      {
        ...{ type: 'HEADER', format: 'TEXT', text: 'Order {{order_number}}' },
        example: { header_text_named_params: [{ param_name: 'order_number', example: '1047' }] },
      },
      {
        ...{ type: 'BODY', text: 'Hello {{first_name}}, it is on its way.' },
        example: { body_text_named_params: [{ param_name: 'first_name', example: 'Ana' }] },
      },
      { type: 'FOOTER', text: 'Reply STOP to stop.' },
      {
        type: 'BUTTONS',
        buttons: [
          { type: 'QUICK_REPLY', text: 'Stop' },
          // By number even here, and the example is the whole address.
          { type: 'URL', text: 'Track', url: 'https://x.test/t/{{1}}', example: ['https://x.test/t/abc'] },
          { type: 'PHONE_NUMBER', text: 'Call', phone_number: '15550051310' },
        ],
      },
    ],
  });
});

test.each([
  [1, 60],
  [10, 600],
  [15, 900],
  [90, 900],
  [null, 600],
])('a code that is valid for %j minutes is tried for %i seconds', (codeExpirationMinutes, seconds) => {
  const content = { ...aCodeTemplate.content, codeExpirationMinutes } as typeof aCodeTemplate.content;
  const body: unknown = JSON.parse(composeTemplate({ ...aCodeTemplate, content }));
  expect(findTemplateFault(body)).toBeNull();
  expect(body).toMatchObject({ category: 'AUTHENTICATION', message_send_ttl_seconds: seconds });
});

test('a name that is there already in this language is told, so that it is looked up', async () => {
  const { provider } = await arrange();
  expect((await provider.submitTemplate(anAccount, aTemplate)).kind).toBe('submitted');
  expect(await provider.submitTemplate(anAccount, aTemplate)).toEqual({ kind: 'exists' });
  const other = { ...aTemplate, language: 'de' };
  expect((await provider.submitTemplate(anAccount, other)).kind).toBe('submitted');
});

test.each<[string, GraphAnswer, object]>([
  [
    'a text that is too long',
    { code: 100, subcode: 2_388_040 },
    { kind: 'refused', words: 'Refused: So it is.' },
  ],
  ['too many templates', { code: 100, subcode: 2_388_019 }, { kind: 'delayed', isAccountAtFault: true }],
  [
    'a token that has expired',
    { code: 190 },
    { kind: 'delayed', isAccountAtFault: true, retryAfterMs: 600_000 },
  ],
  ['an account that is not there', { code: 100, subcode: 33 }, { kind: 'delayed', isAccountAtFault: true }],
  ['too many requests', { code: 80_007 }, { kind: 'delayed', isAccountAtFault: false, retryAfterMs: 60_000 }],
  ['an unknown code and 429', { code: 613, status: 429 }, { kind: 'delayed', isAccountAtFault: false }],
  ['an error of Meta', { code: 1, status: 500 }, { kind: 'unknown' }],
  ['a page of a proxy', { status: 502, body: '<html>' }, { kind: 'unknown' }],
  ['a page that refuses', { status: 403, body: '<html>' }, { kind: 'delayed' }],
  ['a success without an id', { status: 200, body: '{}' }, { kind: 'unknown' }],
  ['no answer', 'lost', { kind: 'unknown' }],
])('a submission that is answered with %s', async (_, answer, expected) => {
  const { provider } = await arrange(() => answer);
  expect(await provider.submitTemplate(anAccount, aTemplate)).toMatchObject(expected);
});

test('templates are found among many, by their ids and by their names, and those of other languages are not', async () => {
  const { provider, graph } = await arrange();
  for (let count = 0; count < 120; count += 1)
    await provider.submitTemplate(anAccount, { ...aTemplate, name: `other_${count}` });
  const submitted = await provider.submitTemplate(anAccount, aTemplate);
  await provider.submitTemplate(anAccount, { ...aTemplate, language: 'de' });
  await provider.submitTemplate(anAccount, { ...aTemplate, name: `${aTemplate.name}_2` });
  if (submitted.kind !== 'submitted') throw new Error(submitted.kind);
  graph.review(aTemplate.name, 'REJECTED', 'SCAM');
  const { providerTemplateId } = submitted.template;
  const reviewed = await provider.reviewTemplates(anAccount, [
    { ...wanted, providerTemplateId },
    { providerTemplateId: null, name: 'other_119', language: 'en_US' },
    { providerTemplateId: null, name: 'other_119', language: 'fr' },
  ]);
  expect(reviewed).toMatchObject({
    kind: 'reviewed',
    templates: [
      { name: 'other_119', language: 'en_US', state: 'pending' },
      { providerTemplateId, state: 'rejected', rejectionReason: 'The content looks like fraud (SCAM)' },
    ],
  });
  expect(graph.requests.filter((request) => request.includes('after=')).length).toBe(2);
});

test.each(['fil', 'en_US', 'zh_Hant', 'zh_Hant_TW'])('a template in %s is found', async (language) => {
  const { provider } = await arrange();
  await provider.submitTemplate(anAccount, { ...aTemplate, language });
  expect(
    await provider.reviewTemplates(anAccount, [{ ...wanted, providerTemplateId: null, language }]),
  ).toMatchObject({ kind: 'reviewed', templates: [{ name: wanted.name, language }] });
});

test('only the wanted language of a template is deleted, also when its id is not known', async () => {
  const { provider, graph } = await arrange();
  await provider.submitTemplate(anAccount, aTemplate);
  await provider.submitTemplate(anAccount, { ...aTemplate, language: 'de' });
  expect(await provider.deleteTemplate(anAccount, wanted)).toEqual({ kind: 'gone' });
  expect([...graph.templates.values()].map(({ language }) => language)).toEqual(['de']);
  expect(await provider.deleteTemplate(anAccount, wanted)).toEqual({ kind: 'gone' });
});

const otherText = {
  ...aTemplate,
  content: { kind: 'written', components: [{ type: 'body', text: 'Good day.' }], examples: {} },
} as const;

/** Of a template that was submitted and approved. */
async function anEdit(graph: Graph, provider: ChatAppProvider, template: SentTemplate = otherText) {
  const submitted = await provider.submitTemplate(anAccount, aTemplate);
  if (submitted.kind !== 'submitted') throw new Error(submitted.kind);
  const { providerTemplateId } = submitted.template;
  graph.templates.get(providerTemplateId)!.status = 'APPROVED';
  return { providerTemplateId, template, mayBeMade: false };
}

const editsOf = ({ requests }: Graph) =>
  requests.filter((request) => /^POST \/v25.0\/\d+$/.test(request)).length;

test('an edit replaces all components, in the form that Meta describes, and is under review then', async () => {
  const { provider, graph } = await arrange();
  const wanted = await anEdit(graph, provider);
  expect(await provider.editTemplate(anAccount, wanted)).toMatchObject({
    kind: 'edited',
    template: { providerTemplateId: wanted.providerTemplateId, state: 'pending' },
  });
  expect(graph.faults).toEqual([]);
  expect(graph.templates.get(wanted.providerTemplateId)).toMatchObject({
    ...{ name: aTemplate.name, category: 'UTILITY', components: [{ type: 'BODY', text: 'Good day.' }] },
  });
});

test('an edit that is approved at once is told so, and a rejection from before is not', async () => {
  for (const [status, state] of [
    ['APPROVED', 'approved'],
    ['REJECTED', 'pending'],
  ] as const) {
    const { provider, graph } = await arrange(undefined, (template) => {
      template.status = status;
      return undefined;
    });
    const wanted = await anEdit(graph, provider);
    expect(await provider.editTemplate(anAccount, wanted)).toMatchObject({
      kind: 'edited',
      template: { state },
    });
  }
});

test('an edit that Meta refuses has its words, and one of a template that is gone says so', async () => {
  const { provider, graph } = await arrange();
  const wanted = await anEdit(graph, provider);
  const template = graph.templates.get(wanted.providerTemplateId)!;
  template.status = 'PENDING';
  const refused = { kind: 'refused', words: 'Refused: So it is.' };
  expect(await provider.editTemplate(anAccount, wanted)).toEqual(refused);
  Object.assign(template, { status: 'APPROVED', edits: 1 });
  expect(await provider.editTemplate(anAccount, wanted)).toEqual(refused);
  graph.templates.clear();
  for (const mayBeMade of [false, true])
    expect(await provider.editTemplate(anAccount, { ...wanted, mayBeMade })).toEqual({
      kind: 'refused',
      words: expect.stringContaining('not at the provider') as string,
    });
  expect(await provider.editTemplate(anAccount, { ...wanted, providerTemplateId: '../me' })).toMatchObject({
    kind: 'refused',
  });
});

test('an edit whose answer is cut off may have been made, and is not made again where the text is there', async () => {
  const { provider, graph } = await arrange(undefined, () => 'lost');
  const wanted = await anEdit(graph, provider);
  expect((await provider.editTemplate(anAccount, wanted)).kind).toBe('unknown');
  expect(await provider.editTemplate(anAccount, { ...wanted, mayBeMade: true })).toMatchObject({
    kind: 'edited',
    template: { state: 'pending' },
  });
  expect(editsOf(graph)).toBe(1);
});

test.each<[string, SentTemplate, unknown]>([
  [
    'components as Meta returns them',
    aTemplate,
    [
      {
        type: 'BUTTONS',
        buttons: [
          { type: 'QUICK_REPLY', text: 'Stop' },
          { type: 'URL', text: 'Track', url: 'https://x.test/t/{{1}}' },
          { type: 'PHONE_NUMBER', text: 'Call', phone_number: '+15550051310' },
        ],
      },
      { type: 'FOOTER', text: 'Reply STOP to stop.' },
      { type: 'BODY', text: 'Hello {{first_name}}, it is on its way.', example: {} },
      { type: 'HEADER', format: 'TEXT', text: 'Order {{order_number}}', example: {} },
    ],
  ],
  [
    'a code, whose text is preset and whose button is returned as a link',
    aCodeTemplate,
    [
      { type: 'BODY', text: '*{{1}}* is your code.', add_security_recommendation: true },
      { type: 'FOOTER', text: 'This code expires.', code_expiration_minutes: 10 },
      {
        type: 'BUTTONS',
        buttons: [{ type: 'URL', text: 'Copy code', url: 'https://www.whatsapp.com/otp/code' }],
      },
    ],
  ],
])('an edit that may have been made is recognised by %s', async (_what, template, components) => {
  const { provider, graph } = await arrange();
  const wanted = { ...(await anEdit(graph, provider, template)), mayBeMade: true };
  const present = graph.templates.get(wanted.providerTemplateId)!;
  present.components = components;
  expect((await provider.editTemplate(anAccount, wanted)).kind).toBe('edited');
  expect(editsOf(graph)).toBe(0);
  for (const other of [undefined, 'x', [], (components as unknown[]).slice(1)]) {
    Object.assign(present, { components: other, status: 'APPROVED', edits: 0 });
    expect((await provider.editTemplate(anAccount, wanted)).kind).toBe('edited');
  }
  expect(editsOf(graph)).toBe(4);
});

test('an account that is at fault can neither review nor delete, and nothing is taken for gone', async () => {
  const { provider } = await arrange(() => ({ code: 190 }));
  const fault = { kind: 'delayed', isAccountAtFault: true, words: expect.stringContaining('190') };
  expect(await provider.reviewTemplates(anAccount, [wanted])).toMatchObject(fault);
  expect(await provider.deleteTemplate(anAccount, wanted)).toMatchObject(fault);
  for (const mayBeMade of [false, true])
    expect(
      await provider.editTemplate(anAccount, { providerTemplateId: '1', template: otherText, mayBeMade }),
    ).toMatchObject(fault);
  expect(await provider.examineAccount(anAccount)).toMatchObject({ kind: 'failed', isAccountAtFault: true });
});

test('an account that has used four fifths of its requests is left alone for five minutes', async () => {
  const usage = JSON.stringify({ [anAccount.businessAccountId]: [{ call_count: 80, total_time: 3 }] });
  const body = JSON.stringify({ data: [] });
  const { provider, graph, clock } = await arrange(() => ({
    status: 200,
    body,
    headers: { 'x-business-use-case-usage': usage },
  }));
  expect((await provider.reviewTemplates(anAccount, [wanted])).kind).toBe('reviewed');
  expect(await provider.reviewTemplates(anAccount, [wanted])).toMatchObject({
    kind: 'delayed',
    retryAfterMs: 300_000,
    isAccountAtFault: false,
  });
  expect(graph.requests.filter((request) => request.includes('message_templates'))).toHaveLength(1);
  const other = { ...anAccount, businessAccountId: '7' };
  expect((await provider.reviewTemplates(other, [wanted])).kind).toBe('reviewed');
  clock.advance(300_000);
  expect((await provider.reviewTemplates(anAccount, [wanted])).kind).toBe('reviewed');
});

test('a list that never ends is given up', async () => {
  const page = { data: [{ id: '1', name: 'x', language: 'en' }], paging: { cursors: { after: 'same' } } };
  const { provider, graph } = await arrange(() => ({ status: 200, body: JSON.stringify(page) }));
  expect(await provider.reviewTemplates(anAccount, [wanted])).toEqual({ kind: 'reviewed', templates: [] });
  expect(graph.requests.length).toBeLessThan(130);
});

test.each([
  ['TIER_250', 250],
  ['TIER_2K', 2_000],
  ['TIER_10K', 10_000],
  ['TIER_100K', 100_000],
  ['TIER_UNLIMITED', 'unlimited'],
  ['SOMETHING_NEW', null],
])(
  'an account with %s may write to %j people a day',
  async (whatsapp_business_manager_messaging_limit, limit) => {
    const number = {
      ...{ display_phone_number: '+1 555 078 3881\u202e', verified_name: 'Acme', quality_rating: 'YELLOW' },
      ...{ throughput: { level: 'HIGH' }, whatsapp_business_manager_messaging_limit },
    };
    const { provider } = await arrange(() => ({ status: 200, body: JSON.stringify(number) }));
    expect(await provider.examineAccount(anAccount)).toEqual({
      kind: 'examined',
      peoplePerDayMax: limit,
      numbers: [
        {
          phoneNumberId: '106540352242922',
          displayNumber: '+1 555 078 3881',
          name: 'Acme',
          quality: 'yellow',
          messagesPerSecondMax: 1_000,
        },
      ],
    });
  },
);
