/**
 * The release before this one, built from the history. `test/previous-release.json` names its commit; whoever makes a
 * release writes that release's commit there, so that the next one is tried beside it.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const root = path.resolve(import.meta.dirname, '../..');

/** Enough to build it, and to run it. */
const parts = [
  'bin',
  'clients',
  'migrations',
  'package.json',
  'src',
  'tools',
  'gallery',
  'openapi.json',
  'docs',
];

export type PreviousRelease = {
  /** Its `bin/postillion`. */
  entry: string;
  folder: string;
  remove: () => Promise<void>;
};

/** Null, and says so, where the history is not at hand, as in a checkout of a single commit. */
export async function buildPreviousRelease(): Promise<PreviousRelease | null> {
  const record = JSON.parse(await readFile(path.join(root, 'test/previous-release.json'), 'utf8')) as {
    commit: string;
  };
  const isAtHand = await run('git', ['cat-file', '-e', `${record.commit}^{commit}`], { cwd: root }).then(
    () => true,
    () => false,
  );
  if (!isAtHand) {
    console.warn(`the previous release is not tried: this checkout has no commit ${record.commit}`);
    return null;
  }
  const folder = await mkdtemp(path.join(tmpdir(), 'postillion-previous-'));
  const remove = () => rm(folder, { recursive: true, force: true });
  try {
    const archive = path.join(folder, 'previous.tar');
    await run('git', ['archive', '--output', archive, record.commit, ...parts], { cwd: root });
    await run('tar', ['-xf', archive], { cwd: folder });
    // Of this checkout: a release needs few packages that another does not.
    await symlink(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
    await run(process.execPath, ['tools/build.mjs'], { cwd: folder });
    return { entry: path.join(folder, 'bin/postillion'), folder, remove };
  } catch (cause) {
    await remove();
    throw cause;
  }
}
