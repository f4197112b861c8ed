/** Entry of the thread that reads large request bodies. */
import { serveBodyThread } from '../platform/http/body-threads.ts';
import { textFormats } from './text-formats.ts';

serveBodyThread(textFormats);
