import { execFile } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import { chmod, mkdtemp, rm, stat } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createOrganization } from '../src/accounts/accounts.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { audienceCsv, defineProperties } from './audience-data.ts';
import { type BenchInstallation, createBenchInstallation } from './installation.ts';
import { cleanUpWhenInterrupted, cpuUs, peakMemoryMb, postgresCpuUs } from './processes.ts';

/**
 * A CSV file of 20 columns into contacts, by the command that operators run: once into an empty organization, once
 * more with nothing to change, and once with a column of tags and a list. The baseline is PostgreSQL's own `copy` of
 * the same file, which it reads itself, into a table of 20 texts without an index. What the checks and the indexes of
 * contacts cost by themselves is told by the imported contacts, copied into a table like theirs.
 */
const contactsCount = Number(process.env.BENCH_CONTACTS ?? 1_000_000);

type Run = {
  measured: string;
  perSecond: number;
  clientUs: number | null;
  postgresUs: number | null;
  memoryMb: number | null;
};

export async function benchImport(): Promise<void> {
  const installation = await createBenchInstallation();
  const folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-bench-csv-'));
  const removeFolder = () => rm(folder, { recursive: true, force: true });
  cleanUpWhenInterrupted(removeFolder);
  try {
    // PostgreSQL reads the file too, as another user where this one is root.
    await chmod(folder, 0o755);
    const [plain, tagged] = [path.join(folder, 'plain.csv'), path.join(folder, 'tagged.csv')];
    await pipeline(Readable.from(audienceCsv(contactsCount, { hasTags: false })), createWriteStream(plain));
    await pipeline(Readable.from(audienceCsv(contactsCount, { hasTags: true })), createWriteStream(tagged));
    const [first, second] = [await createAudience(installation), await createAudience(installation)];
    const runs = [
      await copyFile(installation, plain),
      await importFile(installation, 'contacts', first, [plain]),
      await importFile(installation, 'the same again', first, [plain]),
      await copyContacts(installation, first),
      await copyFile(installation, plain),
      await importFile(installation, 'with tags and a list', second, [tagged, '--list', 'Everybody']),
    ];
    report(runs, (await stat(plain)).size);
  } finally {
    await removeFolder();
    await installation.remove();
  }
}

async function createAudience({ database }: BenchInstallation): Promise<string> {
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  const { id } = await createOrganization(tools, 'An audience');
  await defineProperties(database, id);
  return id;
}

const columns = Array.from({ length: 20 }, (_none, index) => `c${index} text`).join(', ');

const baselineName = 'copy into a bare table';

async function copyFile(installation: BenchInstallation, file: string): Promise<Run> {
  return runPlainly(installation, {
    measured: baselineName,
    create: `create table bare (${columns})`,
    fill: `copy bare from '${file}' with (format csv, header)`,
    drop: 'drop table bare',
  });
}

/** Their own indexes are filled in the order in which they came, as an import does. */
async function copyContacts(installation: BenchInstallation, organizationId: string): Promise<Run> {
  return runPlainly(installation, {
    measured: 'insert … select, indexes of contacts',
    create: 'create table copied (like contacts including all)',
    fill: `insert into copied select * from contacts where organization_id = '${organizationId}' order by id`,
    drop: 'drop table copied',
  });
}

async function runPlainly(
  installation: BenchInstallation,
  work: { measured: string; create: string; fill: string; drop: string },
): Promise<Run> {
  const client = await installation.connectPlainly();
  try {
    await client.query(work.create);
    await client.query('checkpoint');
    const before = postgresCpuUs(installation.dataDirectory);
    const startedAtMs = performance.now();
    await client.query(work.fill);
    const seconds = (performance.now() - startedAtMs) / 1_000;
    const postgresUs = (postgresCpuUs(installation.dataDirectory) - before) / contactsCount;
    await client.query(work.drop);
    const perSecond = contactsCount / seconds;
    return { measured: work.measured, perSecond, clientUs: null, postgresUs, memoryMb: null };
  } finally {
    await client.end();
  }
}

const lookIntervalMs = 50;

async function importFile(
  installation: BenchInstallation,
  measured: string,
  organizationId: string,
  words: readonly string[],
): Promise<Run> {
  const client = await installation.connectPlainly();
  await client.query('checkpoint');
  await client.end();
  const { dataDirectory } = installation;
  const before = postgresCpuUs(dataDirectory);
  const startedAtMs = performance.now();
  let clientUs: number | null = null;
  let memoryMb: number | null = null;
  let postgresUs = 0;
  const output = await new Promise<string>((resolve, reject) => {
    const child = execFile(
      process.execPath,
      ['bin/postillion', 'contacts', 'import', '--org', organizationId, '--json', ...words],
      { env: { ...process.env, POSTILLION_DATA_DIR: dataDirectory }, maxBuffer: 16_777_216 },
      (error, stdout) => {
        clearInterval(looking);
        if (error !== null) reject(new Error(`the import ended with ${error.code}: ${stdout}`));
        else resolve(stdout);
      },
    );
    // Its last look is a moment before its end.
    const looking = setInterval(() => {
      if (child.pid === undefined) return;
      clientUs = cpuUs(child.pid) ?? clientUs;
      memoryMb = peakMemoryMb(child.pid) ?? memoryMb;
      postgresUs = Math.max(postgresUs, postgresCpuUs(dataDirectory) - before);
    }, lookIntervalMs);
  });
  const seconds = (performance.now() - startedAtMs) / 1_000;
  const { rows, bad } = JSON.parse(output) as { rows: number; bad: number };
  if (rows !== contactsCount || bad > 0)
    throw new Error(`not all rows were imported: ${output.slice(0, 500)}`);
  return {
    measured,
    perSecond: contactsCount / seconds,
    clientUs: clientUs === null ? null : clientUs / contactsCount,
    postgresUs: postgresUs / contactsCount,
    memoryMb,
  };
}

function report(runs: readonly Run[], fileBytes: number): void {
  const baselines = runs
    .filter(({ measured }) => measured === baselineName)
    .map(({ perSecond }) => perSecond);
  const baseline = baselines.reduce((sum, each) => sum + each, 0) / baselines.length;
  console.log(
    `\nimport: ${contactsCount} contacts of 20 columns, ${Math.round(fileBytes / 1_048_576)} MB of CSV, process start included`,
  );
  console.table(
    runs.map(({ measured, perSecond, clientUs, postgresUs, memoryMb }) => ({
      name: measured,
      'per second': Math.round(perSecond),
      'to baseline': (perSecond / baseline).toFixed(2),
      'client µs': clientUs === null ? null : Number(clientUs.toFixed(1)),
      'PostgreSQL µs': postgresUs === null ? null : Number(postgresUs.toFixed(1)),
      'peak MB': memoryMb,
    })),
  );
}
