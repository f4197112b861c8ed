// Makes the package that is published, in the folder that is named, or in this one: what "files" in package.json lists,
// with a package.json of its own. What is bundled into dist/ is a dependency of the checkout, so that tools that look for
// faults in what runs see it; of the package it is none, since nobody has to install it once more.
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const root = path.resolve(import.meta.dirname, '..');
const destination = path.resolve(process.argv[2] ?? root);

const folder = await mkdtemp(path.join(tmpdir(), 'postillion-package-'));
try {
  const listed = await pack(root, folder);
  await run('tar', ['-xzf', path.join(folder, listed.filename), '-C', folder]);
  const manifest = path.join(folder, 'package', 'package.json');
  await writeFile(manifest, publish(JSON.parse(await readFile(manifest, 'utf8'))));
  console.log(JSON.stringify(await pack(path.join(folder, 'package'), destination), null, 2));
} finally {
  await rm(folder, { recursive: true, force: true });
}

/** Without scripts: they would build dist/ again. Returns what npm says of the package. */
async function pack(from, to) {
  const { stdout } = await run('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', to], {
    cwd: from,
    maxBuffer: 2 ** 26,
  });
  return JSON.parse(stdout)[0];
}

/** `private` keeps a checkout from being published in its place. */
function publish(manifest) {
  const {
    private: _,
    scripts,
    dependencies,
    devDependencies,
    overrides,
    allowScripts,
    ...published
  } = manifest;
  return `${JSON.stringify(published, null, 2)}\n`;
}
