import { benchAccept } from './accept.ts';
import { benchDeliver } from './deliver.ts';
import { stopAllOnExit } from './processes.ts';

/** `npm run bench [NAME …]`: all benchmarks, or those that are named. Each prints its ratio to a baseline. */
const benchmarks: Readonly<Record<string, () => Promise<void>>> = {
  accept: benchAccept,
  deliver: benchDeliver,
};

const wanted = process.argv.slice(2);
const unknown = wanted.filter((name) => benchmarks[name] === undefined);
if (unknown.length > 0) {
  console.error(
    `No such benchmark: ${unknown.join(', ')}. There are: ${Object.keys(benchmarks).join(', ')}.`,
  );
  process.exit(1);
}
stopAllOnExit();
for (const [name, run] of Object.entries(benchmarks)) {
  if (wanted.length === 0 || wanted.includes(name)) await run();
}
