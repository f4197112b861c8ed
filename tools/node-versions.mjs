// Fetches the releases of Node.js that Postillion is to run on, beside the one that this is run with, into
// .node-versions/, where test/journeys/installed-package.system.test.ts finds them: the oldest that package.json allows, and the
// newest of each line with long-term support. A package of npm is such a release, and nothing is installed by it.
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';

const folder = path.resolve(import.meta.dirname, '../.node-versions');
const versions = ['20.19.0', '22.23.3', '24.21.0'];

if (!versions.every((version) => existsSync(path.join(folder, version)))) await fetchAll();

async function fetchAll() {
  // Under its final name only once it is complete.
  const place = await mkdtemp(`${folder}-`);
  const whole = path.join(place, 'whole');
  const nameOf = (version) => `node-${version}`;
  try {
    await writeFile(path.join(place, 'package.json'), '{}');
    execFileSync(
      'npm',
      [
        'install',
        '--no-save',
        '--no-package-lock',
        '--ignore-scripts',
        // All of them have a program called node.
        '--no-bin-links',
        '--silent',
        ...versions.map(
          (version) => `${nameOf(version)}@npm:node-${process.platform}-${process.arch}@${version}`,
        ),
      ],
      { cwd: place, stdio: ['ignore', 'ignore', 'inherit'] },
    );
    await mkdir(whole);
    for (const version of versions) {
      await rename(
        path.join(place, 'node_modules', nameOf(version), 'bin', 'node'),
        path.join(whole, version),
      );
    }
    await rm(folder, { recursive: true, force: true });
    await rename(whole, folder);
  } finally {
    await rm(place, { recursive: true, force: true });
  }
}
