import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { lowestIdAt } from '../platform/ids.ts';

export type KeptKind = 'mail' | 'complaint';

export type NewKept = {
  id: string;
  kind: KeptKind;
  recipient: string;
  digest: Buffer;
  source: Uint8Array;
  isCut: boolean;
};

/** Some that come at the same moment may exceed the limit by as many. */
const insertIfRoom = unpreparedStatement<{ is_kept: boolean }>(
  `with room as (
     select count(*) < $7 as is_left from (select from postmaster_mail where kind = $2 limit $7) kept
   ), new_mail as (
     insert into postmaster_mail (id, kind, recipient, digest, source, is_cut)
     select $1, $2, $3, $4, $5, $6 from room where is_left
     on conflict (digest) do nothing
   )
   select is_left or exists (select from postmaster_mail where digest = $4) as is_kept
   from room`,
);

/** Whether it is kept, now or from before: not if so many of its kind are. */
export async function keepMail(connection: Connection, mail: NewKept, keptMax: number): Promise<boolean> {
  const { id, kind, recipient, digest, source, isCut } = mail;
  const [row] = await connection.rows(insertIfRoom, [id, kind, recipient, digest, source, isCut, keptMax]);
  return row?.is_kept === true;
}

export type KeptMail = { id: string; kind: KeptKind; recipient: string; source: Buffer; isCut: boolean };

type KeptRow = { id: string; kind: KeptKind; recipient: string; source: Buffer; is_cut: boolean };

function toKept({ is_cut: isCut, ...row }: KeptRow): KeptMail {
  return { ...row, isCut };
}

/** The newest first, of each as many bytes as its header may have. */
export async function listMail(
  connection: Connection,
  { limit, headBytesMax }: { limit: number; headBytesMax: number },
): Promise<KeptMail[]> {
  const rows = await connection.rows(
    unpreparedStatement<KeptRow>(
      `select id, kind, recipient, substring(source for $2) as source, is_cut
       from postmaster_mail
       order by id desc
       limit $1`,
    ),
    [limit, headBytesMax],
  );
  return rows.map(toKept);
}

export async function findMail(connection: Connection, id: string): Promise<KeptMail | null> {
  const [row] = await connection.rows(
    unpreparedStatement<KeptRow>(
      'select id, kind, recipient, source, is_cut from postmaster_mail where id = $1',
    ),
    [id],
  );
  return row === undefined ? null : toKept(row);
}

/** Those of the ids, or all if it is null. Returns how many there were. */
export async function deleteMail(connection: Connection, ids: readonly string[] | null): Promise<number> {
  const rows = await connection.rows(
    unpreparedStatement(
      'delete from postmaster_mail where $1::uuid[] is null or id = any ($1::uuid[]) returning true as is_deleted',
    ),
    [ids],
  );
  return rows.length;
}

export async function countMail(connection: Connection): Promise<Record<KeptKind, number>> {
  const rows = await connection.rows(
    unpreparedStatement<{ kind: KeptKind; count: number }>(
      'select kind, count(*)::integer as count from postmaster_mail group by kind',
    ),
    [],
  );
  return { mail: 0, complaint: 0, ...Object.fromEntries(rows.map(({ kind, count }) => [kind, count])) };
}

/** All at once: there are never more than some thousand. */
export async function deleteMailBefore(connection: Connection, before: Date): Promise<void> {
  await connection.rows(unpreparedStatement('delete from postmaster_mail where id < $1'), [
    lowestIdAt(before.getTime()),
  ]);
}
