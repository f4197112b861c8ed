import { expect, it } from 'vitest';
import type {
  ChatAppAccount,
  ChatAppHandOff,
  ChatAppProvider,
  SentTemplate,
} from '../../src/channels/chatapp/provider.ts';
import { describeProvider, type ProviderHarness } from './provider-conformance.ts';

/** What every provider of `src/channels/chatapp/provider.ts` promises, beyond what every provider does. */

export type DeliveredMessage = {
  /** E.164, with its plus. */
  to: string;
  /** What the body says with its values, or the code. */
  body: string;
};

/** Recipients are numbers in E.164. */
export type ChatAppProviderHarness = ProviderHarness<ChatAppProvider, DeliveredMessage> & {
  /** Moves the clock until a submitted template has been reviewed. */
  passReview: () => Promise<void>;
};

export const anAccount: ChatAppAccount = {
  id: 'account 1',
  organizationId: 'org_test',
  businessAccountId: '102290129340398',
  phoneNumberIds: ['106540352242922'],
  accessToken: 'EAAJB',
};

export const aTemplate: SentTemplate = {
  name: 'order_shipped',
  language: 'en_US',
  category: 'utility',
  content: {
    kind: 'written',
    components: [
      { type: 'header', text: 'Order {{order_number}}' },
      { type: 'body', text: 'Hello {{first_name}}, it is on its way.' },
      { type: 'footer', text: 'Reply STOP to stop.' },
      {
        type: 'buttons',
        buttons: [
          { type: 'quick_reply', text: 'Stop' },
          { type: 'url', text: 'Track', url: 'https://x.test/t/{{track_id}}' },
          { type: 'phone_number', text: 'Call', phoneNumber: '+15550051310' },
        ],
      },
    ],
    examples: { order_number: '1047', first_name: 'Ana', track_id: 'abc' },
  },
};

const aWrittenText = {
  kind: 'written',
  components: [{ type: 'body', text: 'Good day.' }],
  examples: {},
} as const satisfies SentTemplate['content'];

export const aCodeTemplate: SentTemplate = {
  name: 'sign_in',
  language: 'en',
  category: 'authentication',
  content: {
    kind: 'code',
    addSecurityRecommendation: true,
    codeExpirationMinutes: 10,
    buttonText: 'Copy code',
  },
};

const values = { order_number: '1047', first_name: 'Ana', track_id: 'abc' };

export function aChatAppHandOff(more: Partial<ChatAppHandOff> = {}): ChatAppHandOff {
  return {
    reference: { organizationId: 'org_test', messageId: 'msg_test', ordinal: 0 },
    account: anAccount,
    to: '+4915112345678',
    template: aTemplate,
    reviewedAt: null,
    parameters: values,
    isCampaign: false,
    confirm: () => Promise.resolve(),
    signal: new AbortController().signal,
    ...more,
  };
}

export function describeChatAppProvider(
  name: string,
  createHarness: () => Promise<ChatAppProviderHarness>,
): void {
  describeProvider<ChatAppHandOff, DeliveredMessage, ChatAppProviderHarness>(
    `the ${name} provider keeps the contract of chat-app providers`,
    createHarness,
    {
      compose: (to) => aChatAppHandOff({ to }),
      recipientOf: ({ to }) => to,
      number: (number) => ({ parameters: { ...values, first_name: `number ${number}` } }),
      numberOf: ({ body }) => Number(/number (\d+)/.exec(body)?.[1]),
      refusal: 'unreachable',
    },
    ({ harness, handOffTo }) => {
      it('delivers the values character for character', async () => {
        const { recipients, delivered } = harness();
        const first_name = 'Größe & "Preis": \\ {{track_id}} 👋🏽 你好';
        const outcome = await handOffTo(recipients.accepted, { parameters: { ...values, first_name } });
        expect(outcome.kind).toBe('accepted');
        expect(await delivered()).toEqual([
          { to: recipients.accepted, body: `Hello ${first_name}, it is on its way.` },
        ]);
      });

      it('delivers a code', async () => {
        const { recipients, delivered } = harness();
        const outcome = await handOffTo(recipients.accepted, {
          template: aCodeTemplate,
          parameters: { code: '482913' },
        });
        expect(outcome.kind).toBe('accepted');
        expect((await delivered()).map(({ body }) => body)).toEqual([expect.stringContaining('482913')]);
      });

      it('gives each of many messages an identifier of its own', async () => {
        const { recipients } = harness();
        const outcomes = await Promise.all(Array.from({ length: 40 }, () => handOffTo(recipients.accepted)));
        const ids = outcomes.map((outcome) =>
          outcome.kind === 'accepted' ? outcome.providerMessageId : outcome.kind,
        );
        expect(new Set(ids).size).toBe(40);
      });

      it('takes a template, reviews it, finds it by its id, and lets it be deleted', async () => {
        const { provider, passReview } = harness();
        const submission = await provider.submitTemplate(anAccount, aTemplate);
        if (submission.kind !== 'submitted') throw new Error(`The template was ${submission.kind}.`);
        expect(submission.template).toMatchObject({ name: aTemplate.name, language: aTemplate.language });
        await passReview();
        const { providerTemplateId } = submission.template;
        const wanted = { providerTemplateId, name: aTemplate.name, language: aTemplate.language };
        expect(await provider.reviewTemplates(anAccount, [wanted])).toMatchObject({
          kind: 'reviewed',
          templates: [{ ...wanted, state: 'approved' }],
        });
        expect(await provider.deleteTemplate(anAccount, wanted)).toEqual({ kind: 'gone' });
      });

      it('lets a reviewed template be edited, which is reviewed again', async () => {
        const { provider, passReview } = harness();
        const submission = await provider.submitTemplate(anAccount, aTemplate);
        if (submission.kind !== 'submitted') throw new Error(`The template was ${submission.kind}.`);
        await passReview();
        const { providerTemplateId } = submission.template;
        const edit = await provider.editTemplate(anAccount, {
          ...{ providerTemplateId, mayBeMade: false },
          template: { ...aTemplate, content: aWrittenText },
        });
        if (edit.kind !== 'edited') throw new Error(`The template was ${edit.kind}.`);
        await passReview();
        const { name, language } = aTemplate;
        expect(
          await provider.reviewTemplates(anAccount, [
            { providerTemplateId: edit.template.providerTemplateId, name, language },
          ]),
        ).toMatchObject({ templates: [{ name, language, state: 'approved' }] });
      });

      it('says nothing of a template that was never submitted', async () => {
        const wanted = { providerTemplateId: null, name: 'never_submitted', language: 'en' };
        expect(await harness().provider.reviewTemplates(anAccount, [wanted])).toEqual({
          kind: 'reviewed',
          templates: [],
        });
      });

      it('can examine an account', async () => {
        expect(await harness().provider.examineAccount(anAccount)).toMatchObject({ kind: 'examined' });
      });
    },
  );
}
