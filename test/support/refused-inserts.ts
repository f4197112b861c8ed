/** A PostgreSQL that ends statements for the sake of other transactions: so that a test need not have such ones. */
import { type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';

/**
 * Has so many of the next statements that insert into a table fail by this condition (PostgreSQL's manual, appendix A),
 * and returns what lets the rest in. Takes the owner of the table.
 */
export async function refuseInserts(
  database: Database,
  {
    table,
    times,
    condition,
  }: { table: string; times: number; condition: 'deadlock_detected' | 'serialization_failure' },
): Promise<() => Promise<void>> {
  const run = (text: string) => database.rows(unpreparedStatement(text));
  // It goes on counting where a transaction is rolled back.
  await run('create sequence refused');
  await run(
    `create function refuse() returns trigger language plpgsql security definer as $$ begin
       if nextval('refused') <= ${times} then
         raise exception 'another transaction was first' using errcode = '${condition}';
       end if;
       return null;
     end $$`,
  );
  await run(`create trigger refuse before insert on ${table} execute function refuse()`);
  return async () => {
    await run('drop function refuse cascade');
    await run('drop sequence refused');
  };
}
