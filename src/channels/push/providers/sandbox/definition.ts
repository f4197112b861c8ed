import { definePushProvider } from '../../provider-definition.ts';

export const sandbox = definePushProvider({
  settings: {},
  requires: [],
  isChosenBy: null,
  words: {
    settings: 'keeps them in the built-in inbox',
    greeting: 'pushes stay in the sandbox',
    advice: 'Check that the database can be reached: it holds the inbox.',
  },
  isSandbox: true,
  create: async ({ clock, keep }) =>
    (await import('./sandbox.ts')).createSandboxPushProvider({ clock, keep }),
});
