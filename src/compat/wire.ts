import type { Route } from '../platform/http/route.ts';
import type { WireRoute } from '../platform/http/wire.ts';

/** A route of ours by its key. */
export type RouteOf = (key: string) => Route;

/** A wire route before the routes are known that carry it out. */
export type Wire = Omit<WireRoute, 'route'> & {
  /** The call of the SDK that makes such a request: `emails.send`. */
  call: string;
  carriedOutBy: (routeOf: RouteOf) => Route;
};

/** Calls of an SDK that are not understood, by the beginning of their paths, and what there is instead. */
export type UnsupportedCall = { path: string; call: string; instead: string };

/** Fields that are refused in calls that are understood. */
export type UnsupportedField = {
  field: string;
  /** What a body has with it. */
  example: Readonly<Record<string, unknown>>;
  instead: string;
};
