import { beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { findChatTemplate, keepChatTemplate, loadChatTemplates } from './chat-templates.ts';
import { createTemplate, deleteTemplate } from './keeping.ts';
import type { TemplateRow } from './store.ts';

let database: Database;
let own: string;
let other: string;
const newId = createIds(systemClock);

useTestDatabase({ connectionsMax: 4, hasNeighbour: true }, (opened) => {
  database = opened.database;
});
beforeEach(() => {
  [own, other] = [newId(), newId()];
});

const tools = () => ({ database, clock: systemClock, newId, isAccountNeeded: () => false });

async function create(organizationId: string, name = 'order_shipped'): Promise<TemplateRow> {
  const created = await createTemplate(tools(), organizationId, {
    name,
    language: 'en_US',
    category: 'utility',
    components: [{ type: 'body', text: 'It is on its way.' }],
  });
  if (created.kind !== 'created') throw new Error(created.kind);
  return created.template;
}

const approve = ({ id }: TemplateRow) =>
  database.rows(
    unpreparedStatement(
      `update chat_templates set status = 'approved', provider_state = 'approved', reviewed_at = now() where id = $1`,
    ),
    [id],
  );

const find = (organizationId: string, wanted: Parameters<typeof findChatTemplate>[2]) =>
  database.asOrganizations([organizationId], (transaction) =>
    findChatTemplate(transaction, organizationId, wanted),
  );

const load = (...templates: TemplateRow[]) => {
  const wanted = templates.map(({ organization_id: organizationId, id }) => ({ organizationId, id }));
  return database.asOrganizationsByIndex([own, other], (transaction) =>
    loadChatTemplates(transaction, wanted),
  );
};

test('a template is found by its id, or by its name and language, in its organization alone', async () => {
  const [mine, theirs] = [await create(own), await create(other)];
  await approve(mine);
  const expected = {
    organizationId: own,
    id: mine.id,
    name: 'order_shipped',
    language: 'en_US',
    category: 'utility',
    content: { kind: 'written', components: [{ type: 'body', text: 'It is on its way.' }], examples: {} },
    status: 'approved',
    sendable: true,
    sendableReason: null,
    reviewedAt: expect.any(Date) as Date,
    marketingFrom: null,
    isChangingParameters: false,
    wasRefused: false,
    isOnTrial: false,
  };
  expect(await find(own, { id: mine.id })).toEqual(expected);
  expect(await find(own, { name: 'order_shipped', language: 'en_US' })).toEqual(expected);
  for (const wanted of [
    { id: theirs.id },
    { id: 'nonsense' },
    { name: 'order_shipped', language: 'en' },
    { name: 'Order_Shipped', language: 'en_US' },
  ])
    expect(await find(own, wanted)).toBeNull();
});

test('many are loaded at once, of any organizations', async () => {
  const templates = [
    ...(await Promise.all(Array.from({ length: 210 }, (_item, index) => create(own, `template_${index}`)))),
    await create(other),
  ];
  expect((await load(...templates)).map(({ id }) => id).sort()).toEqual(templates.map(({ id }) => id).sort());
  expect(await load()).toEqual([]);
});

test('one that was deleted is loaded for what was accepted before, and is not sendable', async () => {
  const template = await create(own);
  await approve(template);
  await deleteTemplate(tools(), { organizationId: own, id: template.id });
  expect(await find(own, { id: template.id })).toBeNull();
  expect(await load(template)).toMatchObject([
    { sendable: false, sendableReason: 'deleted', name: 'order_shipped' },
  ]);
});

test('one that is kept cannot be deleted until the transaction ends', async () => {
  const template = await create(own);
  const key = { organizationId: own, id: template.id };
  let isDeleted = false;
  let deletion: Promise<unknown> = Promise.resolve();
  await database.asOrganizations([own], async (transaction) => {
    expect(await keepChatTemplate(transaction, key)).toMatchObject({ id: template.id });
    deletion = deleteTemplate(tools(), key).then(() => {
      isDeleted = true;
    });
    const waiting = unpreparedStatement<{ count: number }>(
      `select count(*)::integer as count from pg_stat_activity
       where datname = current_database() and wait_event_type = 'Lock'`,
    );
    // Ends when the deletion waits, or with the time limit of the test.
    for (let looks = 0; (await database.rows(waiting))[0]!.count === 0; looks += 1)
      expect(isDeleted).toBe(false);
  });
  await deletion;
  expect(isDeleted).toBe(true);
  expect(
    await database.asOrganizations([own], (transaction) => keepChatTemplate(transaction, key)),
  ).toBeNull();
});
