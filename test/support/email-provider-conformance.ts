import { expect, it } from 'vitest';
import type { EmailHandOff, EmailProvider } from '../../src/channels/email/provider.ts';
import { describeProvider, type ProviderHarness } from './provider-conformance.ts';

/** What every provider of `src/channels/email/provider.ts` promises, beyond what every provider does. */

type DeliveredEmail = { envelopeFrom: string; recipient: string; content: Buffer };

const message = Buffer.from(
  ['From: a@example.test', 'Subject: dots', '', '.', '..', '.a line', 'b', ''].join('\r\n'),
);
const envelopeFrom = 'bounces@send.example.test';

export function describeEmailProvider(
  name: string,
  createHarness: () => Promise<ProviderHarness<EmailProvider, DeliveredEmail>>,
): void {
  describeProvider<EmailHandOff, DeliveredEmail, ProviderHarness<EmailProvider, DeliveredEmail>>(
    `the ${name} provider keeps the contract of email providers`,
    createHarness,
    {
      compose: (recipient) => ({ envelopeFrom, recipient, content: [message] }),
      recipientOf: ({ recipient }) => recipient,
      number: (number) => ({ content: [Buffer.from(`X-Number: ${number}\r\n\r\n`), message] }),
      numberOf: ({ content }) => Number(/X-Number: (\d+)/.exec(content.toString())![1]),
      refusal: 'mailbox_not_found',
    },
    ({ harness, handOffTo }) => {
      it('delivers the message octet for octet, to its recipient, under its return path', async () => {
        const { recipients, delivered } = harness();
        const outcome = await handOffTo(recipients.accepted);
        expect(outcome.kind).toBe('accepted');
        expect(await delivered()).toEqual([
          { envelopeFrom, recipient: recipients.accepted, content: message },
        ]);
      });

      it('does not care where the message was cut into chunks', async () => {
        const { recipients, delivered } = harness();
        const octets = Array.from(message, (_, at) => message.subarray(at, at + 1));
        await handOffTo(recipients.accepted, { content: [Buffer.alloc(0), ...octets] });
        expect((await delivered()).map(({ content }) => content)).toEqual([message]);
      });
    },
  );
}
