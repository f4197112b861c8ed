/** Of the copies of an email: their dates and headers. */
import type { Mutant } from '../mutant.ts';

export const copies: readonly Mutant[] = [
  {
    file: 'src/channels/email/headers.ts',
    from: "    .filter((word) => word !== '');",
    to: '    .slice();',
    tests: ['src/channels/email/mime.test.ts'],
    named: 'as a person would',
    harm: 'a subject with two blanks is folded with them, and a reader sees one or none',
  },
  {
    file: 'src/channels/email/headers.ts',
    from: "if (encoding.lengthOf(length + added) > lengthMax && word !== '') {",
    to: 'if (word.length >= 45) {',
    tests: ['src/channels/email/mime.test.ts'],
    named: 'has encoded words of at most 75 characters',
    harm: 'readers show encoded words that are too long as they stand',
  },
  {
    file: 'src/channels/email/headers.ts',
    from: 'if (second !== lastDate.second) {',
    to: 'if (Number.isNaN(lastDate.second)) {',
    tests: ['src/channels/email/mime.test.ts'],
    named: 'has the date of each copy',
    harm: 'all mail of a worker is dated when its first left',
  },
  {
    file: 'src/channels/email/dkim.ts',
    from: '    frame?.second === second &&\n    frame.names.length',
    to: '    frame?.names.length',
    tests: ['src/channels/email/dkim.test.ts'],
    named: 'has the time at which it was signed',
    harm: 'a campaign that takes hours is signed with the time of its first copy',
  },
  {
    file: 'src/messages/delivery/settlement-store.ts',
    from: '(isAmbiguous ? job.handOffAt : null)',
    to: '(isAmbiguous ? null : null)',
    tests: ['test/journeys/smtp-relay.test.ts'],
    named: 'is uncertain, and repeated once after a minute with the same octets',
    harm: 'a repeat has another date, and no receiver knows it for the same message',
  },
  {
    file: 'src/messages/delivery/settlement-store.ts',
    from: 'first_handed_off_at = coalesce(q.first_handed_off_at, s.handed_off_at)',
    to: 'first_handed_off_at = s.handed_off_at',
    tests: ['src/messages/delivery/settlement-store.test.ts'],
    named: 'keeps the time of its first hand-off',
    harm: 'a repeat that is deferred is sent as another message, beside the first copy',
  },
  {
    file: 'src/messages/delivery/claim-store.ts',
    from: 'row.first_handed_off_at ?? row.announced_at',
    to: 'row.first_handed_off_at',
    tests: ['test/journeys/delivery.test.ts'],
    named: 'what it was about to hand off is uncertain, and repeated after a minute',
    harm: 'what a dead worker may have sent is sent again as another message',
  },
];
