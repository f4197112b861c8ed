/**
 * The address of a push's recipient, which is a device: the account that it is reached by, such as
 * `web fcm.googleapis.com`, and its id. The normalised address (`address_key`) is the id of the contact, by which all that
 * was sent to a contact is found, and erased with it.
 */
export function writePushAddress(account: string, deviceId: string): string {
  return `${account} ${deviceId}`;
}

/** SQL for the same, given SQL for both. */
export function pushAddressInSql(account: string, deviceId: string): string {
  return `${account} || ' ' || ${deviceId}`;
}

export type PushAddress = { account: string; deviceId: string };

/** Null of an address that was erased. */
export function readPushAddress(address: string): PushAddress | null {
  const end = address.lastIndexOf(' ');
  return end === -1 ? null : { account: address.slice(0, end), deviceId: address.slice(end + 1) };
}
