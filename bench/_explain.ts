import { createBenchInstallation } from './installation.ts';
import { stopAllOnExit } from './processes.ts';
import * as d from './deliver.ts';
import { readFileSync } from 'node:fs';
stopAllOnExit();
const i = await createBenchInstallation();
await d.seedCampaign(i, 20000);
const c = await i.connectPlainly();
await c.query("update delivery_queue set due_at = now(); vacuum delivery_queue".split(';')[0]!);
await c.query("vacuum analyze delivery_queue");
await c.query("insert into workers values (1,'x',1,now())");
const src = readFileSync('src/messages/queue-store.ts','utf8');
const get = (name: string) => { const m = new RegExp(`'${name}',\\s*\`([\\s\\S]*?)\``).exec(src)!; return m[1]!.replaceAll(/\$\{unburiedWorker\('(\$\d)'\)\}/g, 'select from workers where epoch = $1 for share').replaceAll('${organizationsMax}','200').replaceAll('${suspectCrashes}','2'); };
let claim = get('queue_claim_due').replace('epoch = $1 for', 'epoch = $5 for');
await c.query(`prepare claim (smallint, uuid, timestamptz, integer, bigint) as ${claim}`);
const mode = process.argv[2] ?? 'force_generic_plan';
await c.query('set enable_seqscan=off; set enable_hashjoin=off; set enable_mergejoin=off');
await c.query(`set plan_cache_mode = ${mode}`);
for (let k = 0; k < 12; k++) {
  const r = await c.query(`explain (analyze, buffers, wal) execute claim (1, '00000000-0000-0000-0000-000000000000', now(), 256, 1)`);
  const t = r.rows.map((x) => x['QUERY PLAN']).join('\n');
  if (k === 11) console.log(t); else console.log(/Execution Time.*/.exec(t)![0]);
}
await c.end(); await i.remove();
