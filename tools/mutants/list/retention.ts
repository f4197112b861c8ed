import type { Mutant } from '../mutant.ts';

const journey = ['test/journeys/retention.test.ts'];

/** Messages that are too old to be kept. */
export const retention: readonly Mutant[] = [
  {
    file: 'src/messages/retention-store.ts',
    from: "           where status in ('queued', 'sending', 'paused') and deleted_at is null and ${isInRange}",
    to: "           where status in ('queued', 'sending') and deleted_at is null and ${isInRange}",
    tests: journey,
    harm: 'the recipients of a campaign that is paused are dropped before they were written to',
  },
  {
    file: 'src/messages/recipients/counts-store.ts',
    from: ' and fresh.recipients > 0`,',
    to: '`,',
    tests: journey,
    harm: 'statistics of an old campaign fall to nothing when it is counted after its recipients are gone',
  },
  {
    file: 'src/messages/kept.ts',
    from: 'const messages = shorter(one.messages, other.messages);',
    to: 'const messages = one.messages ?? other.messages;',
    tests: ['src/messages/kept.test.ts'],
    harm: 'an organization sees messages for longer than its plan keeps them',
  },
  {
    file: 'src/messages/kept.ts',
    from: 'content: shorter(messages, shorter(one.content, other.content))',
    to: 'content: shorter(one.content, other.content)',
    tests: ['src/messages/kept.test.ts'],
    harm: 'what messages say is kept after they are gone',
  },
  {
    file: 'src/messages/store.ts',
    from: '  if (isBeyond(horizon, id)) return null;',
    to: '',
    tests: journey,
    harm: 'a message that is too old for the plan is shown until its partition goes',
  },
  {
    file: 'src/messages/store.ts',
    from: '{ from: wanted.horizon.messagesFrom, to: null }',
    to: '{ from: null, to: null }',
    tests: journey,
    harm: 'lists go on beyond what the plan keeps',
  },
  {
    file: 'src/messages/store.ts',
    from: '    if (rows.length > page.limit) return rows;',
    to: '    if (rows.length > 0) return rows;',
    tests: ['test/journeys/email-read.test.ts'],
    harm: 'pages of messages are cut short after some days',
  },
  {
    file: 'src/messages/retention.ts',
    from: '    after = last;\n  }',
    to: '    after = null;\n    if (last === null) return;\n  }',
    tests: ['src/messages/retention.test.ts'],
    harm: 'contents that must stay for now keep the others from being deleted',
  },
  {
    file: 'src/messages/retention.ts',
    from: '        if (!(await store.areAllCounted(transaction, range))) return false;\n',
    to: '',
    tests: ['src/messages/retention.test.ts'],
    harm: 'changes of recipients that were not counted yet are missing from the statistics for ever',
  },
  {
    file: 'src/messages/retention.ts',
    from: '        await forgetMessagesWithin(transaction, range);\n',
    to: '',
    tests: journey,
    harm: 'the sandbox goes on showing the mail of a contact that is deleted later',
  },
  {
    file: 'src/messages/recipients/token.ts',
    from: '  return `${signedText(recipient)}\\n${contactId.toLowerCase()}`;',
    to: '  return contactId.toLowerCase();',
    tests: ['src/messages/recipients/token.test.ts'],
    harm: 'whoever has one link to unsubscribe can unsubscribe others with it',
  },
  {
    file: 'src/platform/postgres/partitions.ts',
    from: '        if (!(await finish(transaction, range))) throw new Left();\n',
    to: '        await finish(transaction, range);\n',
    tests: ['src/platform/postgres/partitions.test.ts'],
    harm: 'partitions go that something still needs',
  },
  {
    file: 'src/platform/postgres/partitions.ts',
    from: '        if (rows.length === 0) await transaction.rows',
    to: '        await transaction.rows',
    tests: ['src/platform/postgres/partitions.test.ts'],
    harm: 'rows of a clock that was ahead are lost when partitions become smaller',
  },
];
