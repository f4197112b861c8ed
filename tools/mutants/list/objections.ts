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
  {
    file: 'src/audience/consents.ts',
    from: 'return grant !== null && grant.grantedAt >= since;',
    to: 'return false;',
    tests: ['test/journeys/twilio.test.ts', 'test/journeys/chat-app-events.test.ts'],
    named: 'from before',
    harm: 'whoever said START is opted out again by a status of an older message',
  },
  {
    file: 'src/audience/consents.ts',
    from: 'return grant !== null && grant.grantedAt >= since;',
    to: 'return grant !== null;',
    tests: ['test/journeys/twilio.test.ts'],
    named: 'but by one of a later text',
    harm: 'whoever once said START cannot be opted out by a provider any more',
  },
  {
    file: 'src/messages/latest-findings.ts',
    from: 'sentMs(finding) > sentMs(other)',
    to: 'sentMs(finding) < sentMs(other)',
    tests: ['src/messages/latest-findings.test.ts'],
    harm: 'an opt-out that two statuses tell is passed over, since the first of their messages is old',
  },
  {
    file: 'src/chatapp/choices.ts',
    from: 'const at = sentAt ?? now(tools.clock);',
    to: 'const at = now(tools.clock);',
    tests: ['test/journeys/chat-app-events.test.ts'],
    named: 'a person who resumed after a message that is refused late',
    harm: 'whoever resumed marketing before a refusal was told late stays without it',
  },
  {
    file: 'src/audience/contacts.ts',
    from: 'const [shown = row] = await showConsents(transaction, tools, contact.organizationId, [row]);',
    to: 'const shown = row;',
    tests: ['test/journeys/opt-outs.test.ts'],
    named: 'of an address that was erased shows',
    harm: 'a contact is shown as subscribed whose address was opted out by an old link',
  },
  {
    file: 'src/audience/consents.ts',
    from: '    const row = address && shown[address.index];',
    to: '    const row = address && shown[position];',
    tests: ['test/journeys/opt-outs.test.ts'],
    named: 'of an address that was erased shows',
    harm: 'an opt-out of an erased address is shown with another contact of the page',
  },
  {
    file: 'src/audience/suppression-store.ts',
    from: '       where excluded.granted_at >= consent_grants.granted_at`,',
    to: '`,',
    tests: ['src/audience/suppressions.test.ts'],
    named: 'of two consents the later one is kept',
    harm: 'a consent that is told late counts for the last one, and an older refusal undoes the last one',
  },
];
