import type { SubmissionListener, SubmissionOptions } from './listener.ts';

/** The entry of this room: emails by SMTP, from programs that know nothing else. */
export type { SubmissionListener, SubmissionOptions } from './listener.ts';
export { readMessageTask } from './reading.ts';

/** Rejects if an address cannot be listened on, or the certificate not be read. */
export async function startSubmissionListener(options: SubmissionOptions): Promise<SubmissionListener> {
  // Most installations have none, and the thread that reads messages has no use for it.
  const listener = await import('./listener.ts');
  return listener.startSubmissionListener(options);
}
