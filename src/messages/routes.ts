import type { Route } from '../platform/http/route.ts';
import { emailRoutes } from './email-routes.ts';
import type { MessageRouteTools } from './route-tools.ts';
import { smsRoutes } from './sms-routes.ts';

export { createEngagementRecorder } from './engagement.ts';
export { engagementPages } from './engagement-pages.ts';

export function messageRoutes(tools: MessageRouteTools): Route[] {
  return [...emailRoutes(tools), ...smsRoutes(tools)];
}
