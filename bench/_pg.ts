import { readFileSync } from 'node:fs';
import path from 'node:path';
import { createBenchInstallation } from './installation.ts';
import { stopAllOnExit } from './processes.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import * as d from './deliver.ts';
import * as store from '../src/messages/queue-store.ts';
stopAllOnExit();
const kind = process.argv[2] ?? 'campaign';
const n = kind === 'campaign' ? 20000 : 8000;
const CB = Number(process.argv[3] ?? 256), FB = 12, SB = Number(process.argv[4] ?? 32);
const i = await createBenchInstallation();
const q = (t: string) => i.database.rows(unpreparedStatement<any>(t));
const pgUs = () => {
  const pm = readFileSync(path.join(i.dataDirectory, 'postgres/cluster/postmaster.pid'), 'utf8').split('\n')[0];
  let sum = 0;
  for (const pid of readFileSync(`/proc/${pm}/task/${pm}/children`, 'utf8').trim().split(' ')) { try { sum += Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1000; } catch { /* gone */ } }
  return sum;
};
const cpu = () => { const u = process.cpuUsage(); return u.user + u.system; };
await q("insert into workers values (1,'x',1,now())");
for (let round = 0; round < 3; round++) {
  await (kind === 'campaign' ? d.seedCampaign : d.seedSingles)(i, n);
  await new Promise((r) => setTimeout(r, 4200));
  const out: string[] = [];
  const phase = async (name: string, f: () => Promise<void>) => {
    const [wb] = await q('select wal_bytes::bigint w from pg_stat_wal');
    const a = pgUs(), c = cpu();
    await f();
    const b = pgUs(), e = cpu();
    await q('select pg_stat_force_next_flush()');
    const [wa] = await q('select wal_bytes::bigint w from pg_stat_wal');
    out.push(`${name}: pg ${((b - a) / n).toFixed(1)} node ${((e - c) / n).toFixed(1)} wal ${((wa.w - wb.w) / n).toFixed(0)}`);
  };
  const jobs: store.Job[] = [];
  const at = new Date();
  await phase('claim', async () => {
    for (;;) {
      const claim = await store.claimDueJobs(i.database, { epoch: 1, claimNumber: 1, at, lane: kind === 'campaign' ? 1 : 0, itemsMax: CB, afterOrganizationId: '00000000-0000-0000-0000-000000000000' });
      if (claim.jobs.length === 0) break;
      jobs.push(...claim.jobs);
    }
  });
  if (jobs.length !== n) throw new Error(`${jobs.length}`);
  if (kind !== 'campaign') await phase('load', async () => { for (let k = 0; k < n; k += 140) await store.loadDeliverableMessages(i.database, jobs.slice(k, k + 140)); });
  await phase('confirm', async () => { for (let k = 0; k < n; k += FB) if (!await store.announceHandOffs(i.database, jobs.slice(k, k + FB), { epoch: 1, batch: round*1e6+k, batchesOver: k && [round*1e6+k - FB] || [] })) throw new Error('not own'); });
  const w = await import('../src/messages/settlement-writer.ts');
  const { settleOutcome } = await import('../src/messages/settlement.ts');
  const context = { atMs: Date.now(), random: 0.5, dateOf: (ms: number) => new Date(ms) };
  const tools = { database: i.database, log: console as never, random: Math.random, clock: { nowMs: () => Date.now(), monotonicMs: () => performance.now() } as never, secrets: {} as never };
  await phase('settle', async () => { for (let k = 0; k < n; k += SB) await w.writeUntilSettled(tools, { epoch: 1, signal: new AbortController().signal } as never, jobs.slice(k, k + SB).map((job) => ({ settlement: settleOutcome(job, { kind: 'accepted', providerMessageId: '2.0.0 Ok: queued as 0123456789AB', reply: { code: 250, enhancedCode: '2.0.0', diagnostic: 'ok', remote: 'x' } } as never, context), message: { isShared: kind === 'campaign', hasAttachments: false } }))); });
  console.log(kind, out.join(' | '));
  const [left] = await q('select count(*) c from delivery_queue');
  if (left.c > 0) throw new Error(`left ${left.c}`);
}
console.log((await q(`select string_agg(relname || ' upd ' || n_tup_upd || ' hot ' || n_tup_hot_upd, '; ') t from pg_stat_user_tables where n_tup_upd > 10`))[0].t);
await i.remove();
