import type { Shortcoming } from '../../../provider-definition.ts';

/**
 * When Meta switches off versions of the Graph API (https://developers.facebook.com/docs/graph-api/changelog/versions):
 * about two years after each came out. Requests to one that is gone are answered by the oldest that is left, whose
 * answers may be others than those we read.
 */
const endsAt: Readonly<Record<string, string>> = {
  'v20.0': '2026-09-24',
  'v21.0': '2027-01-21',
  'v23.0': '2027-10-08',
  'v24.0': '2028-02-18',
  'v25.0': '2028-07-29',
};

export const usualGraphVersion = 'v25.0';

/** Long enough to plan an update. */
const warnedBeforeMs = 90 * 24 * 60 * 60 * 1_000;

/** Throws, in words for the operator, where the setting is none. */
export function parseGraphVersion(setting: string): string {
  if (/^v\d{1,2}\.\d$/.test(setting)) return setting;
  throw new Error('POSTILLION_WHATSAPP_GRAPH_VERSION must be a version of the Graph API, such as v25.0');
}

/** What to say of a version that will be gone within 90 days, or is. Null of one that is newer than this table. */
export function findVersionShortcoming(version: string, nowMs: number): Shortcoming | null {
  const day = Object.hasOwn(endsAt, version) ? endsAt[version] : undefined;
  // eslint-disable-next-line no-restricted-globals -- parses, and does not read the present time
  const endsAtMs = day === undefined ? Infinity : Date.parse(`${day}T00:00:00Z`);
  if (nowMs < endsAtMs - warnedBeforeMs) return null;
  const found =
    nowMs < endsAtMs
      ? `Meta switches off version ${version} of its Graph API on ${day ?? ''}`
      : `Meta has switched off version ${version} of its Graph API on ${day ?? ''}`;
  return { found, advice: `Set POSTILLION_WHATSAPP_GRAPH_VERSION to ${usualGraphVersion} or a newer one.` };
}
