/** Of the log of requests: what must not be in it, whose it is, and how much of it there may be. */
import type { Mutant } from '../mutant.ts';

const redaction = ['src/platform/http/redaction.test.ts'];
const recorder = ['src/request-log/recorder.test.ts'];
const journey = ['test/journeys/request-log.test.ts'];
const generated = ['test/journeys/request-log-redaction.test.ts'];

export const requestLog: readonly Mutant[] = [
  {
    file: 'src/platform/http/redaction.ts',
    from: '!all.some(({ sensitive }) => sensitive === true)',
    to: 'true',
    tests: generated,
    named: 'nothing of what a sensitive field was',
    harm: 'one-time codes, tokens and links of refused requests can be read by every key with logs:read',
  },
  {
    file: 'src/platform/http/redaction.ts',
    from: 'Object.hasOwn(named, name) ? (named[name] ?? []) : others',
    to: 'named[name] ?? others',
    tests: redaction,
    harm: 'a field that is called constructor is not judged by its schema',
  },
  {
    file: 'src/platform/http/redaction.ts',
    from: 'isShown && isDescribed(all) ?',
    to: 'isShown ?',
    tests: redaction,
    harm: 'payloads of events, which may hold anything, are shown as they were sent',
  },
  {
    file: 'src/platform/http/redaction.ts',
    from: 'if (isNumber) return maskNumber(text);',
    to: '',
    tests: redaction,
    harm: 'phone numbers of people outlive their erasure for a week',
  },
  {
    file: 'src/platform/http/redaction.ts',
    from: 'return isLong || isNumber || isAddress ? describe(value) : value;',
    to: 'return isLong ? describe(value) : value;',
    tests: redaction,
    harm: 'a phone number that was sent as a number is shown',
  },
  {
    file: 'src/platform/http/logged-request.ts',
    from: "typeof value === 'string' && isUuid(value) ? value.toLowerCase() : '…'",
    to: 'String(value)',
    tests: journey,
    named: 'for an id that is no id',
    harm: 'whoever asks for a contact by its address leaves the address in the log',
  },
  {
    file: 'src/platform/http/logged-request.ts',
    from: 'route?.isLookAtLog === true',
    to: 'false',
    tests: journey,
    named: 'is not shown where it was a look into the log',
    harm: 'the log fills with those who look at it',
  },
  {
    file: 'src/request-log/store.ts',
    from: ' and o.has_request_log',
    to: '',
    tests: recorder,
    named: 'of organizations without a log',
    harm: 'requests of an organization are kept that wants no log of them',
  },
  {
    file: 'src/request-log/store.ts',
    from: '`path = ${path} or route = ${path}`',
    to: '`path = ${path}`',
    tests: journey,
    named: 'filters give what they say',
    harm: 'a filter by an operation finds nothing',
  },
  {
    file: 'src/request-log/recorder.ts',
    from: 'intervalMs * (1 + (request.body?.length ?? 0) / 1_024)',
    to: 'intervalMs',
    tests: recorder,
    named: 'with large bodies less is kept',
    harm: 'refused requests of one organization fill the disk',
  },
  {
    file: 'src/request-log/recorder.ts',
    from: 'if (place === null) return false;',
    to: 'if (place === null) return true;',
    tests: recorder,
    named: 'an organization takes half of the memory',
    harm: 'requests for which there was no room are told of nowhere',
  },
  {
    file: 'src/request-log/recorder.ts',
    from: 'for (const { track, leftOut } of entries) track.leftOut += 1 + leftOut;',
    to: '',
    tests: recorder,
    named: 'for a minute, it is given up',
    harm: 'a log with a hole looks like one of a quiet hour',
  },
  {
    file: 'src/request-log/recorder.ts',
    from: 'for (const { release } of entries) release();',
    to: '',
    tests: recorder,
    named: 'what was written makes room',
    harm: 'after some thousand requests nothing is logged any more until the next start',
  },
  {
    file: 'src/request-log/routes.ts',
    from: 'lowestIdAt(clock.nowMs() - keptMs)',
    to: 'lowestIdAt(0)',
    tests: journey,
    named: 'after a week nothing is shown',
    harm: 'requests are shown that are older than the documentation promises',
  },
];
