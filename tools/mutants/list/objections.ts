import type { Mutant } from '../mutant.ts';

const tests = ['test/journeys/objections.test.ts'];

/** What people say on one channel, and what is sent to them on all. */
export const objections: readonly Mutant[] = [
  {
    file: 'src/chatapp/channel.ts',
    from: "findBarredContacts(connection, 'chatapp', contacts)",
    to: "findBarredContacts(connection, 'sms', contacts)",
    tests,
    harm: 'a chat-app campaign goes to a person who has stopped marketing in the app',
  },
  {
    file: 'src/chatapp/choices.ts',
    from: "await optOut(transaction, tools, 'chatapp', number, { scope: 'channel', at })",
    to: "await optOut(transaction, tools, 'sms', number, { scope: 'channel', at })",
    tests,
    harm: 'STOP in the chat app ends texts, and chat-app messages to the number go on',
  },
  {
    file: 'src/push/channel.ts',
    from: "findUnwillingContacts(connection, 'push', contacts)",
    to: "findUnwillingContacts(connection, 'chatapp', contacts)",
    tests,
    harm: 'who says STOP in a chat app gets no pushes either',
  },
];
