import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { Installation } from '../../src/installation/opening.ts';
import { type Route, routeKey, scopeOfDevices } from '../../src/platform/http/route.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { rowsOf } from '../support/email-journey.ts';
import { createManualClock, type ManualClock } from '../support/manual-clock.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

/** Made of the table of routes: a new field is asked for as soon as it is in a schema. */

type Shape = {
  type?: string | string[];
  format?: string;
  sensitive?: boolean;
  properties?: Record<string, Shape>;
  patternProperties?: Record<string, Shape>;
  additionalProperties?: boolean | Shape;
  items?: Shape;
  anyOf?: Shape[];
  enum?: unknown[];
  const?: unknown;
  contentEncoding?: string;
};

const routes = listRoutes({} as Installation);

/** Every field below a schema, with the names that lead to it; `*` is any name, and `[]` an item. */
function fieldsOf(shape: Shape, path: readonly string[] = []): { path: string[]; shape: Shape }[] {
  const others = [
    ...Object.values(shape.patternProperties ?? {}),
    ...(typeof shape.additionalProperties === 'object' ? [shape.additionalProperties] : []),
  ];
  return [
    { path: [...path], shape },
    ...(shape.anyOf ?? []).flatMap((each) => fieldsOf(each, path).slice(1)),
    ...Object.entries(shape.properties ?? {}).flatMap(([name, each]) => fieldsOf(each, [...path, name])),
    ...others.flatMap((each) => fieldsOf(each, [...path, '*'])),
    ...(shape.items === undefined ? [] : fieldsOf(shape.items, [...path, '[]'])),
  ];
}

const places = routes.flatMap((route) =>
  (['body', 'query'] as const).flatMap((place) =>
    route[place] === null
      ? []
      : fieldsOf(route[place] as Shape).map((field) => ({ ...field, route, place, key: routeKey(route) })),
  ),
);
const sensitive = places.filter(({ shape }) => shape.sensitive === true);

/** Whether a value of the field is shown as it was sent, however it is spelled. */
function isShown({
  sensitive: isSensitive,
  type,
  format,
  properties,
  items,
  anyOf,
  ...shape
}: Shape): boolean {
  if (isSensitive === true || properties !== undefined || items !== undefined || anyOf !== undefined)
    return false;
  const types = [type ?? []].flat();
  if (!types.some((each) => each === 'string')) return false;
  return (
    !('enum' in shape) &&
    !('const' in shape) &&
    !['uuid', 'email', 'idn-email', 'phone-number'].includes(format ?? '')
  );
}

describe('what is shown', () => {
  /** Names of things that nobody else may know, or that are a person's. */
  const telling =
    /token|secret|key|code|password|auth|credential|content|endpoint|html|text|body|subject|payload|variables|parameters|link|url|first_name|last_name|external_id|address|filename|installation|^note$/i;

  /** Shown all the same, and why: by the name, and the routes where it is so. */
  const known: readonly [name: RegExp, routes: RegExp, reason: string][] = [
    [/^key$/, / \/properties/, 'The name of a property.'],
    [
      /^content_(type|id)$/,
      /^POST \/email\/send$/,
      'What kind of file it is, and how the HTML refers to it.',
    ],
    [
      /^(html|text|subject|preview_text|body|title)$/,
      /campaigns|\/templates/,
      'What everybody is told: no secret, and nothing of a person.',
    ],
    [/^(text|url)$/, / \/chatapp\/templates/, 'What everybody is told.'],
  ];

  test('has no name that tells of a secret or a person, but for those with a reason', () => {
    const shown = places.filter(({ path, shape }) => path.length > 0 && isShown(shape));
    const nameOf = (path: readonly string[]) =>
      path.filter((name) => name !== '*' && name !== '[]').at(-1) ?? '';
    const unexplained = shown.filter(({ path, key }) => {
      const name = nameOf(path);
      return telling.test(name) && !known.some(([names, of]) => names.test(name) && of.test(key));
    });
    expect(
      unexplained.map(({ key, path }) => `${key} ${path.join('.')}`),
      'Mark these fields `sensitive` in their schema, or say here why everybody with logs:read may see them',
    ).toEqual([]);
    const unused = known.filter(
      ([names, of]) => !shown.some(({ path, key }) => names.test(nameOf(path)) && of.test(key)),
    );
    expect(unused).toEqual([]);
  });

  test('is nothing of what a code, a token or a file is', () => {
    const marked = new Set(sensitive.map(({ key, path }) => `${key} ${path.join('.')}`));
    for (const field of [
      'POST /chatapp/send parameters.*',
      'POST /email/send attachments.[].content',
      'POST /email/send variables.*',
      'POST /email/send html',
      'POST /sms/send body',
      'POST /push/send deep_link',
      'POST /push/devices device_token',
      'POST /push/devices auth_key',
      'POST /contacts properties.*',
      'GET /contacts search',
    ])
      expect(marked).toContain(field);
  });
});

const canary = 'Q2FuYXJ5IGNhbmFyeQ==';
const parts = /Q2FuYX|canary/i;

/** A body or query with the canary in this field and nothing else. */
function bodyWith(path: readonly string[], value: unknown): unknown {
  const [name, ...below] = path;
  if (name === undefined) return value;
  const inner = bodyWith(below, value);
  return name === '[]' ? [inner] : { [name === '*' ? 'some_name' : name]: inner };
}

let server: TestServer;
let clock: ManualClock;

beforeAll(async () => {
  clock = createManualClock();
  server = await startTestServer({ clock });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 1_000_000 });
});
afterAll(() => server.stop());

const pathOf = ({ path }: Route) => `/v1${path.replaceAll(/:\w+/g, '01934c1e-9f3a-7cc0-8b1a-0123456789ab')}`;

test('nothing of what a sensitive field was is in the log, be it right or wrong', async () => {
  const unseen = sensitive.filter(({ route }) => route.scope !== scopeOfDevices);
  expect(unseen.length).toBeGreaterThan(50);
  let refused = 0;
  const ask = async (route: Route, body: unknown, query: unknown) => {
    const search =
      query === null ? '' : `?${new URLSearchParams(query as Record<string, string>).toString()}`;
    const { status } = await server.request(route.method, `${pathOf(route)}${search}`, body ?? undefined);
    if (status >= 400) refused += 1;
  };
  for (const { route, place, path } of unseen) {
    // Right, of another type, too long, and beside a field that nobody knows.
    const values =
      place === 'query' ? [canary] : [canary, [canary], { [canary]: canary }, canary.repeat(500)];
    for (const value of values) {
      const given = bodyWith(path, value) as Record<string, unknown>;
      if (place === 'query') await ask(route, null, { ...given, limit: '0', canary });
      else await ask(route, { ...given, [`x_${canary}`]: canary }, null);
    }
    // So that none is left out.
    clock.advance(60_000);
  }
  expect(refused).toBeGreaterThan(200);
  await server.request('GET', '/v1/logs');
  const rows = await rowsOf<{ row: string; body: string | null; message: string | null }>(
    server,
    'select r::text as row, body::text as body, message from request_log r where organization_id = $1',
    [server.organizationId],
  );
  expect(rows).toHaveLength(refused);
  // Names of fields are in the message, as the client was told them.
  const leaks = rows.filter(({ row, message }) => parts.test(row.replace(message ?? '', '')));
  expect(leaks).toEqual([]);
  const inMessages = rows.filter(({ message }) =>
    parts.test((message ?? '').replaceAll(/\S*x_Q2FuYX\S*|\bcanary\b/g, '')),
  );
  expect(inMessages).toEqual([]);
  // What was sent is told of, or the test would find nothing anywhere.
  expect(rows.filter(({ body }) => body?.includes('characters]')).length).toBeGreaterThan(50);
});
