/** The documentation, the alert rules and the dashboard name the metrics that there are, and the rules do what they say. */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import {
  composeMetrics,
  createMeters,
  measureInstallation,
  measureProcesses,
} from '../../src/roles/monitoring/meters.ts';
import { readMeasures } from '../../src/roles/monitoring/condition.ts';
import { startTestServer } from '../support/server.ts';

const root = path.resolve(import.meta.dirname, '../..');
const readHere = (file: string) => readFileSync(path.join(root, file), 'utf8');
const alerts = 'packaging/prometheus/alerts.yml';

/** Every metric, as a scrape declares it, also where it has no values yet. */
let declared: Map<string, string>;

beforeAll(async () => {
  const server = await startTestServer();
  try {
    const { installation } = server;
    expect(await installation.database.rows(unpreparedStatement('select 1'))).toHaveLength(1);
    const meters = createMeters(installation, { role: 'all', process: 1 });
    const text = await composeMetrics([
      await measureProcesses([true]),
      await meters.measure(),
      await measureInstallation(await readMeasures(installation)),
    ]);
    declared = new Map(
      [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name = '', type = '']) => [name, type]),
    );
  } finally {
    await server.stop();
  }
});

/** What names a metric: a histogram has three names. */
function namesOf(text: string): Set<string> {
  return new Set(
    [...text.matchAll(/\b(?:postillion|nodejs|process)_[a-z0-9_]+\b/g)]
      .map(([name]) => name)
      .map((name) => {
        const base = name.replace(/_(bucket|sum|count)$/, '');
        return declared.get(base) === 'histogram' ? base : name;
      }),
  );
}

const own = () => [...declared.keys()].filter((name) => name.startsWith('postillion_'));

test('the documentation has a row for each metric, and for none that there is not', () => {
  const rows = readHere('docs/monitoring.md')
    .split('\n')
    .flatMap((line) => /^\| `(postillion_[a-z_]+)` /.exec(line)?.[1] ?? []);
  expect(rows.toSorted()).toEqual(own().toSorted());
  expect(new Set(rows).size).toBe(rows.length);
});

test('the alert rules name metrics that there are', () => {
  const expressions = readHere(alerts).replaceAll(/^ +(summary|action): .*$|^ *#.*$/gm, '');
  const named = [...namesOf(expressions)];
  expect(named.length).toBeGreaterThan(10);
  expect(named.filter((name) => !declared.has(name))).toEqual([]);
});

test('the dashboard shows metrics that there are, and all of ours', () => {
  type Dashboard = { panels: { title: string; targets: { expr: string }[] }[] };
  const { panels } = JSON.parse(readHere('packaging/grafana/postillion.json')) as Dashboard;
  const named = namesOf(panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)).join('\n'));
  expect([...named].filter((name) => !declared.has(name))).toEqual([]);
  expect(own().filter((name) => !named.has(name))).toEqual([]);
  expect(new Set(panels.map(({ title }) => title)).size).toBe(panels.length);
});

test('the documentation says of each alert what it means', () => {
  const names = [...readHere(alerts).matchAll(/- alert: (\w+)/g)].map(([, name]) => name);
  const rows = readHere('docs/monitoring.md')
    .split('\n')
    .flatMap((line) => /^\| `(Postillion\w+)` /.exec(line)?.[1] ?? []);
  expect(rows).toEqual(names);
});

/** This machine's, or the one that `node tools/promtool.mjs` has fetched; null without either. */
function findPromtool(): string | null {
  const fetched = path.join(root, '.promtool/promtool');
  if (existsSync(fetched)) return fetched;
  return spawnSync('promtool', ['--version']).status === 0 ? 'promtool' : null;
}

const promtool = findPromtool();

describe.skipIf(promtool === null)(
  `the alert rules${promtool === null ? ' (skipped: there is no promtool, see tools/promtool.mjs)' : ''}`,
  () => {
    const run = (...words: string[]) =>
      execFileSync(promtool ?? '', words, { cwd: path.join(root, 'packaging/prometheus'), encoding: 'utf8' });

    test('are understood by Prometheus', () => {
      expect(run('check', 'rules', 'alerts.yml')).toContain('SUCCESS');
    });

    test('wake for what goes wrong, and for nothing else', () => {
      expect(run('test', 'rules', 'alerts.test.yml')).toContain('SUCCESS');
    });

    test('are tested each by each', () => {
      const names = [...readHere(alerts).matchAll(/- alert: (\w+)/g)].map(([, name]) => name);
      const tested = readHere('packaging/prometheus/alerts.test.yml');
      expect(names.filter((name) => !tested.includes(`alertname="${name}", severity`))).toEqual([]);
    });
  },
);
