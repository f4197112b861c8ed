/** Of the ground that everything stands on: database, queue, HTTP, DNS. */
import type { Mutant } from '../mutant.ts';

export const platform: readonly Mutant[] = [
  {
    file: 'src/platform/http/idempotency.ts',
    from: "return locks[index]?.is_locked === true ? { kind: 'free' } : { kind: 'concurrent' };",
    to: "return { kind: 'free' };",
    tests: ['src/platform/http/idempotency.test.ts'],
    named: 'while one transaction holds a key another finds it taken, and replays as soon as it is committed',
    harm: 'a request that is repeated while it is under way is carried out twice',
  },
  {
    file: 'src/platform/http/idempotency.ts',
    from: '      return row.fingerprint.equals(fingerprint)\n',
    to: '      return row.fingerprint.length === fingerprint.length\n',
    tests: ['src/platform/http/idempotency.test.ts'],
    named: 'a key that was carried out replays its response byte for byte, and refuses a different request',
    harm: 'another request with a key that was used is answered as if it had been carried out',
  },
  {
    file: 'src/platform/http/idempotency.ts',
    from: '   where kept.created_at > $4`,\n);\n\n/**\n * Claims',
    to: '   `,\n);\n\n/**\n * Claims',
    tests: ['src/platform/http/idempotency.test.ts'],
    named: 'a key that was carried out replays its response byte for byte, and refuses a different request',
    harm: 'a key cannot be used again after its 24 hours',
  },
  {
    file: 'src/platform/http/idempotency.ts',
    from: '   join idempotency_keys kept using (organization_id, endpoint, key)',
    to: '   join idempotency_keys kept using (organization_id, key)',
    tests: ['src/platform/http/idempotency.test.ts'],
    named: 'the same text is another key in another organization and at another endpoint',
    harm: 'a key that was used for an email answers for a text',
  },
  {
    file: 'src/platform/http/server.ts',
    from: '    place?.release();\n    collected.release();',
    to: '    collected.release();',
    tests: ['test/journeys/http-edge.test.ts'],
    named:
      'more requests of an organization than its share are refused with 503, and room that was left is given to the next',
    harm: 'after two thousand requests all are answered 503',
  },
  {
    file: 'src/platform/http/server.ts',
    from: '  } finally {\n    state.admissions -= 1;\n  }',
    to: '  } finally {\n  }',
    tests: ['test/journeys/http-edge.test.ts'],
    named: 'clients that leave before they are answered take no room for ever',
    harm: 'after two thousand requests nobody is let in any more',
  },
];
