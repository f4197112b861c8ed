import { parseUrl } from '../../../platform/url.ts';

/**
 * Whether Apple takes this as the `sub` of a token: it refuses blanks and angle brackets in a `mailto:`, and hosts that
 * nobody else can reach. The others take anything.
 */
export function isVapidSubject(subject: string): boolean {
  const host = /^mailto:[^\s<>@:]+@([^\s<>@:]+)$/.exec(subject)?.[1] ?? hostOf(subject);
  return (
    host !== null && /^[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z][a-z0-9-]+$/i.test(host) && !/\.local$/i.test(host)
  );
}

function hostOf(text: string): string | null {
  return text.startsWith('https://') ? (parseUrl(text)?.hostname ?? null) : null;
}
