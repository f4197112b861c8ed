import type { Mutant } from '../mutant.ts';

const tests = ['test/journeys/webhook-events-of-audience.test.ts'];

/** What programs are told of contacts, suppressions and segments. */
export const webhookEventsOfAudience: readonly Mutant[] = [
  {
    file: 'src/audience/contacts.ts',
    from: 'updated: areSameFields(present, values) ? [] : [id],',
    to: 'updated: [id],',
    tests,
    named: 'a contact is changed',
    harm: 'programs that write back what they were told of a contact do so for ever',
  },
  {
    file: 'src/audience/contacts.ts',
    from: 'if (hadOptedOut && isOwn) unsubscribedBefore.add(channel);',
    to: '',
    tests,
    named: 'what is said of an erased address',
    harm: 'a contact that may be written to again stays unsubscribed in other programs',
  },
  {
    file: 'src/audience/identified-contacts.ts',
    from: '        created: [...created],\n',
    to: '',
    tests,
    named: 'events name people',
    harm: 'nobody is told of the contacts that events make',
  },
  {
    file: 'src/audience/suppression-store.ts',
    from: "select ended.organization_id, 'suppression.deleted', ended.expires_at",
    to: "select ended.organization_id, 'suppression.deleted', now()",
    tests,
    named: 'a suppression that has ended is told so as of its end',
    harm: 'a program believes that an address was suppressed for longer than it was',
  },
  {
    file: 'src/segments/membership.ts',
    from: 'segment.isFilled ? at : null',
    to: 'at',
    tests,
    named: 'tells nothing of its first members',
    harm: 'a new segment of a million contacts makes a million events',
  },
  {
    file: 'src/segments/store.ts',
    from: "status = 'computing', is_filled = false,",
    to: "status = 'computing',",
    tests,
    named: 'tells nothing of its first members',
    harm: 'to correct the conditions of a segment tells programs of everybody who was never meant',
  },
  {
    file: 'src/webhooks/outbox-store.ts',
    from: "isEventWanted('given.organization_id', 'given.type', 'false')",
    to: "'true'",
    tests,
    named: 'want none of it',
    harm: 'every contact of an import is logged for organizations that have no webhook',
  },
  {
    file: 'src/webhooks/numbering.ts',
    from: 'items.length === 1 ? items : cut(items)',
    to: 'cut(items)',
    tests: ['src/webhooks/log.test.ts'],
    named: 'what is told of all alike',
    harm: 'of many who leave a segment together only the first five hundred are told',
  },
  {
    file: 'src/audience/identified-contacts.ts',
    from: 'listConsentChange(id, present.get(id)?.unsubscribed_channels ?? [], ',
    to: 'listConsentChange(id, [], ',
    tests: ['test/journeys/webhook-events-of-audience.test.ts'],
    named: 'events say more of people who have opted out',
    harm: 'programs hear of an opt-out once more with each event that says more of its contact',
  },
];
