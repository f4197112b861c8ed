import type { AddressColumns } from '../../audience/audience.ts';

/**
 * Where the contacts of a campaign are reached on a channel: at the address that each has, or on its devices. Each device
 * is a recipient of its own: a contact with three of them is three recipients.
 */
export type Reach =
  | { kind: 'address'; columns: AddressColumns }
  /** `addressOf` is SQL for a recipient's address, given SQL for the account of a device and for its id. */
  | { kind: 'devices'; addressOf: (account: string, deviceId: string) => string };

/** SQL for what a recipient is compared by (`address_key`), over its row of contacts `c`. */
export function keyOfContact(reach: Reach): string {
  return reach.kind === 'devices' ? 'c.id::text' : `c.${reach.columns.key}`;
}
