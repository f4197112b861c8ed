/** Entry of the thread that reads large request bodies. */
import { campaignTasks } from '../campaigns/routes.ts';
import { messagePreparations, messageTasks } from '../messages/routes.ts';
import { serveBodyThread } from '../platform/http/body-threads.ts';
import { templateTasks } from '../templates/routes.ts';
import { textFormats } from './text-formats.ts';

serveBodyThread(textFormats, messagePreparations, [...campaignTasks, ...messageTasks, ...templateTasks]);
