import type { BodyPreparation } from '../platform/http/body-threads.ts';
import type { Route } from '../platform/http/route.ts';
import { emailRoutes } from './email-routes.ts';
import { prepareEmailTask, prepareLargeEmail } from './email-send.ts';
import type { MessageRouteTools } from './route-tools.ts';
import type { EmailSendBody } from './schema.ts';
import { smsRoutes } from './sms-routes.ts';

export { createEngagementRecorder } from './engagement.ts';
export { engagementPages } from './engagement-pages.ts';

/** By the key of their route: what the thread that reads large bodies makes of them. */
export const messagePreparations: Readonly<Record<string, BodyPreparation>> = {
  // The schema of the route has let it through.
  'POST /email/send': (body) => prepareLargeEmail(body as EmailSendBody),
};

export const messageTasks = [prepareEmailTask];

export function messageRoutes(tools: MessageRouteTools): Route[] {
  return [...emailRoutes(tools), ...smsRoutes(tools)];
}
