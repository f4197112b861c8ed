/** Entry of the thread that reads large request bodies. */
import { messagePreparations } from '../messages/routes.ts';
import { serveBodyThread } from '../platform/http/body-threads.ts';
import { textFormats } from './text-formats.ts';

serveBodyThread(textFormats, messagePreparations);
