import { defineSmsProvider } from '../../provider-definition.ts';

export const sandbox = defineSmsProvider({
  settings: {},
  requires: [],
  isChosenBy: null,
  words: {
    settings: 'keeps them in the built-in inbox',
    greeting: 'texts stay in the sandbox',
    advice: 'See that the database can be reached: the inbox is kept there.',
  },
  isSandbox: true,
  create: async ({ clock, keep, intake }) => {
    const { createSandboxSmsProvider } = await import('./sandbox.ts');
    return createSandboxSmsProvider({ clock, keep, report: intake.takeReceipt });
  },
});
