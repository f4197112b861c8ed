import { listRouteErrors } from '../../src/platform/http/openapi.ts';
import { type Route, routeKey } from '../../src/platform/http/route.ts';

/** Throws if a route answers an error that its list, and with it the API's description, does not have. */
export type ErrorCheck = (answer: { method: string; path: string; status: number; body: unknown }) => void;

export function createErrorCheck(routes: readonly Route[]): ErrorCheck {
  const known = routes.map((route) => ({
    route,
    pattern: new RegExp(`^/v1${route.path.replaceAll(/:\w+/g, '[^/]+')}$`),
    names: new Set(listRouteErrors(route).map(({ name, statusCode }) => `${statusCode} ${name}`)),
  }));
  return ({ method, path, status, body }) => {
    if (status < 400 || typeof body !== 'object' || body === null || !('name' in body)) return;
    const [place = ''] = path.split('?', 1);
    // A path without parameters is the more exact one.
    const matching = known
      .filter(({ route, pattern }) => route.method === method && pattern.test(place))
      .sort((one, other) => one.route.path.split(':').length - other.route.path.split(':').length);
    const [found] = matching;
    if (found === undefined || found.names.has(`${status} ${String(body.name)}`)) return;
    throw new Error(
      `${routeKey(found.route)} answers ${status} ${String(body.name)}, which it does not list: ${JSON.stringify(body)}`,
    );
  };
}
