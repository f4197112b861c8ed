import { createBenchInstallation } from './installation.ts';
import { stopAllOnExit } from './processes.ts';
import { unpreparedStatement, openDatabase } from '../src/platform/postgres/database.ts';
import { claimKeys, keepResponses } from '../src/platform/http/idempotency.ts';
import { areSuppressed } from '../src/audience/audience.ts';
import { createSecrets } from '../src/platform/secrets.ts';
stopAllOnExit();
const i = await createBenchInstallation();
const c = await i.connectPlainly();
const db = openDatabase({ address: { host: (c as any).host, user: (c as any).user, database: (c as any).database }, connectionsMax: 1 });
const secrets = createSecrets('a'.repeat(64));
for (let k = 0; k < 40; k++) {
  await db.asOrganizations([i.organizationId], async (t) => {
    const keys = [{ organizationId: i.organizationId, endpoint: 'x', key: `k${k}`, fingerprint: Buffer.alloc(32) }];
    await claimKeys(t, keys as never, { expiredBefore: new Date(0) });
    await keepResponses(t, [{ key: keys[0] as never, response: { statusCode: 202, text: '{}' } }], { at: new Date(), expiredBefore: new Date(0) });
  });
  await areSuppressed(db, { secrets } as never, 'email', Array.from({ length: 140 }, (_, n) => ({ organizationId: i.organizationId, address: `a${n}@x` })));
}
console.table(await db.rows(unpreparedStatement('select name, generic_plans::int, custom_plans::int from pg_prepared_statements')));
await db.close(); await c.end(); await i.remove();
