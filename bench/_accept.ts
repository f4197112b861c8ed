import { createBenchInstallation } from './installation.ts';
import { startServer, stopAllOnExit, cpuUs, postgresCpuUs, startModule } from './processes.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { writeRequest } from './accept.ts';
stopAllOnExit();
const conns = (process.argv[2] ?? '1,16,64').split(',').map(Number);
const rounds = Number(process.argv[3] ?? 2);
const stats = process.env.PGSTATS ? { shared_preload_libraries: 'pg_stat_statements', 'pg_stat_statements.track_planning': 'on' } : {};
const i = await createBenchInstallation(stats);
const q = (t: string) => i.database.rows(unpreparedStatement<any>(t));
const server = await startServer('api', { POSTILLION_DATA_DIR: i.dataDirectory, PORT: '0', LOG_LEVEL: 'info' });
if (process.env.PGSTATS) await q('create extension pg_stat_statements');
const { port } = new URL(server.url);
async function once(connections: number, seconds: number) {
  const load = startModule('bench/load-process.ts', [JSON.stringify({ port: Number(port), request: writeRequest(i.key), connections, seconds })]);
  const a = cpuUs(server.pid) ?? 0, p = postgresCpuUs(i.dataDirectory);
  const r = (await load.nextLine((l) => 'perSecond' in l)) as any;
  return { ...r, api: ((cpuUs(server.pid) ?? 0) - a) / r.count, pg: (postgresCpuUs(i.dataDirectory) - p) / r.count };
}
await once(8, 3);
if (process.env.PGSTATS) await q('select pg_stat_statements_reset()');
for (let k = 0; k < rounds; k++) for (const c of conns) {
  const r = await once(c, 3);
  console.log(String(c).padStart(4), 'per second', r.perSecond.toFixed(0), 'p50', r.p50Ms.toFixed(1), 'p99', r.p99Ms.toFixed(1), 'api', r.api.toFixed(0), 'pg', r.pg.toFixed(0));
}
if (process.env.PGSTATS) console.table(await q(`select substr(regexp_replace(query,'\\s+',' ','g'),1,60) q, calls, plans, round((total_plan_time/greatest(calls,1)*1000)::numeric) plan_us, round((total_exec_time/greatest(calls,1)*1000)::numeric) exec_us from pg_stat_statements order by total_exec_time+total_plan_time desc limit 16`));
await server.stop(); await i.remove();
