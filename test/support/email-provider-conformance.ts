import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { EmailHandOff, EmailProvider } from '../../src/channels/email/provider.ts';
import type { SendOutcome } from '../../src/channels/outcome.ts';

/** What every provider of `src/channels/email/provider.ts` promises, asked of each in the same way. */

type DeliveredEmail = { envelopeFrom: string; recipient: string; content: Buffer };

export type EmailProviderHarness = {
  provider: EmailProvider;
  /** Recipients at which the far side takes, refuses and puts off. */
  recipients: { accepted: string; rejected: string; deferred: string };
  /** Everything that the far side has taken. */
  delivered: () => Promise<readonly DeliveredEmail[]>;
  /** Closes the far side, and checks that the provider has left nothing open. */
  dispose: () => Promise<void>;
};

const message = Buffer.from(
  ['From: a@example.test', 'Subject: dots', '', '.', '..', '.a line', 'b', ''].join('\r\n'),
);

export function describeEmailProvider(
  name: string,
  createHarness: () => Promise<EmailProviderHarness>,
): void {
  describe(`the ${name} provider keeps the contract of email providers`, () => {
    let harness: EmailProviderHarness;
    let confirmed: string[];

    beforeEach(async () => {
      harness = await createHarness();
      confirmed = [];
    });
    afterEach(async () => {
      await harness.provider.close();
      await harness.dispose();
    });

    function handOffTo(recipient: string, more: Partial<EmailHandOff> = {}): Promise<SendOutcome> {
      return harness.provider.handOff({
        reference: { organizationId: 'org_test', messageId: 'msg_test', ordinal: confirmed.length },
        envelopeFrom: 'bounces@send.example.test',
        recipient,
        content: [message],
        confirm: async () => {
          confirmed.push(recipient);
        },
        signal: new AbortController().signal,
        ...more,
      });
    }

    it('delivers the message octet for octet, to its recipient, under its return path', async () => {
      const outcome = await handOffTo(harness.recipients.accepted);
      expect(outcome.kind).toBe('accepted');
      expect(outcome.kind === 'accepted' && outcome.providerMessageId).not.toBe('');
      expect(await harness.delivered()).toEqual([
        {
          envelopeFrom: 'bounces@send.example.test',
          recipient: harness.recipients.accepted,
          content: message,
        },
      ]);
    });

    it('does not care where the message was cut into chunks', async () => {
      const octets = Array.from(message, (_, at) => message.subarray(at, at + 1));
      await handOffTo(harness.recipients.accepted, { content: [Buffer.alloc(0), ...octets] });
      expect((await harness.delivered()).map(({ content }) => content)).toEqual([message]);
    });

    it('confirms once, and before anything has been delivered', async () => {
      let deliveredAtConfirm = -1;
      await handOffTo(harness.recipients.accepted, {
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
      const lost = handOffTo(harness.recipients.accepted, { confirm: () => Promise.reject(refusal) });
      await expect(lost).rejects.toBe(refusal);
      expect(await harness.delivered()).toEqual([]);
      expect((await handOffTo(harness.recipients.accepted)).kind).toBe('accepted');
      expect(await harness.delivered()).toHaveLength(1);
    });

    it('tells a refused recipient from one that is put off, with words fit to be stored', async () => {
      const rejected = await handOffTo(harness.recipients.rejected);
      const deferred = await handOffTo(harness.recipients.deferred);
      expect([rejected.kind, deferred.kind]).toEqual(['rejected', 'deferred']);
      expect(rejected).toMatchObject({ reason: 'mailbox_not_found' });
      for (const { reply } of [rejected, deferred]) {
        expect(reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
      }
      expect(await harness.delivered()).toEqual([]);
    });

    it('begins nothing after an abort', async () => {
      const reason = new Error('shutting down');
      await expect(
        handOffTo(harness.recipients.accepted, { signal: AbortSignal.abort(reason) }),
      ).rejects.toBe(reason);
      expect(confirmed).toEqual([]);
      expect(await harness.delivered()).toEqual([]);
    });

    it('carries through what was confirmed before an abort', async () => {
      const controller = new AbortController();
      const outcome = await handOffTo(harness.recipients.accepted, {
        signal: controller.signal,
        confirm: async () => {
          controller.abort(new Error('shutting down'));
        },
      });
      expect(outcome.kind).toBe('accepted');
      expect(await harness.delivered()).toHaveLength(1);
    });

    it('delivers each of many messages once, whatever becomes of their neighbours', async () => {
      const { accepted, rejected, deferred } = harness.recipients;
      const recipients = Array.from(
        { length: 200 },
        (_, at) => [accepted, accepted, rejected, deferred][at % 4]!,
      );
      const outcomes = await Promise.all(
        recipients.map((recipient, at) =>
          handOffTo(recipient, { content: [Buffer.from(`X-Number: ${at}\r\n\r\n`), message] }),
        ),
      );
      const expectedKinds = ['accepted', 'accepted', 'rejected', 'deferred'];
      expect(outcomes.map(({ kind }) => kind)).toEqual(recipients.map((_, at) => expectedKinds[at % 4]));
      const numbers = (await harness.delivered()).map(
        ({ content }) => /X-Number: (\d+)/.exec(content.toString())![1],
      );
      expect(numbers.map(Number).sort((a, b) => a - b)).toEqual(
        recipients.flatMap((_, at) => (at % 4 < 2 ? [at] : [])),
      );
    });

    it('is reachable', async () => {
      expect(await harness.provider.probe()).toBeNull();
    });

    it('ends what is under way before it closes, and takes nothing more', async () => {
      const underWay = handOffTo(harness.recipients.accepted);
      await harness.provider.close();
      expect((await underWay).kind).toBe('accepted');
      expect(await handOffTo(harness.recipients.accepted)).toMatchObject({
        kind: 'deferred',
        reason: 'provider_unavailable',
      });
    });
  });
}
