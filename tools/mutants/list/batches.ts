/** Of many messages that are sent in one request, and of what is kept with messages. */
import type { Mutant } from '../mutant.ts';

const journey = ['test/journeys/batches.test.ts'];

export const batches: readonly Mutant[] = [
  {
    file: 'src/messages/accept.ts',
    from: '        if (refusal !== null) throw new RefusedBatch(refusal);\n',
    to: '',
    tests: journey,
    named: ' in it, and stores nothing',
    harm: 'of a batch that is to be sent as a whole, a part is sent',
  },
  {
    file: 'src/messages/accept.ts',
    from: 'const stored = await acceptAtOnce(tools, accepted, key === null ? [] : [{ key, response }]);',
    to: 'const stored = await acceptAtOnce(tools, accepted, []);',
    tests: journey,
    named: 'is answered once for its key',
    harm: 'a batch that is repeated with its key is sent twice',
  },
  {
    file: 'src/messages/batch.ts',
    from: '    if (item.key !== null && first === undefined) firsts.set(item.key.key, place);\n',
    to: '',
    tests: journey,
    named: 'has keys for its emails',
    harm: 'a batch with one key for two of its messages is answered with 500',
  },
  {
    file: 'src/messages/batch.ts',
    from: '  return Math.ceil(items / itemsPerRequest);',
    to: '  return items === 0 ? 0 : 1;',
    tests: journey,
    named: 'counts as one request for ten of them',
    harm: 'batches get around the limit of requests, five hundred messages at a time',
  },
  {
    file: 'src/email/routes.ts',
    from: '          if (bytes > batchBytesMax) throw new PublicError(payloadTooLarge, tooLargeWhenFilled);\n',
    to: '',
    tests: journey,
    named: 'may be as large as it is sent',
    harm: 'a request of fifty kilobytes takes a gigabyte of memory',
  },
  {
    file: 'src/push/send.ts',
    from: '    metadata: _metadata,\n',
    to: '',
    tests: ['test/journeys/metadata.test.ts'],
    named: 'is sent without it',
    harm: 'what a program keeps with a push for itself is stored with what the push says',
  },
  {
    file: 'src/messages/erasure/store.ts',
    from: "m.details::jsonb - 'contact_id' - 'metadata' ||",
    to: "m.details::jsonb - 'contact_id' ||",
    tests: ['test/journeys/metadata.test.ts'],
    named: 'goes with the contact that they were for',
    harm: 'what was kept of a person with messages outlives the deletion of the contact',
  },
];
