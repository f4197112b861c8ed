/** Of requests that become messages, many at once and over connections that break. */
import type { Mutant } from '../mutant.ts';

export const acceptance: readonly Mutant[] = [
  {
    file: 'src/messages/accept.ts',
    from: 'for (const candidate of candidates) outcomes.push(...(await acceptTogether(tools, [candidate])));',
    to: "outcomes.push(...candidates.map(() => ({ kind: 'failed' as const, cause })));",
    tests: ['src/messages/accept.test.ts'],
    harm: 'one message that cannot be stored fails the two hundred that share its transaction',
  },
  {
    file: 'src/messages/accept.ts',
    from: '    present.has(candidate.id)\n      ?',
    to: '    false\n      ?',
    tests: ['src/messages/accept.test.ts'],
    named: 'the connection breaks',
    harm: 'mail that was stored is answered with 503, and sent twice by whoever repeats it',
  },
  {
    file: 'src/messages/accept.ts',
    from: 'keyStates[keyed++]',
    to: 'keyStates[candidates.indexOf(candidate)]',
    tests: ['src/messages/accept.test.ts'],
    harm: "a request gets the answer of another's key when requests with keys and without share a transaction",
  },
  {
    file: 'src/messages/accept.ts',
    from: 'if (present.size > 0) tools.onQueued();',
    to: '',
    tests: ['src/messages/accept.test.ts'],
    named: 'the connection breaks',
    harm: "what was stored by a commit that was cut off waits for somebody else's message",
  },
  {
    file: 'src/messages/accept.ts',
    from: "if (keysUnderWay.has(keyText)) return { kind: 'refused', error: keyConflict('concurrent') };",
    to: '',
    tests: ['src/messages/accept.test.ts'],
    harm: 'two requests with one key at the same moment send two messages',
  },
  {
    file: 'src/messages/accept.ts',
    from: 'if (keyText !== null) keysUnderWay.delete(keyText);',
    to: '',
    tests: ['src/messages/accept.test.ts'],
    harm: 'a request cannot be repeated with its key while the process lives',
  },
  {
    file: 'src/messages/accept.ts',
    from: '  if (isAnyStored) tools.onQueued();',
    to: '',
    tests: ['src/messages/accept.test.ts'],
    harm: 'each message waits for seconds before anybody looks for it',
  },
  {
    file: 'src/messages/accept.ts',
    from: 'limit: factsOf(facts, submission).plans.get(organizationId)?.quota ?? null,',
    to: 'limit: null,',
    tests: ['src/messages/accept.test.ts'],
    harm: "nobody's quota counts",
  },
  {
    file: 'src/messages/accept.ts',
    from: 'const stored = accepted.filter((candidate) => !quota.refused.has(candidate));',
    to: 'const stored = accepted;',
    tests: ['src/messages/accept.test.ts'],
    harm: 'a message that is refused for its quota is sent all the same',
  },
];
