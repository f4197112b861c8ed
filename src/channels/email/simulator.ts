/**
 * The simulator: addresses at `simulator.postillion.test` choose their outcome by their local part, `bounced@` for
 * instance, or `bounced+anything@` to have more than one. They choose the same one every time: nothing that is heard
 * of them has a lasting effect. The domain is reserved (RFC 6761 §6.2), whatever the provider.
 */

export const simulatorDomain = 'simulator.postillion.test';

/** Whether an address is one of the simulator's. In lower case, or as it was written. */
export function isSimulated(address: string): boolean {
  return address.toLowerCase().endsWith(`@${simulatorDomain}`);
}

/** What the address asks for: `bounced` for `bounced+1@`; null for one that is not the simulator's. */
export function readSimulatorName(address: string): string | null {
  if (!isSimulated(address)) return null;
  return address.toLowerCase().split(/[+@]/, 1)[0] ?? null;
}

/** Whether an address asks to be treated as one that is suppressed. */
export function isSimulatedSuppression(address: string): boolean {
  return readSimulatorName(address) === 'suppressed';
}
