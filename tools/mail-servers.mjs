// Fetches Debian's Postfix, Exim and OpenSMTPD, with the libraries that they need, into .mail-servers/, where
// test/journeys/mail-servers.system.test.ts finds them. Nothing is installed: as packages they exclude each other, and what a
// package runs when it is installed is no business of a test. Needs a Debian 12 with its lists of packages: the tests know
// what these versions say.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import path from 'node:path';

/** One folder for all of them: what they contend for are the names of `sendmail`, which no test calls. */
const folder = path.resolve(import.meta.dirname, '../.mail-servers');
/** OpenSMTPD delivers by commands of a shell. */
const packages = ['postfix', 'exim4-base', 'exim4-daemon-light', 'opensmtpd', 'dash'];

if (!existsSync(folder)) {
  if (!/^VERSION_CODENAME=bookworm$/m.test(readFileSync('/etc/os-release', 'utf8'))) {
    throw new Error('Only on Debian 12 are there the packages that the tests know.');
  }
  await fetchAll();
}

async function fetchAll() {
  // Under its final name only once it is complete.
  const place = await mkdtemp(`${folder}-`);
  const debs = path.join(place, 'debs');
  const root = path.join(place, 'root');
  try {
    await mkdir(debs);
    execFileSync('apt-get', ['download', '-qq', ...withLibraries(packages)], {
      cwd: debs,
      // It warns that it cannot change its user in a folder of ours.
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    for (const file of await readdir(debs)) execFileSync('dpkg', ['-x', path.join(debs, file), root]);
    await rm(path.join(root, 'usr/share'), { recursive: true });
    await rename(root, folder);
  } finally {
    await rm(place, { recursive: true, force: true });
  }
}

/** The libraries alone: the rest of what packages depend on is for those who install them. */
function withLibraries(names) {
  const all = new Set(names);
  for (let found = names; found.length > 0;) {
    const text = execFileSync('apt-cache', ['depends', '--important', ...found], { encoding: 'utf8' });
    const libraries = [...text.matchAll(/Depends: ((?:lib|zlib)\S+)/g)].map(([, name]) => name);
    found = [...new Set(libraries)].filter((name) => !all.has(name));
    for (const name of found) all.add(name);
  }
  return [...all];
}
