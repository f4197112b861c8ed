import type { SendingChannel } from '../../channels/channel.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { isLivingWorker } from '../../platform/queue/lease.ts';

/** What a worker has open on a channel: of so many accounts, or of the provider as a whole (null). */
export type OpenBreaker = {
  channel: SendingChannel;
  provider: string;
  accounts: number | null;
  openedAt: Date;
};

/** Writes what a worker has open on a channel; nothing, if the worker was buried. It waits for none of the worker's claims. */
export async function keepOpenBreaker(
  connection: Connection,
  epoch: number,
  { channel, provider, accounts, openedAt }: OpenBreaker,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into open_breakers (epoch, channel, provider, accounts, opened_at)
       select epoch, $2, $3, $4, $5 from workers where epoch = $1
       on conflict (epoch, channel) do update
       set provider = excluded.provider, accounts = excluded.accounts, opened_at = excluded.opened_at`,
    ),
    [epoch, channel, provider, accounts, openedAt],
  );
}

export async function deleteOpenBreaker(
  connection: Connection,
  epoch: number,
  channel: SendingChannel,
): Promise<void> {
  await connection.rows(unpreparedStatement('delete from open_breakers where epoch = $1 and channel = $2'), [
    epoch,
    channel,
  ]);
}

/**
 * What living workers have open, by channel and provider. The same account may be counted by several workers, so that
 * `accounts` is what the worker has that has most.
 */
export async function listOpenBreakers(connection: Connection): Promise<OpenBreaker[]> {
  const rows = await connection.rows(
    unpreparedStatement<{
      channel: SendingChannel;
      provider: string;
      accounts: number | null;
      opened_at: Date;
    }>(
      `select b.channel, b.provider, max(b.accounts) as accounts, min(b.opened_at) as opened_at
       from open_breakers b
       where ${isLivingWorker('b.epoch')}
       group by b.channel, b.provider
       order by b.channel, b.provider`,
    ),
  );
  return rows.map(({ opened_at: openedAt, ...row }) => ({ ...row, openedAt }));
}
