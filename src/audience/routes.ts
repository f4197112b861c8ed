import type { Route } from '../platform/http/route.ts';
import { contactRoutes } from './contact-routes.ts';
import { propertyRoutes } from './property-routes.ts';
import type { AudienceRouteTools } from './route-tools.ts';
import { setRoutes } from './set-routes.ts';
import { suppressionRoutes } from './suppression-routes.ts';

export function audienceRoutes(tools: AudienceRouteTools): Route[] {
  return [
    ...contactRoutes(tools),
    ...setRoutes(tools),
    ...propertyRoutes(tools),
    ...suppressionRoutes(tools),
  ];
}
