import { parseUrl } from '../../platform/url.ts';

/**
 * The push services of browsers. An endpoint of Web Push is a URL that a stranger gives, and that this installation posts
 * to: only known services are allowed, as an endpoint is registered and again before something is sent to it.
 */

/** A host as settings name it: `fcm.googleapis.com`, `*.notify.windows.com` for all names below it, or with a port. */
const hostPattern = /^(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d{1,5})?$/;

export function isPushHostPattern(text: string): boolean {
  return hostPattern.test(text);
}

/**
 * Whether a URL is written as `https://` and a host. Browsers also take `https:a.example` and `https:///a.example` for one
 * with that host; apps on phones do not.
 */
export function hasHttpsHost(text: string): boolean {
  return /^https:\/\/[^/\\?#\s]/i.test(text);
}

/** The URL as it would be asked for; null for what is none, is not https, or names more than a place. */
export function parseEndpoint(text: string): URL | null {
  const url = hasHttpsHost(text) ? parseUrl(text) : null;
  if (url === null) return null;
  const isPlain = url.username === '' && url.password === '' && url.hash === '';
  return isPlain ? url : null;
}

/** `patterns` are as `isPushHostPattern` takes them. A port other than 443 is allowed where a pattern names it. */
export function isPushHost({ host }: URL, patterns: readonly string[]): boolean {
  return pushServiceOf(host, patterns) !== null;
}

/** The pattern that allows a host, which stands for the service that has it; null for a host that none allows. */
export function pushServiceOf(host: string, patterns: readonly string[]): string | null {
  if (patterns.includes(host)) return host;
  return patterns.find((pattern) => isWildcard(pattern) && host.endsWith(pattern.slice(1))) ?? null;
}

/**
 * Whether a host is allowed by a pattern for all names below one: a browser may have made it up. Others stand in the
 * settings, where the operator vouches for them.
 */
export function mayBeMadeUp({ host }: URL, patterns: readonly string[]): boolean {
  const service = pushServiceOf(host, patterns);
  return service !== null && isWildcard(service);
}

function isWildcard(pattern: string): boolean {
  return pattern.startsWith('*.');
}
