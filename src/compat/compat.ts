import { type Route, routeKey } from '../platform/http/route.ts';
import { type BodyTranslation, wireKey, type WireRoute } from '../platform/http/wire.ts';
import { postmarkCalls, postmarkFields, postmarkWires } from './postmark/postmark.ts';
import { resendCalls, resendFields, resendWires } from './resend/resend.ts';
import type { UnsupportedCall, UnsupportedField, Wire } from './wire.ts';

/**
 * The API in the forms of other services, so that a program which uses the SDK of one of them changes its base address and
 * nothing else. There is no logic here: a request is translated into one of our routes, and its answer back.
 */

/** What is understood of each service, and what is not. */
export const services: Readonly<
  Record<
    string,
    {
      wires: readonly Wire[];
      unsupportedCalls: readonly UnsupportedCall[];
      unsupportedFields: readonly UnsupportedField[];
    }
  >
> = {
  resend: { wires: resendWires, unsupportedCalls: resendCalls, unsupportedFields: resendFields },
  postmark: { wires: postmarkWires, unsupportedCalls: postmarkCalls, unsupportedFields: postmarkFields },
};

const wires = Object.values(services).flatMap((service) => service.wires);

/** `routes` are all of ours. */
export function listWires(routes: readonly Route[]): WireRoute[] {
  const byKey = new Map(routes.map((route) => [routeKey(route), route]));
  const routeOf = (key: string) => {
    const route = byKey.get(key);
    if (route === undefined) throw new Error(`there is no route ${key}`);
    return route;
  };
  return wires.map(({ carriedOutBy, ...wire }) => ({ ...wire, route: carriedOutBy(routeOf) }));
}

/** What the thread that reads large bodies translates, by the key of the wire route. */
export const translations: Readonly<Record<string, BodyTranslation>> = Object.fromEntries(
  wires.flatMap((wire) => (wire.translateBody === null ? [] : [[wireKey(wire), wire.translateBody]])),
);
