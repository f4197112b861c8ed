/** An address at which mail comes in from outside. */
export type InboundAddress = {
  /** As it was written. */
  localPart: string;
  /** In lower case. */
  host: string;
};

/** Takes one mail. Resolves once its sender can forget it; may be called twice for the same one. */
export type TakeMail = (source: Uint8Array) => Promise<void>;

/** What takes mail to this address; null if it is none of the mailbox. */
export type Mailbox<Tools> = (tools: Tools, address: InboundAddress) => Promise<TakeMail | null>;

/** Reads anything, also what is no address: then no mailbox has it. */
export function readInboundAddress(text: string): InboundAddress {
  const at = text.lastIndexOf('@');
  return { localPart: text.slice(0, Math.max(at, 0)), host: text.slice(at + 1).toLowerCase() };
}
