/** Limits hold for what is sent, and not only for what was written: values grow a text after it was checked. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { anEmail, countOf, type ErrorBody, eventually, post, rowsOf } from '../support/email-journey.ts';
import { addApprovedSender } from '../support/sms-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  await addApprovedSender(server, 'Acme');
});
afterAll(() => server.stop());

/** One character, and two code units. */
const wide = '😀';

async function create(path: string, body: object): Promise<string> {
  const response = await server.request<{ id: string }>('POST', path, body);
  if (response.status !== 201) throw new Error(response.text);
  return response.body.id;
}

const subjectTooLong = 'subject must be at most 998 characters with its variables replaced';

describe('a subject', () => {
  test.each([
    ['998 characters', '{{a}}!', wide.repeat(997)],
    ['998 characters of one value', '{{a}}', 'x'.repeat(998)],
    ['998 characters of which nothing was replaced', `{{b}}${'x'.repeat(993)}`, 'x'],
  ])('may have %s', async (_length, subject, a) => {
    expect((await post(server, anEmail({ subject, variables: { a } }))).status).toBe(202);
  });

  test.each([
    ['999', '{{a}}!', 'x'.repeat(998)],
    ['999 of the wide ones', '{{a}}!', wide.repeat(998)],
    ['999 by many small values', '{{a}}'.repeat(111), 'x'.repeat(9)],
    ['millions of', '{{a}}'.repeat(100), 'x'.repeat(1_000_000)],
  ])('may not have %s characters', async (_length, subject, a) => {
    const before = await countOf(server, 'messages');
    const response = await post<ErrorBody>(server, anEmail({ subject, variables: { a } }));
    expect([response.status, response.body.message]).toEqual([422, subjectTooLong]);
    expect(await countOf(server, 'messages')).toBe(before);
  });

  test('of a template is no longer either, sent or shown', async () => {
    const id = await create('/v1/templates', { name: 'Long', subject: '{{a}}!', text: 'Hello' });
    const variables = { a: 'x'.repeat(998) };
    const sent = await post<ErrorBody>(
      server,
      anEmail({ subject: undefined, text: undefined, template_id: id, variables }),
    );
    const shown = await server.request<ErrorBody>('POST', `/v1/templates/${id}/render`, { variables });
    for (const { status, body } of [sent, shown])
      expect([status, body.message]).toEqual([422, subjectTooLong]);
  });
});

test.each(['html', 'text'])('%s says by its name that it grew too long', async (field) => {
  const response = await post<ErrorBody>(
    server,
    anEmail({ [field]: '{{a}}'.repeat(40), variables: { a: 'x'.repeat(1_000_000) } }),
  );
  expect([response.status, response.body.message]).toEqual([
    422,
    `${field} must be at most 30 MB with its variables replaced`,
  ]);
});

test.each([
  ['1,600 wide characters', wide.repeat(1_599), 202],
  ['1,601 characters', 'x'.repeat(1_600), 422],
  ['1,601 wide characters', wide.repeat(1_600), 422],
])('a text of %s with its values', async (_length, a, status) => {
  const body = { from: 'Acme', to: '+14155550123', body: '{{a}}!', variables: { a } };
  expect((await server.request('POST', '/v1/sms/send', body)).status).toBe(status);
});

describe('in a campaign', () => {
  type Campaign = { status: string; stats: Record<string, number> };

  test('a subject that one value makes too long fails that recipient, with a reason, and no other', async () => {
    await create('/v1/properties', { key: 'title', name: 'Title', type: 'string' });
    const listId = await create('/v1/lists', { name: 'Long subjects' });
    const titles = { ann: 'x'.repeat(998), bob: 'Dr.', cay: wide.repeat(995) };
    for (const [name, title] of Object.entries(titles)) {
      await create('/v1/contacts', {
        email: `${name}@example.com`,
        properties: { title },
        list_ids: [listId],
      });
    }
    const id = await create('/v1/email/campaigns', {
      name: 'News',
      from: 'hello@postillion.test',
      subject: 'To {{title}}',
      text: 'Hello',
      list_ids: [listId],
    });
    await server.request('POST', `/v1/email/campaigns/${id}/send`, {});
    const campaign = await eventually(
      async () => (await server.request<Campaign>('GET', `/v1/email/campaigns/${id}`)).body,
      ({ status, stats }) => status === 'sent' && stats.pending === 0,
    );
    expect(campaign.stats).toMatchObject({ failed: 1, delivered: 2 });
    expect(
      await rowsOf(
        server,
        `select address, failure_class, diagnostic from recipients where status = 'failed'`,
      ),
    ).toEqual([
      {
        address: 'ann@example.com',
        failure_class: 'message_too_large',
        diagnostic: 'The subject has more than 998 characters with its variables replaced.',
      },
    ]);
  });

  test('a preview says so before, and a test is not sent', async () => {
    const id = await create('/v1/email/campaigns', {
      name: 'News',
      from: 'hello@postillion.test',
      subject: '{{greeting}}',
      text: 'Hello',
      variables: { greeting: 'x'.repeat(999) },
      list_ids: [await create('/v1/lists', { name: 'Greeted' })],
    });
    const preview = await server.request<{ warnings: string[] }>(
      'POST',
      `/v1/email/campaigns/${id}/preview`,
      {},
    );
    expect(preview.body.warnings).toContain(
      'This copy cannot be sent: it has more than 998 characters of subject, or more than 30 MB.',
    );
    const tried = await server.request('POST', `/v1/email/campaigns/${id}/test`, { to: ['a@example.com'] });
    expect(tried.status).toBe(400);
  });
});
