import type { Finding } from './channel.ts';

/**
 * One for each address, in the order of the addresses, as everybody locks them who locks more than one: that of the message
 * that was sent last, since what a provider says of an address was true when it was.
 */
export function latestOfEach<Found extends Pick<Finding, 'addressKey' | 'sentAt'>>(
  findings: readonly Found[],
): Found[] {
  const latest = new Map<string, Found>();
  for (const finding of findings) {
    const other = latest.get(finding.addressKey);
    if (other === undefined || sentMs(finding) > sentMs(other)) latest.set(finding.addressKey, finding);
  }
  return [...latest.values()].sort((one, other) => (one.addressKey < other.addressKey ? -1 : 1));
}

function sentMs({ sentAt }: Pick<Finding, 'sentAt'>): number {
  return sentAt?.getTime() ?? Infinity;
}
