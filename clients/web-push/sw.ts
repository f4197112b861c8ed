/** `sw.js`: a classic script, since a worker of another origin can load nothing else (`importScripts`). */
import { openStore } from './store.ts';
import { startWorker } from './worker.ts';
import type { WorkerScope } from './worker-scope.ts';

// What runs this is a service worker, of which the page's types know nothing.
startWorker(self as unknown as WorkerScope, openStore());
