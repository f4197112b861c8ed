import { defineEmailProvider } from '../../provider-definition.ts';

export const sandbox = defineEmailProvider({
  settings: {},
  requires: [],
  isChosenBy: null,
  words: {
    settings: 'keeps it in the built-in inbox',
    greeting: 'Email stays in the sandbox',
    advice: 'Check that the database can be reached: it holds the inbox.',
  },
  isSandbox: true,
  isDirect: false,
  create: async ({ inbox }) => (await import('./sandbox.ts')).createSandboxProvider(inbox),
});
