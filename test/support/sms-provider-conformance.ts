import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { SmsFailure, SmsHandOff, SmsProvider, SmsReceipt } from '../../src/channels/sms/provider.ts';
import type { SendOutcome } from '../../src/channels/outcome.ts';

/** What every provider of `src/channels/sms/provider.ts` promises, asked of each in the same way. */

export type DeliveredText = {
  /** The name of the sender, without a plus. */
  from: string;
  /** E.164, with its plus. */
  to: string;
  /** Put together again, if it came in parts. */
  text: string;
};

export type SmsProviderHarness = {
  provider: SmsProvider;
  /** Numbers in E.164 that the far side takes texts for, that nobody has, and for which it says "later". */
  numbers: { accepted: string; rejected: string; deferred: string };
  /** A number whose text the far side takes and then goes away without an answer; null where nothing can be lost. */
  numberOfLostAnswer: string | null;
  /** Everything that the far side has taken. */
  delivered: () => Promise<readonly DeliveredText[]>;
  /** The first receipt for a text that was accepted; null where the provider does not take receipts itself. */
  receiptOf: ((providerMessageId: string) => Promise<SmsReceipt>) | null;
  /** Closes the far side, and checks that the provider has left nothing open. */
  dispose: () => Promise<void>;
};

const texts = {
  short: 'Your code is 123456.',
  extended: 'Größe & Preis: {10} €\n~ [ok] \\ ^ | @ £ Ω',
  unicode: 'Здравствуйте, 你好 👋🏽',
  long: `${'A long text with some €uros and {braces}. '.repeat(12)}The end.`,
  longUnicode: `${'Длинный текст 👋 '.repeat(20)}Конец.`,
};

export function describeSmsProvider(name: string, createHarness: () => Promise<SmsProviderHarness>): void {
  describe(`the ${name} provider keeps the contract of SMS providers`, () => {
    let harness: SmsProviderHarness;
    let confirmed: string[];

    beforeEach(async () => {
      harness = await createHarness();
      confirmed = [];
    });
    afterEach(async () => {
      await harness.provider.close();
      await harness.dispose();
    });

    function handOffTo(to: string, more: Partial<SmsHandOff> = {}): Promise<SendOutcome<SmsFailure>> {
      return harness.provider.handOff({
        reference: { organizationId: 'org_test', messageId: 'msg_test', ordinal: confirmed.length },
        sender: { name: 'Postillion', type: 'alphanumeric' },
        to,
        text: texts.short,
        confirm: async () => {
          confirmed.push(to);
        },
        signal: new AbortController().signal,
        ...more,
      });
    }

    it.each(Object.entries(texts))(
      'delivers a text character for character, to its number, under its sender: %s',
      async (_kind, text) => {
        const outcome = await handOffTo(harness.numbers.accepted, { text });
        expect(outcome.kind).toBe('accepted');
        expect(outcome.kind === 'accepted' && outcome.providerMessageId).not.toBe('');
        expect(await harness.delivered()).toEqual([
          { from: 'Postillion', to: harness.numbers.accepted, text },
        ]);
      },
    );

    it.each([
      ['long_code', '15551230000'],
      ['short_code', '12345'],
      ['toll_free', '18005550100'],
    ] as const)('sends from a %s', async (type, sender) => {
      const outcome = await handOffTo(harness.numbers.accepted, { sender: { name: sender, type } });
      expect(outcome.kind).toBe('accepted');
      expect(await harness.delivered()).toMatchObject([{ from: sender }]);
    });

    it('confirms once, and before anything has been delivered', async () => {
      let deliveredAtConfirm = -1;
      await handOffTo(harness.numbers.accepted, {
        text: texts.long,
        confirm: async () => {
          confirmed.push('once');
          deliveredAtConfirm = (await harness.delivered()).length;
        },
      });
      expect(confirmed).toEqual(['once']);
      expect(deliveredAtConfirm).toBe(0);
    });

    it('delivers nothing that was not confirmed, lets the error through, and goes on working', async () => {
      const refusal = new Error('the claim is not ours any more');
      const lost = handOffTo(harness.numbers.accepted, { confirm: () => Promise.reject(refusal) });
      await expect(lost).rejects.toBe(refusal);
      expect(await harness.delivered()).toEqual([]);
      expect((await handOffTo(harness.numbers.accepted)).kind).toBe('accepted');
      expect(await harness.delivered()).toHaveLength(1);
    });

    it('tells a number that nobody has from one that is put off, with words fit to be stored', async () => {
      const rejected = await handOffTo(harness.numbers.rejected);
      const deferred = await handOffTo(harness.numbers.deferred);
      expect([rejected.kind, deferred.kind]).toEqual(['rejected', 'deferred']);
      expect(rejected).toMatchObject({ reason: 'unknown_subscriber' });
      for (const { reply } of [rejected, deferred]) {
        expect(reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
      }
      expect(await harness.delivered()).toEqual([]);
    });

    it('is uncertain of a text whose answer was lost, delivers it once, and goes on working', async () => {
      if (harness.numberOfLostAnswer === null) return;
      const outcome = await handOffTo(harness.numberOfLostAnswer);
      expect(outcome.kind).toBe('unknown');
      expect((await handOffTo(harness.numbers.accepted)).kind).toBe('accepted');
      expect((await harness.delivered()).map(({ to }) => to)).toEqual([
        harness.numberOfLostAnswer,
        harness.numbers.accepted,
      ]);
    });

    it('tells under its identifier what became of a text', async () => {
      if (harness.receiptOf === null) return;
      const outcome = await handOffTo(harness.numbers.accepted);
      if (outcome.kind !== 'accepted') throw new Error(`The text was ${outcome.kind}.`);
      const receipt = await harness.receiptOf(outcome.providerMessageId);
      expect(receipt).toMatchObject({ status: 'delivered', failure: null });
      expect(receipt.to ?? harness.numbers.accepted).toBe(harness.numbers.accepted);
      expect(receipt.senderName ?? 'Postillion').toBe('Postillion');
    });

    it('begins nothing after an abort', async () => {
      const reason = new Error('shutting down');
      await expect(handOffTo(harness.numbers.accepted, { signal: AbortSignal.abort(reason) })).rejects.toBe(
        reason,
      );
      expect(confirmed).toEqual([]);
      expect(await harness.delivered()).toEqual([]);
    });

    it('carries through what was confirmed before an abort', async () => {
      const controller = new AbortController();
      const outcome = await handOffTo(harness.numbers.accepted, {
        signal: controller.signal,
        confirm: async () => {
          controller.abort(new Error('shutting down'));
        },
      });
      expect(outcome.kind).toBe('accepted');
      expect(await harness.delivered()).toHaveLength(1);
    });

    it('delivers each of many texts once, whatever becomes of their neighbours', async () => {
      const { accepted, rejected, deferred } = harness.numbers;
      const numbers = Array.from(
        { length: 100 },
        (_, at) => [accepted, accepted, rejected, deferred][at % 4]!,
      );
      const outcomes = await Promise.all(
        numbers.map((number, at) => handOffTo(number, { text: `Number ${at}` })),
      );
      const expectedKinds = ['accepted', 'accepted', 'rejected', 'deferred'];
      expect(outcomes.map(({ kind }) => kind)).toEqual(numbers.map((_, at) => expectedKinds[at % 4]));
      const ids = outcomes.flatMap((outcome) =>
        outcome.kind === 'accepted' ? [outcome.providerMessageId] : [],
      );
      expect(new Set(ids).size).toBe(50);
      const texts = (await harness.delivered()).map(({ text }) => Number(text.replace('Number ', '')));
      expect(texts.sort((a, b) => a - b)).toEqual(numbers.flatMap((_, at) => (at % 4 < 2 ? [at] : [])));
    });

    it('is reachable', async () => {
      expect(await harness.provider.probe()).toBeNull();
    });

    it('ends what is under way before it closes, and takes nothing more', async () => {
      const underWay = handOffTo(harness.numbers.accepted);
      await harness.provider.close();
      expect((await underWay).kind).toBe('accepted');
      expect(await handOffTo(harness.numbers.accepted)).toMatchObject({
        kind: 'deferred',
        reason: 'provider_unavailable',
      });
    });
  });
}
