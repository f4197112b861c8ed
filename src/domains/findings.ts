import type { ExpectedRecord, Observation, RecordKind } from './records.ts';

/**
 * What is known of a domain's records, and what follows from it.
 *
 * A record is `pending` until something is found at its name, `verified` once that is what it should be, and `failed`
 * when it is something else, or has vanished. A check without a response changes nothing: a silent server proves
 * neither absence nor presence.
 */
export type RecordStatus = 'pending' | 'verified' | 'failed';

export type Finding = { status: RecordStatus; found: readonly string[]; checkedAt: string | null };

/** As it is stored, by kind of record. */
export type Findings = Partial<Record<RecordKind, Finding>>;

export const noFinding: Finding = { status: 'pending', found: [], checkedAt: null };

/**
 * One check's observations over what was known before. A kind that was not asked for is forgotten: what was found before
 * says nothing of the day on which it is asked for again.
 */
export function updateFindings(
  before: Findings,
  observations: ReadonlyMap<RecordKind, Observation>,
  checkedAt: Date,
): Findings {
  const findings: Findings = {};
  for (const [kind, observation] of observations) {
    const known = before[kind];
    if (observation.kind === 'seen') {
      findings[kind] = {
        status: judge(known ?? noFinding, observation),
        found: observation.found,
        checkedAt: checkedAt.toISOString(),
      };
    } else if (known !== undefined) findings[kind] = known;
  }
  return findings;
}

function judge(before: Finding, observation: Extract<Observation, { kind: 'seen' }>): RecordStatus {
  if (observation.isAsExpected) return 'verified';
  const wasThere = before.status !== 'pending';
  return observation.found.length > 0 || wasThere ? 'failed' : 'pending';
}

export function isComplete(expected: readonly ExpectedRecord[], findings: Findings): boolean {
  return expected.every(({ kind, isRequired }) => !isRequired || findings[kind]?.status === 'verified');
}

/** What a verified domain lacks, a sentence each. */
export function listIssues(expected: readonly ExpectedRecord[], findings: Findings): string[] {
  return expected.flatMap(({ kind, type, name, value, isRequired }) => {
    const finding = findings[kind];
    if (!isRequired || finding === undefined || finding.status === 'verified') return [];
    if (finding.found.length === 0) return [`The ${type} record of ${name} is missing.`];
    const second = kind === 'dkim' ? findSecond(finding.found, value) : null;
    return second === null
      ? [`The ${type} record of ${name} is not what it should be.`]
      : [`There must be one ${type} record at ${name}, and there is a second one: ${second}`];
  });
}

/** A key fills 400 characters; its beginning tells it from others. */
const shownCharsMax = 100;

/** Of several records where one should be, the first that is not the one that was asked for; null if there is one. */
function findSecond(found: readonly string[], value: string): string | null {
  const own = found.indexOf(value);
  const second = found.length < 2 ? undefined : found[own === 0 ? 1 : 0];
  return second === undefined ? null : second.slice(0, shownCharsMax);
}

const minuteMs = 60_000;

/** Often while the user waits for it, and hourly for as long as the domain is registered. */
const checkPlan = [
  { untilMs: 30 * minuteMs, everyMs: minuteMs },
  { untilMs: 24 * 60 * minuteMs, everyMs: 10 * minuteMs },
] as const;
const settledIntervalMs = 60 * minuteMs;

/** When a domain is looked at again, in milliseconds of the clock. */
export function nextCheckAtMs(registeredAtMs: number, checkedAtMs: number): number {
  const ageMs = checkedAtMs - registeredAtMs;
  const step = checkPlan.find(({ untilMs }) => ageMs < untilMs);
  return checkedAtMs + (step?.everyMs ?? settledIntervalMs);
}
