/** The gallery over the API: browsed, filtered, copied, and sent from. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { TemplateRecord } from '../../src/templates/schema.ts';
import { anEmail, type ErrorBody, post, settled } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

type Category = { id: string; name: string };
type Listed = {
  id: string;
  name: string;
  description: string;
  thumbnail_url: string;
  created_at: string;
  updated_at: string;
} & Record<Filter, Category[]>;
type Whole = Listed & {
  subject: string;
  preview_text: string;
  html: string;
  text: string;
  variables: string[];
  sample_variables: Record<string, string>;
};
type Page = { object: 'list'; has_more: boolean; data: Listed[] };

const filters = ['types', 'seasons', 'features', 'industries'] as const;
type Filter = (typeof filters)[number];
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

let server: TestServer;
let all: Listed[];
let categories: Record<Filter, Category[]>;

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown) =>
  server.request<Body>(method, `/v1/templates${path}`, body);

beforeAll(async () => {
  server = await startTestServer({ worker: true, publicUrl: 'https://app.host.test' });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 100_000 });
  all = (await ask<Page>('GET', '/gallery?limit=100')).body.data;
  categories = (await ask<Record<Filter, Category[]>>('GET', '/gallery/categories')).body;
});
afterAll(() => server.stop());

test('every folder of the gallery is there, newest first', async () => {
  const folders = await readdir(path.resolve('gallery'), { withFileTypes: true });
  expect(all).toHaveLength(folders.filter((entry) => entry.isDirectory()).length);
  expect(all.length).toBeGreaterThanOrEqual(24);
  expect(all.map(({ id }) => id)).toEqual(all.map(({ id }) => id).sort((a, b) => (a < b ? 1 : -1)));
});

test('it is gone through page by page, to and fro', async () => {
  const ids = all.map(({ id }) => id);
  const page = async (query: string) => {
    const { body } = await ask<Page>('GET', `/gallery?limit=5${query}`);
    return [body.has_more, body.data.map(({ id }) => id)];
  };
  expect(await page('')).toEqual([true, ids.slice(0, 5)]);
  expect(await page(`&after=${ids[4]}`)).toEqual([true, ids.slice(5, 10)]);
  expect(await page(`&before=${ids[10]}`)).toEqual([true, ids.slice(5, 10)]);
  expect(await page(`&before=${ids[3]}`)).toEqual([false, ids.slice(0, 3)]);
  expect(await page(`&after=${ids.at(-3)}`)).toEqual([false, ids.slice(-2)]);
});

test('filters select what a look at each template selects', async () => {
  for (const filter of filters) {
    expect([filter, categories[filter].length]).toEqual([filter, expect.any(Number)]);
    expect(categories[filter].length).toBeGreaterThan(1);
  }
  const idsOf = (filter: Filter) =>
    fc.option(
      fc.array(fc.constantFrom(...categories[filter].map(({ id }) => id), unknownId), {
        minLength: 1,
        maxLength: 4,
      }),
      { nil: undefined },
    );
  let found = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        types: idsOf('types'),
        seasons: idsOf('seasons'),
        features: idsOf('features'),
        industries: idsOf('industries'),
      }),
      fc.option(fc.constantFrom('a', 'Sale', 'NEW', 'x', 'zzz'), { nil: undefined }),
      async (wanted, search) => {
        const query = new URLSearchParams({ limit: '100' });
        for (const filter of filters) {
          const ids = wanted[filter];
          if (ids !== undefined) query.set(`template_${filter}`, ids.join(','));
        }
        if (search !== undefined) query.set('search', search);
        const { body } = await ask<Page>('GET', `/gallery?${query.toString()}`);
        const expected = all.filter(
          (template) =>
            (search === undefined || template.name.toLowerCase().includes(search.toLowerCase())) &&
            filters.every(
              (filter) =>
                wanted[filter] === undefined ||
                template[filter].some(({ id }) => wanted[filter]!.includes(id)),
            ),
        );
        found += expected.length;
        expect(body.data).toEqual(expected);
      },
    ),
    { numRuns: 150 },
  );
  expect(found).toBeGreaterThan(0);
});

test.each([
  ['template_types=nonsense', 422],
  [`template_seasons=${unknownId},`, 422],
  ['template_features=', 200],
  [`template_industries=${unknownId}%00`, 422],
  ['template_colors=red', 422],
  ['limit=0', 422],
  [`after=${unknownId}&before=${unknownId}`, 400],
  [`template_types=${unknownId}`, 200],
])('answers to %s with %i', async (query, status) => {
  expect((await ask('GET', `/gallery?${query}`)).status).toBe(status);
});

test('one is read whole, and an unknown one is not there', async () => {
  const { body } = await ask<Whole>('GET', `/gallery/${all[0]!.id.toUpperCase()}`);
  expect(body).toMatchObject(all[0]!);
  expect(body.html).toContain('</html>');
  expect(body.text.length).toBeGreaterThan(50);
  expect(Object.keys(body.sample_variables)).toEqual(body.variables);
  expect(body.thumbnail_url).toMatch(/^https:\/\/app\.host\.test\/gallery\/thumbnails\/[a-z0-9-]+$/);
  for (const id of [unknownId, 'nonsense']) {
    const missing = await ask('GET', `/gallery/${id}`);
    expect([id, missing.status, missing.body.name]).toEqual([id, 404, 'not_found']);
    expect((await ask('POST', `/gallery/${id}/copy`, {})).status).toBe(404);
  }
});

describe('a copy', () => {
  test('is a template of one’s own, with or without a name, with or without a body', async () => {
    const source = (await ask<Whole>('GET', `/gallery/${all[1]!.id}`)).body;
    for (const [body, name] of [
      [undefined, source.name],
      [{}, source.name],
      [{ name: null }, source.name],
      [{ name: 'Mine' }, 'Mine'],
    ] as const) {
      const copied = await ask<{ id: string }>('POST', `/gallery/${source.id}/copy`, body);
      expect([copied.status, Object.keys(copied.body)]).toEqual([201, ['id']]);
      const template = (await ask<TemplateRecord>('GET', `/${copied.body.id}`)).body;
      expect(template).toMatchObject({
        name,
        subject: source.subject,
        html: source.html,
        text: source.text,
        preview_text: source.preview_text,
        source_gallery_template_id: source.id,
      });
      expect([...template.variables].sort()).toEqual([...source.variables].sort());
    }
    for (const wrong of [{ name: '' }, { name: 'x'.repeat(101) }, { name: 7 }, { title: 'x' }]) {
      expect((await ask('POST', `/gallery/${source.id}/copy`, wrong)).status).toBe(422);
    }
  });

  test('of every template is sent with its samples, and nothing is left open in it', async () => {
    for (const { id, name } of all) {
      const source = (await ask<Whole>('GET', `/gallery/${id}`)).body;
      const copied = await ask<{ id: string }>('POST', `/gallery/${id}/copy`);
      const sent = await post(
        server,
        anEmail({
          subject: undefined,
          text: undefined,
          template_id: copied.body.id,
          variables: source.sample_variables,
        }),
      );
      expect([name, sent.status]).toEqual([name, 202]);
      const email = await settled(server, sent.body.id);
      expect([name, email.to[0]!.status]).toEqual([name, 'delivered']);
      const rendered = await ask<{ missing_variables: string[] }>('POST', `/${copied.body.id}/render`, {
        variables: source.sample_variables,
      });
      expect([name, rendered.body.missing_variables]).toEqual([name, []]);
      expect(rendered.text).not.toContain('{{');
    }
  });
});

test('thumbnails and what the API says of them agree with the files', async () => {
  const text = await readFile(path.resolve('gallery/categories.json'), 'utf8');
  const file = JSON.parse(text) as Record<Filter, (Category & { slug: string })[]>;
  for (const filter of filters) {
    expect(categories[filter]).toEqual(file[filter].map(({ id, name }) => ({ id, name })));
  }
});
