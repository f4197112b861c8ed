import type { Address } from 'postal-mime';

/** An address of a header, with the name that stands beside it. */
export type NamedAddress = { name: string; address: string };

/** The sender and recipients in a message's headers. Blind copies are in no header: see `addBlindCopy`. */
export type Addresses = {
  from: NamedAddress[];
  to: NamedAddress[];
  cc: NamedAddress[];
  bcc: NamedAddress[];
  reply_to: NamedAddress[];
};

export const noAddresses: Addresses = { from: [], to: [], cc: [], bcc: [], reply_to: [] };

/** Groups (RFC 5322 §3.4) are taken for their members. */
export function listAddresses(addresses: readonly Address[] | undefined): NamedAddress[] {
  return (addresses ?? []).flatMap((entry) =>
    entry.group === undefined
      ? [{ name: entry.name, address: entry.address }]
      : entry.group.map(({ name, address }) => ({ name, address })),
  );
}

/** A copy whose recipient is in neither `to` nor `cc` was a blind one. */
export function addBlindCopy(addresses: Addresses, recipient: string): Addresses {
  const isNamed = [...addresses.to, ...addresses.cc].some(
    ({ address }) => address.toLowerCase() === recipient.toLowerCase(),
  );
  return isNamed ? addresses : { ...addresses, bcc: [{ name: '', address: recipient }] };
}
