import type { Installation } from '../installation/installation.ts';
import { countSetAside } from '../messages/messages.ts';
import { type Finding, ok, problem } from './finding.ts';

/** More are told as so many: beyond it they are not counted. */
const setAsideMax = 10_000;

/** Jobs that no worker tries any more. */
export async function examineSetAside({ database }: Installation): Promise<Finding[]> {
  const counts = await countSetAside(database, setAsideMax);
  if (counts.size === 0) return [ok('queue', 'no job was set aside')];
  const jobs = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const byChannel = [...counts].map(([channel, count]) => `${channel}: ${count}`).join(', ');
  return [
    problem(
      'queue',
      `${jobs === setAsideMax ? 'at least ' : ''}${jobs} ${jobs === 1 ? 'job was' : 'jobs were'} set aside and ${jobs === 1 ? 'is' : 'are'} tried no more (${byChannel})`,
      'See "bin/postillion queue list"; once the cause is mended, run "bin/postillion queue retry --all".',
    ),
  ];
}
