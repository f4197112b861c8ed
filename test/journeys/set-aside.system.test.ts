/** Jobs that no worker tries any more, and what an operator does to them, beside a worker in another process. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { giveUpAllSetAside, retrySetAside, type SetAsideTools } from '../../src/messages/messages.ts';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import { messageChannels } from '../support/channels.ts';
import { eventually, queueOf, read, rowsOf, send, type Sender, settled } from '../support/email-journey.ts';
import { type Settings, usePrograms } from '../support/programs.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let server: TestServer;
let address: DatabaseAddress;
let other: Sender & { organizationId: string };
let own: Settings;

useTestDatabase({ hasNeighbour: true }, (opened) => {
  address = opened.address;
});
const { run, start } = usePrograms();
beforeAll(async () => {
  server = await startTestServer({ database: address });
  other = await createSender(server.installation, 'other.test');
  own = {
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    POSTILLION_ADDRESS_CHECKS: 'off',
  };
});
afterAll(() => server.stop());

const sendAsOther = (more = {}) => send(server, { from: 'hello@other.test', ...more }, other);

async function runJson(...words: string[]): Promise<Record<string, unknown>> {
  const { output, errors } = await run(own, 'queue', ...words, '--json');
  expect(errors).toBe('');
  return JSON.parse(output) as Record<string, unknown>;
}

async function breakMessage(id: string): Promise<() => Promise<unknown>> {
  const [row] = await rowsOf<{ details: unknown }>(server, 'select details from messages where id = $1', [
    id,
  ]);
  await rowsOf(server, "update messages set details = '{}' where id = $1", [id]);
  return () =>
    rowsOf(server, 'update messages set details = $2 where id = $1', [id, JSON.stringify(row!.details)]);
}

const untilSetAside = (id: string, crashes = 3) =>
  eventually(
    () => queueOf(server, id),
    ([job]) => job!.set_aside_at !== null && job!.crashes === crashes,
  );

test('what was set aside is told, listed by organization and channel, tried again or given up', async () => {
  const [mine, theirs] = [await send(server), await sendAsOther()];
  const mend = await breakMessage(mine);
  const mendTheirs = await breakMessage(theirs);
  const worker = start({ ...own, LOG_LEVEL: 'info' }, ['serve', '--role', 'worker']);
  await Promise.all([untilSetAside(mine), untilSetAside(theirs)]);
  const [told] = (await worker.untilSaid('errors', /.*a job was set aside.*/)) ?? [];
  expect(JSON.parse(told!)).toMatchObject({ level: 50, channel: 'email', crashes: 3, ordinal: 0 });

  const [ofMine, ofTheirs] = [`${mine}/0`, `${theirs}/0`];
  const shown = {
    job: ofMine,
    organization_id: server.organizationId,
    organization: 'Test organization',
    message_id: mine,
    ordinal: 0,
    channel: 'email',
    class: 'transactional',
    recipient: 'ann@example.com',
    crashes: 3,
    crashed_at: expect.any(String) as string,
    last_words: expect.stringMatching(/^TypeError: /) as string,
    attempts: 0,
    uncertain: false,
  };
  expect(await runJson('list')).toMatchObject({ data: [{ job: ofTheirs }, shown], has_more: false });
  expect(await runJson('list', '--limit', '1')).toMatchObject({ data: [{ job: ofTheirs }], has_more: true });
  expect(await runJson('list', '--after', ofTheirs)).toMatchObject({ data: [shown], has_more: false });
  expect(await runJson('list', '--org', server.organizationId)).toMatchObject({ data: [shown] });
  expect(await runJson('list', '--channel', 'sms')).toEqual({ data: [], has_more: false });
  expect(await runJson('show', ofMine)).toMatchObject(shown);
  expect((await run(own, 'queue', 'show', ofMine)).output).toMatch(/^Last words: {3}TypeError: /m);
  const { output } = await run(own, 'doctor', '--json');
  expect(JSON.parse(output)).toMatchObject({
    findings: expect.arrayContaining([
      expect.objectContaining({
        level: 'problem',
        subject: 'queue',
        found: '2 jobs were set aside and are tried no more (email: 2)',
      }),
    ]) as unknown,
  });

  await mend();
  expect(await runJson('retry', ofMine)).toEqual({ retried: 1 });
  expect(await settled(server, mine)).toMatchObject({ status: 'delivered' });
  // Still broken: it takes one more crash, and no three.
  expect(await runJson('retry', '--all')).toEqual({ retried: 1 });
  await untilSetAside(theirs, 4);

  expect(await runJson('drop', '--all', '--org', server.organizationId)).toMatchObject({
    error: expect.stringContaining('None of these was set aside') as string,
  });
  expect(await runJson('drop', ofTheirs)).toEqual({ failed: 1, uncertain: 0 });
  await mendTheirs();
  expect(await read(server, theirs, other)).toMatchObject({
    status: 'failed',
    to: [
      {
        status: 'failed',
        bounce: { class: 'other', diagnostic: expect.stringMatching(/^Given up by the operator/) as string },
      },
    ],
  });
  expect(await runJson('list')).toEqual({ data: [], has_more: false });
  expect(await runJson('show', ofTheirs)).toMatchObject({
    error: expect.stringMatching(/^There is no job /) as string,
  });
  worker.child.kill('SIGTERM');
  expect(await worker.ended).toMatchObject({ exitCode: 0 });
});

test('what is no job is refused, and so is a choice that says two things', async () => {
  const id = await send(server);
  for (const job of [id, `${id}/`, `${id}/-1`, `${id}/1/2`, `${id}/99999999999`, `${'x'.repeat(9_999)}/1`])
    expect((await run(own, 'queue', 'show', job)).errors).toContain('It must be a job as');
  expect((await runJson('drop')).error).toMatch(/^Give jobs/);
  expect((await runJson('drop', `${id}/0`, '--all')).error).toMatch(/^Give jobs/);
  expect((await runJson('retry', `${id}/0`, '--channel', 'sms')).error).toContain('belong to --all');
  // It waits in the queue, and is nothing that an operator has to free.
  expect((await runJson('drop', `${id}/0`)).error).toContain('None of these was set aside');
  expect(await queueOf(server, id)).toHaveLength(1);
});

describe('beside each other', () => {
  const tools = (): SetAsideTools => ({
    ...server.installation,
    channels: messageChannels,
    onContactsChanged: () => undefined,
    onCampaignProgress: () => undefined,
  });
  const setAside = (ids: readonly string[]) =>
    rowsOf(
      server,
      'update delivery_queue set set_aside_at = now(), crashes = 3 where message_id = any ($1::uuid[])',
      [ids],
    );
  const fatesOf = (ids: readonly string[]) =>
    rowsOf<{ status: string; uncertain: boolean; recipients: number }>(
      server,
      `select status, uncertain, count(*) as recipients from recipients where message_id = any ($1::uuid[])
       group by 1, 2 order by 1, 2`,
      [ids],
    );

  test('each job is given up or tried again, once, and those of another organization stay', async () => {
    const to = Array.from({ length: 50 }, (_, index) => `ann${index}@example.com`);
    const ids: string[] = [];
    // More than a batch.
    for (let sent = 0; sent < 12; sent += 1) ids.push(await send(server, { to }));
    const theirs = await sendAsOther({ to });
    await setAside([...ids, theirs]);
    const { organizationId } = server;
    const [first, second, retried] = await Promise.all([
      giveUpAllSetAside(tools(), { organizationId }),
      giveUpAllSetAside(tools(), { organizationId }),
      retrySetAside(tools(), { organizationId, messageId: ids[0] }),
    ]);
    const failed = first.failed + second.failed;
    expect(failed + retried).toBe(600);
    expect((await fatesOf(ids)).find(({ status }) => status === 'failed')).toMatchObject({
      recipients: failed,
    });
    const left = await Promise.all(ids.map((id) => queueOf(server, id)));
    expect(left.flat()).toHaveLength(retried);
    expect(left.flat().every(({ set_aside_at: setAsideAt }) => setAsideAt === null)).toBe(true);
    expect(await read(server, ids.at(-1)!)).toMatchObject({ status: 'failed' });
    expect(await queueOf(server, theirs)).toHaveLength(50);
    expect(await fatesOf([theirs])).toEqual([{ status: 'sent', uncertain: false, recipients: 50 }]);
  });

  test('what is tried again while it is being given up is left in the queue', async () => {
    const id = await send(server);
    await setAside([id]);
    const { database } = server.installation;
    const overtaken: SetAsideTools['database'] = Object.assign(Object.create(database) as typeof database, {
      transactionByIndex: async <Result>(
        work: Parameters<typeof database.transactionByIndex<Result>>[0],
      ): Promise<Result> => {
        expect(await retrySetAside(tools(), { messageId: id })).toBe(1);
        return database.transactionByIndex(work);
      },
    });
    const filter = { messageId: id };
    expect(await giveUpAllSetAside({ ...tools(), database: overtaken }, filter)).toEqual({
      failed: 0,
      uncertain: 0,
    });
    expect(await queueOf(server, id)).toMatchObject([{ claimed_by: null, set_aside_at: null, crashes: 3 }]);
  });

  test('whoever an earlier hand-off may have reached stays uncertain, and has not failed', async () => {
    const id = await send(server, { to: ['one@example.com', 'two@example.com'] });
    await setAside([id]);
    await rowsOf(server, 'update delivery_queue set ambiguities = 1 where message_id = $1 and ordinal = 1', [
      id,
    ]);
    await rowsOf(
      server,
      `update recipients set ambiguities = 1, uncertain = true, handed_off_at = now()
       where message_id = $1 and ordinal = 1`,
      [id],
    );
    expect(await giveUpAllSetAside(tools(), { messageId: id })).toEqual({ failed: 1, uncertain: 1 });
    expect(await fatesOf([id])).toEqual([
      { status: 'failed', uncertain: false, recipients: 1 },
      { status: 'sent', uncertain: true, recipients: 1 },
    ]);
    expect(await queueOf(server, id)).toEqual([]);
  });

  test('a recipient of a campaign that is given up is counted again', async () => {
    const contacts = ['ann', 'ben'].map((name) => ({
      id: server.installation.newId(),
      email: `${name}@example.com`,
    }));
    const { organizationId } = server;
    const { messageId } = await insertSentCampaign(server.installation, { organizationId, contacts });
    await rowsOf(
      server,
      `update recipients set status = 'sent', handed_off_at = null where message_id = $1 and ordinal = 1`,
      [messageId],
    );
    await rowsOf(
      server,
      `insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at,
         content_bytes, crashes, set_aside_at)
       values ($1, $2, 1, 'email', 1, now(), now(), 10, 3, now())`,
      [organizationId, messageId],
    );
    let progress = 0;
    const watching = { ...tools(), onCampaignProgress: () => (progress += 1) };
    expect(await giveUpAllSetAside(watching, { messageId })).toEqual({ failed: 1, uncertain: 0 });
    expect(progress).toBe(1);
    const changes = await rowsOf<{ slices: number[] }>(
      server,
      'select * from recipient_changes where organization_id = $1',
      [organizationId],
    );
    expect(JSON.stringify(changes)).toContain(messageId);
    expect(await fatesOf([messageId])).toMatchObject([
      { status: 'delivered', recipients: 1 },
      { status: 'failed', recipients: 1 },
    ]);
  });
});
