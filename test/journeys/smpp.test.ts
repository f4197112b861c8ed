/** Texts over SMPP, from their acceptance to their receipts. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { createIntake } from '../../src/roles/providers/sms.ts';
import { createShiftedClock, eventually, queueOf, rowsOf } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, readSms, sendSms, smsWithStatus } from '../support/sms-journey.ts';
import { type Smsc, type SmscAnswer, smscNumbers, startSmsc } from '../support/smsc.ts';

const clock = createShiftedClock();
const throttledOnce = '+491520000001';
const cutOffAndTold = '+491520000002';
const cutOffInSteps = '+491520000003';
const answeredWhenAsked = '+491520000004';
const toldBeforeCut = '+491520000005';

let smsc: Smsc;
let server: TestServer;
const throttled = new Set<string>();
let answerNow: (answer: SmscAnswer) => void = () => undefined;

beforeAll(async () => {
  smsc = await startSmsc({
    answer: ({ to }) => {
      if (to === throttledOnce && !throttled.has(to)) {
        throttled.add(to);
        return { status: 0x58 };
      }
      if (to === answeredWhenAsked || to === toldBeforeCut)
        return new Promise<SmscAnswer>((resolve) => (answerNow = resolve));
      return to === cutOffAndTold || to === cutOffInSteps ? 'lost' : undefined;
    },
    receipt: ({ to }) => {
      if (to === throttledOnce) return { stat: 'DELIVRD', when: 'held' };
      if (to === cutOffAndTold) return { stat: 'DELIVRD', when: 'held' };
      return [cutOffInSteps, toldBeforeCut, smscNumbers.lost].includes(to) ? null : undefined;
    },
  });
  server = await startTestServer({
    worker: true,
    clock,
    smsProvider: 'smpp',
    providerSettings: { POSTILLION_SMPP_URL: `smpp://test:secret@127.0.0.1:${smsc.port}` },
  });
  await addApprovedSender(server, 'Acme');
  await addApprovedSender(server, '+14155550100');
});
afterAll(async () => {
  await server.stop();
  await smsc.close();
});

const takenFor = (number: string) => smsc.texts().filter(({ to }) => to === number);

test.each([
  ['as it was written', 'Grüße aus dem {Büro}: 5 €'],
  ['whole if it is long', 'Dein Code steht unten. '.repeat(20)],
  ['whole if it is long in another language', 'Ваш заказ уже в пути 🚚. '.repeat(12)],
])('a text arrives %s, and is delivered when its receipt says so', async (_case, text) => {
  const before = takenFor(smscNumbers.accepted).length;
  const id = await sendSms(server, { to: smscNumbers.accepted, body: text });
  const sms = await smsWithStatus(server, id, 'delivered');
  expect(sms).toMatchObject({ uncertain: false, error: null });
  expect(takenFor(smscNumbers.accepted).slice(before)).toEqual([
    { from: 'Acme', to: smscNumbers.accepted, text },
  ]);
});

test.each([
  ['undelivered', smscNumbers.undelivered, 'other'],
  ['expired', smscNumbers.expired, 'expired'],
  ['failed', smscNumbers.rejected, 'other'],
  ['failed', smscNumbers.invalidDestination, 'unknown_subscriber'],
])('a text is %s when the message centre says so of %s', async (status, to, code) => {
  const id = await sendSms(server, { to });
  expect(await smsWithStatus(server, id, status)).toMatchObject({
    error: { code },
    delivered_at: null,
    uncertain: false,
  });
});

test('a text that the message centre has no room for is put off, and then delivered', async () => {
  const id = await sendSms(server, { to: throttledOnce });
  await smsWithStatus(server, id, 'sending');
  expect(await queueOf(server, id)).toMatchObject([{ attempts: 1, ambiguities: 0 }]);
  await eventually(
    () => {
      clock.putForward(6_000);
      return readSms(server, id);
    },
    ({ status }) => status === 'sent',
  );
  expect(await readSms(server, id)).toMatchObject({ error: null });
  smsc.releaseReceipts();
  await smsWithStatus(server, id, 'delivered');
  expect(takenFor(throttledOnce)).toHaveLength(1);
});

test('a receipt that is here before the answer is that of its text', async () => {
  const id = await sendSms(server, { to: smscNumbers.receiptBeforeAnswer });
  await smsWithStatus(server, id, 'delivered');
});

test('an answer is written down while a receipt of the same text is being applied', async () => {
  const { database } = server.installation;
  const id = await sendSms(server, { to: answeredWhenAsked });
  await database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement('select from messages where id = $1 for no key update'), [id]);
    await eventually(
      () => {
        answerNow('accepted');
        return rowsOf(
          server,
          "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        );
      },
      (waiting) => waiting.length > 0,
    );
    // If the session that waits for the message held this lock, it would be a deadlock.
    await transaction.rows(
      unpreparedStatement('select from recipients where message_id = $1 for update nowait'),
      [id],
    );
  });
  await smsWithStatus(server, id, 'delivered');
});

describe('a text whose connection was cut before the answer', () => {
  const cutOff = async (to: string) => {
    const bindsBefore = smsc.counts.binds;
    const id = await sendSms(server, { to });
    expect(await smsWithStatus(server, id, 'sending')).toMatchObject({ uncertain: true });
    expect(await queueOf(server, id)).toEqual([]);
    await smsc.until(() => smsc.counts.binds > bindsBefore && smsc.openConnections() > 0);
    return id;
  };

  /** Moves the clock until the text's receipt was tried as often as it takes. */
  const settledAs = (id: string, status: string) =>
    eventually(
      () => {
        clock.putForward(2_000);
        return readSms(server, id);
      },
      (sms) => sms.status === status,
    );

  const tell = (to: string, stat: string, { from = 'Acme', id = 'unheard-of' } = {}) =>
    smsc.deliver({
      source_addr_ton: 1,
      source_addr_npi: 1,
      source_addr: to.replace('+', ''),
      destination_addr: from,
      esm_class: 4,
      short_message: `id:${id} sub:001 dlvrd:001 submit date:2611220101 done date:2611220102 stat:${stat} err:000 text:Hello`,
    });

  test('is uncertain, is not repeated, and is settled by its receipt', async () => {
    const id = await cutOff(cutOffAndTold);
    smsc.releaseReceipts();
    expect(await settledAs(id, 'delivered')).toMatchObject({ uncertain: false });
    expect(takenFor(cutOffAndTold)).toHaveLength(1);
  });

  test('is not uncertain if its receipt was applied before', async () => {
    const submitsBefore = smsc.counts.submits;
    const id = await sendSms(server, { to: toldBeforeCut });
    await smsc.until(() => smsc.counts.submits > submitsBefore);
    await createIntake(server.installation).takeReceipt({
      providerMessageId: 'told-before',
      reference: { organizationId: server.organizationId, messageId: id, ordinal: 0 },
      to: toldBeforeCut,
      senderName: 'Acme',
      status: 'delivered',
      failure: null,
      diagnostic: null,
    });
    await smsWithStatus(server, id, 'delivered');
    answerNow('lost');
    await eventually(
      () => queueOf(server, id),
      (jobs) => jobs.length === 0,
    );
    expect(await readSms(server, id)).toMatchObject({ status: 'delivered', uncertain: false });
  });

  test('is known by its id from its first receipt on, which is not final', async () => {
    const id = await cutOff(cutOffInSteps);
    await tell(cutOffInSteps, 'ENROUTE', { id: 'in-steps' });
    expect(await settledAs(id, 'sent')).toMatchObject({ uncertain: false });
    await tell(cutOffInSteps, 'DELIVRD', { id: 'in-steps' });
    await smsWithStatus(server, id, 'delivered');
  });

  test('is not settled by the receipt of another sender', async () => {
    const id = await cutOff(smscNumbers.lost);
    await tell(smscNumbers.lost, 'DELIVRD', { from: 'Other', id: 'others' });
    await eventually(
      () => {
        clock.putForward(2_000);
        return rowsOf<{ attempts: number }>(server, 'select attempts from provider_events');
      },
      ([event]) => (event?.attempts ?? 0) > 3,
    );
    expect(await readSms(server, id)).toMatchObject({ status: 'sending', uncertain: true });
  });
});

test('a number that answers STOP gets a confirmation, and nothing more', async () => {
  const number = '+491701234567';
  const status = await smsc.deliver({
    source_addr_ton: 1,
    source_addr_npi: 1,
    source_addr: number.replace('+', ''),
    destination_addr: '14155550100',
    short_message: 'Stop',
  });
  expect(status).toBe(0);
  await smsc.until(() => takenFor(number).length > 0);
  expect(takenFor(number)).toEqual([
    { from: '14155550100', to: number, text: expect.stringContaining('START') as string },
  ]);
  const id = await sendSms(server, { to: number });
  expect(await smsWithStatus(server, id, 'failed')).toMatchObject({ error: { code: 'opted_out' } });
  expect(takenFor(number)).toHaveLength(1);
});
