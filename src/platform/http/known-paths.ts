/**
 * Which methods there are at a path: used only for requests that no route takes. It matches as the router does
 * (find-my-way): percent-encoding is undone, a parameter is one segment, and of several patterns that
 * fit the one with a fixed name before a parameter is meant, read from the left.
 */
export type KnownPaths = {
  /** The pattern that fits the URL of a request, with its methods in the order of `methodsInOrder`; null without one. */
  find: (url: string) => KnownPath | null;
};

/** `pattern` has `:id` for its parameters. */
export type KnownPath = { pattern: string; methods: readonly string[] };

const methodsInOrder = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'];

export function createKnownPaths(routes: readonly { method: string; path: string }[]): KnownPaths {
  const methodsByPattern = new Map<string, string[]>();
  for (const { method, path } of routes)
    methodsByPattern.set(path, [...(methodsByPattern.get(path) ?? []), method]);
  const known = Array.from(methodsByPattern, ([pattern, methods]) => ({
    pattern,
    segments: pattern.split('/'),
    methods: methodsInOrder.filter((method) => methods.includes(method)),
  })).sort((one, other) => (rankOf(one.segments) < rankOf(other.segments) ? -1 : 1));
  const segmentsMax = Math.max(0, ...known.map(({ segments }) => segments.length));
  return {
    find: (url) => {
      // One more than any pattern has is enough to see that none fits.
      const given = pathOf(url).split('/', segmentsMax + 1);
      return known.find(({ segments }) => fits(segments, given)) ?? null;
    },
  };
}

/** Sorts fixed names before parameters, segment by segment. */
function rankOf(segments: readonly string[]): string {
  return segments.map((segment) => (isParameter(segment) ? '1' : '0')).join('');
}

function isParameter(segment: string): boolean {
  return segment.startsWith(':');
}

function fits(segments: readonly string[], given: readonly string[]): boolean {
  return (
    segments.length === given.length &&
    segments.every((segment, index) => isParameter(segment) || segment === given[index])
  );
}

/**
 * The path of a request's target, which may be a whole URL (RFC 9112 §3.2.2), without its query. Percent-encoding that
 * cannot be undone stays as it is.
 */
export function pathOf(url: string): string {
  const path = url.replace(/^https?:\/\/[^/?#]*/i, '').replace(/[?#].*$/s, '');
  try {
    return decodeURI(path);
  } catch {
    return path;
  }
}

/** `There is no PUT /v1/contacts/:id; there are GET, PATCH and DELETE.` */
export function describeMethods(method: string, { pattern, methods }: KnownPath): string {
  const last = methods.at(-1) ?? '';
  const others = methods.slice(0, -1);
  const there = others.length === 0 ? `is ${last}` : `are ${others.join(', ')} and ${last}`;
  return `There is no ${method} ${pattern}; there ${there}.`;
}

/** For the header `allow` (RFC 9110 §10.2.1): a path with GET answers HEAD as well. */
export function listAllowed({ methods }: KnownPath): string {
  return methods.flatMap((method) => (method === 'GET' ? ['GET', 'HEAD'] : [method])).join(', ');
}
