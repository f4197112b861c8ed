// Fetches promtool, of Debian's package of Prometheus, into .promtool/, where test/journeys/monitoring-files.system.test.ts finds
// it if there is none on this machine. Nothing is installed.
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import path from 'node:path';

const folder = path.resolve(import.meta.dirname, '../.promtool');

if (!existsSync(folder)) {
  // Under its final name only once it is complete.
  const place = await mkdtemp(`${folder}-`);
  const [debs, root, kept] = ['debs', 'root', 'kept'].map((name) => path.join(place, name));
  try {
    await mkdir(debs);
    await mkdir(kept);
    execFileSync('apt-get', ['download', '-qq', 'prometheus'], {
      cwd: debs,
      // It warns that it cannot change its user in a folder of ours.
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    for (const file of await readdir(debs)) execFileSync('dpkg', ['-x', path.join(debs, file), root]);
    await copyFile(path.join(root, 'usr/bin/promtool'), path.join(kept, 'promtool'));
    await rename(kept, folder);
  } finally {
    await rm(place, { recursive: true, force: true });
  }
}
