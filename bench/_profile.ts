import { createBenchInstallation } from './installation.ts';
import { startModule, startServer, stopAllOnExit } from './processes.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import * as d from './deliver.ts';
stopAllOnExit();
const kind = process.argv[2] ?? 'campaign';
const rounds = Number(process.argv[3] ?? 2);
const n = Number(process.argv[4] ?? (kind === 'campaign' ? 20000 : 8000));
const stats = process.env.PGSTATS ? { shared_preload_libraries: 'pg_stat_statements', 'pg_stat_statements.track_planning':'off', track_wal_io_timing: 'on' } : {};
const i = await createBenchInstallation(stats as never);
const sink = startModule('test/support/smtp-sink-process.ts', ['{}']);
const { port } = (await sink.nextLine((line) => 'port' in line)) as { port: number };
const worker = await startServer('worker', {
  POSTILLION_DATA_DIR: i.dataDirectory,
  POSTILLION_SMTP_URL: `smtp://127.0.0.1:${port}?connections=16`,
  LOG_LEVEL: 'info',
  ...(process.env.PROF ? { NODE_OPTIONS: `--cpu-prof --cpu-prof-dir=/tmp/prof` } : {}),
});
const seed = kind === 'campaign' ? d.seedCampaign : d.seedSingles;
await d.deliver(i, worker, () => seed(i, 2000), 2000);
const q = (t: string) => i.database.rows(unpreparedStatement<any>(t));
if (process.env.PGSTATS) { await q('create extension pg_stat_statements'); }
for (let r = 0; r < rounds; r++) {
  if (process.env.PGSTATS) await q('select pg_stat_statements_reset()');
  const [b] = await q('select wal_bytes, wal_records, wal_fpi from pg_stat_wal');
  const run = await d.deliver(i, worker, () => seed(i, n), n);
  const [a] = await q('select wal_bytes, wal_records, wal_fpi from pg_stat_wal');
  console.log(kind, Math.round(run.perSecond), 'worker', run.workerUs?.toFixed(0), 'pg', run.postgresUs?.toFixed(0), 'wal/recipient incl seed', Math.round((a.wal_bytes-b.wal_bytes)/n));
}
if (process.env.PGSTATS) {
  console.table(await q(`select substr(regexp_replace(query,'\\s+',' ','g'),1,70) q, calls, round(total_exec_time) ms, round((total_exec_time/calls*1000)::numeric) us_call, round((total_exec_time*1000/${n})::numeric,1) us_job, round(rows::numeric/calls,1) rows_call, round(wal_bytes/${n}) wal_job, round(shared_blks_hit::numeric/${n},1) hits_job from pg_stat_statements order by total_exec_time desc limit 22`));
  console.table(await q(`select relname, n_tup_ins ins, n_tup_upd upd, n_tup_hot_upd hot, n_tup_del del, pg_size_pretty(pg_relation_size(relid)) size from pg_stat_user_tables where n_tup_ins+n_tup_upd>0 order by 3 desc limit 12`));
}
await worker.stop(); await sink.stop(); await i.remove();
