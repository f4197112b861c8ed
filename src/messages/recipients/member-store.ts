import type { SendingChannel } from '../../channels/channel.ts';
import { reachableDevices } from '../../devices/devices.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import type { MessageKey } from '../keys.ts';
import type { DropReason } from '../schema.ts';
import { type ContactVariables, valuesOf } from './contact-values-store.ts';
import { keyOfContact, type Reach } from './reach.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from './store.ts';

/** Members of a frozen audience: contacts, each with the device of it at the same place, or no devices at all. */
export type NewMembers = { contactIds: readonly string[]; deviceIds: readonly string[] };

export type NewRecipients = {
  message: MessageKey;
  channel: SendingChannel;
  members: NewMembers;
  /** The ordinal of the first member; the others follow. */
  firstOrdinal: number;
  reach: Reach;
  variables: ContactVariables;
  /** When the audience was frozen. */
  chosenAt: Date;
};

/**
 * Inserts members as recipients and returns those that are dropped at once. Addresses and values are those of this
 * moment.
 */
export async function insertCampaignRecipients(
  connection: Connection,
  recipients: NewRecipients,
  at: Date,
): Promise<ChangedRecipient[]> {
  const { message, members, reach, variables } = recipients;
  const values: unknown[] = [
    message.organizationId,
    message.messageId,
    members.contactIds,
    recipients.firstOrdinal,
    at,
    recipients.channel,
  ];
  const bind = (value: unknown) => `$${values.push(value)}`;
  const place =
    reach.kind === 'devices' ? findDevices(reach, recipients, bind) : findAddress(reach, recipients, bind);
  const rows = await connection.rows(
    unpreparedStatement<ChangedRow & { drop_reason: DropReason }>(
      `with inserted as (
         insert into recipients
           (organization_id, message_id, ordinal, field, address, address_key, contact_id, device_id, variables, status_at,
           drop_reason)
         select $1, $2, $4::integer + wanted.position::integer - 1, 'to', coalesce(${place.address}, ''),
           coalesce(${keyOfContact(reach)}, ''), wanted.contact_id, ${place.deviceId}, ${valuesOf(variables, bind)}, $5,
           case
             when c.id is null then 'contact_deleted'
             when ${place.address} is null then 'no_address'
             when $6 = any (c.unsubscribed_channels) then 'unsubscribed'
             ${place.furtherDrops}
           end
         from ${place.members}
         left join contacts c on c.organization_id = $1 and c.id = wanted.contact_id${place.join}
         returning organization_id, message_id, ordinal, contact_id, address_key, drop_reason
       )
       select organization_id, message_id, ordinal, contact_id, address_key, drop_reason
       from inserted
       where drop_reason is not null`,
    ),
    values,
  );
  return rows.map((row) => toChanged(row, [{ what: 'dropped', at, dropReason: row.drop_reason }]));
}

/** SQL for the place at which each of the `wanted` members is reached now; its address is null if there is none. */
type Place = {
  members: string;
  join: string;
  address: string;
  deviceId: string;
  /** Of a `case`: reasons for a drop besides those of all channels. */
  furtherDrops: string;
};

/**
 * An address that has moved to another contact since the contacts were chosen may have a row already. Only contacts that
 * were changed since then can have got such an address, so only these are checked. Clocks of nodes may differ by up to an
 * hour.
 */
function findAddress(
  { columns: { address, key } }: Extract<Reach, { kind: 'address' }>,
  { chosenAt }: NewRecipients,
  bind: (value: unknown) => string,
): Place {
  return {
    members: 'unnest($3::uuid[]) with ordinality as wanted (contact_id, position)',
    join: '',
    address: `c.${address}`,
    deviceId: 'null::uuid',
    furtherDrops: `when c.updated_at > ${bind(chosenAt)}::timestamptz - interval '1 hour' and exists (
               select
               from recipients r
               where r.organization_id = $1
                 and r.message_id = $2
                 and r.address_key = c.${key} collate "default"
             ) then 'duplicate'`,
  };
}

/** A device that was retired since it was chosen, or is another contact's, is not written to. */
function findDevices(
  { addressOf }: Extract<Reach, { kind: 'devices' }>,
  { members: { deviceIds } }: NewRecipients,
  bind: (value: unknown) => string,
): Place {
  const own = reachableDevices({ organizationId: '$1', id: 'wanted.contact_id' });
  return {
    members: `unnest($3::uuid[], ${bind(deviceIds)}::uuid[]) with ordinality as wanted (contact_id, device_id, position)`,
    join: `
         left join lateral (select * from (${own}) own where own.id = wanted.device_id) device on true`,
    address: addressOf('device.account', 'device.id'),
    deviceId: 'wanted.device_id',
    furtherDrops: '',
  };
}
