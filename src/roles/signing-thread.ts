/** Entry of the threads that sign. */
import { serveSigningThread } from '../channels/email/signing-threads.ts';

serveSigningThread();
