import { defineSmsProvider } from '../../provider-definition.ts';

export const sandbox = defineSmsProvider({
  settings: {},
  requires: [],
  isChosenBy: null,
  words: {
    settings: 'keeps them in the built-in inbox',
    greeting: 'texts stay in the sandbox',
    advice: 'Check that the database can be reached: it holds the inbox.',
  },
  isSandbox: true,
  create: async ({ clock, keep, intake }) => {
    const { createSandboxSmsProvider } = await import('./sandbox.ts');
    return createSandboxSmsProvider({ clock, keep, report: intake.takeReceipt });
  },
});
