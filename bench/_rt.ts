import { createBenchInstallation } from './installation.ts';
import { stopAllOnExit, postgresCpuUs } from './processes.ts';
import { unpreparedStatement, statement } from '../src/platform/postgres/database.ts';
stopAllOnExit();
const i = await createBenchInstallation();
const c = await i.connectPlainly();
await c.query('create table b (id bigserial primary key, body text)');
const one = statement('one', 'select $1::int');
const ins = statement('ins', "insert into b (body) values ($1)");
const body = 'x'.repeat(400);
async function time(name: string, n: number, f: () => Promise<unknown>) {
  for (let k = 0; k < 300; k++) await f();
  const u = process.cpuUsage(), p = postgresCpuUs(i.dataDirectory), t = performance.now();
  for (let k = 0; k < n; k++) await f();
  const d = process.cpuUsage(u);
  console.log(name.padEnd(40), 'user', (d.user / n).toFixed(0), 'sys', (d.system / n).toFixed(0), 'pg', ((postgresCpuUs(i.dataDirectory) - p) / n).toFixed(0), 'wall', ((performance.now() - t) / n * 1000).toFixed(0));
}
await time('plain client select', 3000, () => c.query({ name: 'one', text: 'select $1::int', values: [1] }));
await time('plain client insert', 2000, () => c.query({ name: 'ins', text: 'insert into b (body) values ($1)', values: [body] }));
await time('rows select', 3000, () => i.database.rows(one, [1]));
await time('rows insert', 2000, () => i.database.rows(ins, [body]));
await time('tx insert', 2000, () => i.database.transaction(async (t) => { await Promise.all([t.rows(ins, [body]), t.commit()]); }));
await time('txByIndex insert', 2000, () => i.database.transactionByIndex(async (t) => { await Promise.all([t.rows(ins, [body]), t.commit()]); }));
await time('asOrg insert', 2000, () => i.database.asOrganizations([i.organizationId], async (t) => { await Promise.all([t.rows(one, [1]), t.commit()]); }));
await time('setImmediate', 20000, () => new Promise((r) => setImmediate(r)));
await c.end(); await i.remove();
