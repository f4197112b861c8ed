import { createBenchInstallation } from './installation.ts';
import { stopAllOnExit } from './processes.ts';
import * as d from './deliver.ts';
import { readFileSync } from 'node:fs';
import { rankOf } from '../src/messages/status.ts';
stopAllOnExit();
const i = await createBenchInstallation();
await d.seedCampaign(i, 20000);
const c = await i.connectPlainly();
await c.query("update delivery_queue set claimed_by = 1");
await c.query("vacuum analyze delivery_queue");
const src = readFileSync('src/messages/queue-store.ts','utf8');
const get = (name: string) => { const m = new RegExp(`'${name}',\\s*\`([\\s\\S]*?)\``).exec(src)!; return m[1]!.replaceAll(/\$\{rankOf\('([^']*)'\)\}/g, (_m, a) => rankOf(a)); };
await c.query(`prepare settle as ${get('queue_settle')}`);
await c.query('set enable_seqscan=off; set enable_hashjoin=off; set enable_mergejoin=off');
await c.query(`set plan_cache_mode = force_generic_plan`);
const N = 32;
const { rows: [m] } = await c.query('select organization_id o, message_id m from recipients limit 1');
for (let k = 0; k < 12; k++) {
  const arr = (v: string, t: string) => `array_fill(${v}::${t}, array[${N}])`;
  const nul = (t: string) => `array_fill(null::${t}, array[${N}])`;
  const args = [arr(`'${m.o}'`,'uuid'), arr(`'${m.m}'`,'uuid'), `'{${Array.from({length:N},(_,x)=>k*N+1+x).join(',')}}'::integer[]`, '1', 'now()', arr("'delivered'",'text'), nul('text'), nul('text'), nul('text'), nul('smallint'), nul('text'), nul('text'), nul('text'), arr("'2.0.0 Ok: queued as 0123456789AB'",'text'), arr('true','boolean'), arr('false','boolean'), nul('timestamptz'), nul('smallint'), nul('smallint'), nul('timestamptz')].slice(0, (get('queue_settle').match(/\$\d+/g) ?? []).reduce((a, b) => Math.max(a, Number(b.slice(1))), 0));
  const r = await c.query(`explain (analyze, buffers, wal) execute settle (${args.join(',')})`);
  const t = r.rows.map((x) => x['QUERY PLAN']).join('\n');
  if (k === 11) console.log(t); else console.log(/Execution Time.*/.exec(t)![0]);
}
await c.end(); await i.remove();
