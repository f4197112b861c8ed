import { expect, it } from 'vitest';
import type { SmsHandOff, SmsProvider, SmsReceipt } from '../../src/channels/sms/provider.ts';
import { describeProvider, type ProviderHarness } from './provider-conformance.ts';

/** What every provider of `src/channels/sms/provider.ts` promises, beyond what every provider does. */

export type DeliveredText = {
  /** The name of the sender, without a plus. */
  from: string;
  /** E.164, with its plus. */
  to: string;
  /** Put together again, if it came in parts. */
  text: string;
};

/** Recipients are numbers in E.164. */
export type SmsProviderHarness = ProviderHarness<SmsProvider, DeliveredText> & {
  /** The first receipt for a text that was accepted; null where the provider does not take receipts itself. */
  receiptOf: ((providerMessageId: string) => Promise<SmsReceipt>) | null;
};

const texts = {
  short: 'Your code is 123456.',
  extended: 'Größe & Preis: {10} €\n~ [ok] \\ ^ | @ £ Ω',
  unicode: 'Здравствуйте, 你好 👋🏽',
  long: `${'A long text with some €uros and {braces}. '.repeat(12)}The end.`,
  longUnicode: `${'Длинный текст 👋 '.repeat(20)}Конец.`,
};

export function describeSmsProvider(name: string, createHarness: () => Promise<SmsProviderHarness>): void {
  describeProvider<SmsHandOff, DeliveredText, SmsProviderHarness>(
    `the ${name} provider keeps the contract of SMS providers`,
    createHarness,
    {
      compose: (to) => ({ to, sender: { name: 'Postillion', type: 'alphanumeric' }, text: texts.short }),
      recipientOf: ({ to }) => to,
      number: (number) => ({ text: `Number ${number}` }),
      numberOf: ({ text }) => Number(text.replace('Number ', '')),
      refusal: 'unknown_subscriber',
    },
    ({ harness, confirmed, handOffTo }) => {
      it.each(Object.entries(texts))(
        'delivers a text character for character, to its number, under its sender: %s',
        async (_kind, text) => {
          const { recipients, delivered } = harness();
          const outcome = await handOffTo(recipients.accepted, { text });
          expect(outcome.kind).toBe('accepted');
          expect(await delivered()).toEqual([{ from: 'Postillion', to: recipients.accepted, text }]);
        },
      );

      it.each([
        ['long_code', '15551230000'],
        ['short_code', '12345'],
        ['toll_free', '18005550100'],
      ] as const)('sends from a %s', async (type, sender) => {
        const { recipients, delivered } = harness();
        const outcome = await handOffTo(recipients.accepted, { sender: { name: sender, type } });
        expect(outcome.kind).toBe('accepted');
        expect(await delivered()).toMatchObject([{ from: sender }]);
      });

      it('confirms a text of several parts once', async () => {
        await handOffTo(harness().recipients.accepted, { text: texts.long });
        expect(confirmed).toHaveLength(1);
      });

      it('gives each of many texts an identifier of its own', async () => {
        const { recipients } = harness();
        const outcomes = await Promise.all(Array.from({ length: 50 }, () => handOffTo(recipients.accepted)));
        const ids = outcomes.map((outcome) =>
          outcome.kind === 'accepted' ? outcome.providerMessageId : outcome.kind,
        );
        expect(new Set(ids).size).toBe(50);
      });

      it('tells under its identifier what became of a text', async () => {
        const { recipients, receiptOf } = harness();
        if (receiptOf === null) return;
        const outcome = await handOffTo(recipients.accepted);
        if (outcome.kind !== 'accepted') throw new Error(`The text was ${outcome.kind}.`);
        const receipt = await receiptOf(outcome.providerMessageId);
        expect(receipt).toMatchObject({ status: 'delivered', failure: null });
        expect(receipt.to ?? recipients.accepted).toBe(recipients.accepted);
        expect(receipt.senderName ?? 'Postillion').toBe('Postillion');
      });
    },
  );
}
