/** Of contacts, their sets, imports, exports and suppressions. */
import type { Mutant } from '../mutant.ts';

export const audience: readonly Mutant[] = [
  {
    file: 'src/audience/suppression-store.ts',
    from: "   where (excluded.reason = 'unsubscribe') <> (s.reason = 'unsubscribe') and s.opted_out_at is null`",
    to: '   where false`',
    tests: ['src/audience/suppressions.test.ts'],
    named: ' holds when he lifts his, and his when they take it back',
    harm: 'whoever stopped a number that bounced before is written to once the bounce is lifted',
  },
  {
    file: 'src/audience/suppression-store.ts',
    from: "     opted_out_at = case when excluded.reason = 'unsubscribe' then excluded.created_at else s.created_at end",
    to: '     opted_out_at = null',
    tests: ['src/audience/suppressions.test.ts'],
    named: ' holds when he lifts his, and his when they take it back',
    harm: 'an opt-out is forgotten when its address bounces',
  },
  {
    file: 'src/audience/suppression-store.ts',
    from: "and address_hash = $3 and reason = 'unsubscribe'`",
    to: 'and address_hash = $3`',
    tests: ['src/audience/suppressions.test.ts'],
    named: ' holds when he lifts his, and his when they take it back',
    harm: 'START lifts what the operator has suppressed',
  },
  {
    file: 'src/audience/suppressions.ts',
    from: "if (isErasedKey(address)) return Buffer.from(address.slice(erasedPrefix.length), 'hex');",
    to: '',
    tests: ['test/journeys/contacts.test.ts'],
    named: 'what is heard of its messages afterwards names nobody, and still suppresses',
    harm: 'a complaint after the erasure of its address suppresses nobody',
  },
  {
    file: 'src/audience/consents.ts',
    from: '    noteChange({ transaction, newId }, contact),\n  ]);',
    to: '  ]);',
    tests: ['test/journeys/message-segments.test.ts'],
    named: 'a person who opens or unsubscribes is told of, and a machine is not',
    harm: 'a segment of those who consent keeps who unsubscribed',
  },
  {
    file: 'src/audience/contact-store.ts',
    from: "  await connection.rows(\n    unpreparedStatement(\n      'delete from memberships where organization_id = $1 and contact_id = any ($2::uuid[])',\n    ),\n    [organizationId, deleted.map(({ id }) => id)],\n  );\n",
    to: '',
    tests: ['test/journeys/contacts.test.ts'],
    named: 'is gone, takes its memberships along, and is confirmed once',
    harm: 'deleted contacts are counted in their lists for ever',
  },
  {
    file: 'src/audience/contact-store.ts',
    from: "     select m.organization_id, m.change_id, c.id\n     from messaged m\n     join contacts c on ${hasKeyOf('c', 'm', [['phone_number', 'address_key']])}\n",
    to: '     select null::uuid, null::uuid, null::uuid where false\n',
    tests: ['test/journeys/message-segments.test.ts'],
    named: 'texts, and mail that belongs to no campaign, count for whoever has the address',
    harm: "segments that ask of texts miss who is no campaign's recipient",
  },
  {
    file: 'src/audience/contact-store.ts',
    from: 'and c.${addressKeyColumns[channel]} = $2`',
    to: 'and c.email_key = $2`',
    tests: ['test/journeys/sms.test.ts'],
    named: 'stops texts to its number, is answered, and starts them again',
    harm: 'STOP of a number does not unsubscribe the contact who has it',
  },
];
