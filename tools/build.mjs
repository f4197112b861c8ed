// Turns src/ into dist/, file by file: types are erased, nothing else changes, so that a path relative to a
// source file means the same in both trees. Files of other kinds are copied as they are.
import { build } from 'esbuild';
import { copyFile, mkdir, readdir, rm } from 'node:fs/promises';
import path from 'node:path';

const root = path.resolve(import.meta.dirname, '..');
const source = path.join(root, 'src');
const sources = (await readdir(source, { recursive: true, withFileTypes: true }))
  .filter((entry) => entry.isFile() && !entry.name.endsWith('.test.ts'))
  .map((entry) => path.join(entry.parentPath, entry.name));
const files = sources.filter((file) => file.endsWith('.ts'));
const copied = sources.filter((file) => !file.endsWith('.ts'));
const outputOf = (file) => path.join(root, 'dist', path.relative(source, file));

await build({
  entryPoints: files,
  outdir: path.join(root, 'dist'),
  outbase: source,
  format: 'esm',
  platform: 'node',
  target: 'node20',
  sourcemap: 'linked',
  logLevel: 'warning',
  plugins: [
    {
      name: 'ts-extension-to-js',
      setup: (hooks) => {
        hooks.onLoad({ filter: /\.ts$/ }, async ({ path: file }) => {
          const { readFile } = await import('node:fs/promises');
          const text = await readFile(file, 'utf8');
          return {
            contents: text.replace(/((?:from|import)\s*\(?\s*'\.{1,2}\/[^']+)\.ts'/g, "$1.js'"),
            loader: 'ts',
          };
        });
      },
    },
  ],
});

for (const file of copied) {
  await mkdir(path.dirname(outputOf(file)), { recursive: true });
  await copyFile(file, outputOf(file));
}

const built = files.map((file) => outputOf(file).replace(/\.ts$/, '.js'));
const expected = new Set([...built, ...built.map((file) => `${file}.map`), ...copied.map(outputOf)]);
for (const entry of await readdir(path.join(root, 'dist'), { recursive: true, withFileTypes: true })) {
  const file = path.join(entry.parentPath, entry.name);
  if (entry.isFile() && !expected.has(file)) await rm(file);
}
