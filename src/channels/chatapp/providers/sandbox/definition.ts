import { defineChatAppProvider } from '../../provider-definition.ts';

export const sandbox = defineChatAppProvider({
  settings: {
    POSTILLION_SANDBOX_REVIEW_MS: {
      type: 'text',
      default: '3000',
      about:
        'How long the sandbox reviews a template of chat-app messages, in milliseconds. One whose name contains "reject" is rejected, every other approved.',
    },
    POSTILLION_SANDBOX_PEOPLE_PER_DAY: {
      type: 'text',
      default: 'unlimited',
      about:
        'To how many different people the sandbox lets an organization write in 24 hours, as WhatsApp limits them: 250 for instance. Campaigns that reach it wait.',
    },
  },
  requires: [],
  isChosenBy: null,
  words: {
    settings: 'keeps them in the built-in inbox and reviews templates by itself',
    greeting: 'chat-app messages stay in the sandbox',
    advice: 'Check that the database can be reached: it holds the inbox.',
  },
  isSandbox: true,
  // What it simulates of limits and reviews is in memory.
  processesMax: () => Promise.resolve(1),
  create: async (
    { clock, keep, take },
    { POSTILLION_SANDBOX_REVIEW_MS: review, POSTILLION_SANDBOX_PEOPLE_PER_DAY: people },
  ) => {
    const [{ createSandboxChatAppProvider }, { parsePeoplePerDay }, { parseReviewMs }] = await Promise.all([
      import('./sandbox.ts'),
      import('./limit.ts'),
      import('./reviews.ts'),
    ]);
    return createSandboxChatAppProvider({
      ...{ clock, keep, take },
      reviewMs: parseReviewMs(review),
      peoplePerDayMax: parsePeoplePerDay(people),
    });
  },
});
