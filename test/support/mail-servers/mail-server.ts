/** What the tests want of each mail server, whichever it is. */

/**
 * The addresses at which a server listens, each with a conduct of its own. Except at `clear`, STARTTLS is offered, with
 * a certificate that nobody has signed and for another name.
 */
export const hosts = [
  /** Takes mail for those who are known, see `people`. */
  'main',
  /** These refuse at this step. */
  'greeting',
  'ehlo',
  'mail',
  'data',
  'content',
  /** Knows no TLS. */
  'clear',
  /** Takes mail from whoever has the right password. */
  'submission',
  /** To which `main` passes on mail, and which refuses it. */
  'strict',
] as const;
export type Host = (typeof hosts)[number];

/**
 * Whom it knows at `main`: `ann`; `grey`, whose mail is put off until `endGreylisting`; `full`, whose mail is put off at
 * RCPT, and `brimful`, whose mail is refused there, because the mailbox is full; `filling`, whose mailbox turns out to
 * be full after the message was taken; and `former`, an alias for somebody who is not there. After
 * it has refused `dropped`, it hangs up.
 */

/** All domains whose mail stays here; mail for `strict` and `gone` is passed on by `main`. */
export function localDomains(domain: string): string[] {
  return hosts.filter((host) => host !== 'strict').map((host) => `${host}.${domain}`);
}

export const credentials = { user: 'postillion', password: 'a password of the tests' };

/** Announced by `main`, and by `strict`. */
export const messageBytesMax = { main: 100_000, strict: 20_000 };

export type MailServerPlan = {
  addressOf: (host: Host) => string;
  /** Of all addresses. */
  port: number;
  /** All others are below it, such as `main.postfix.test`. */
  domain: string;
  /** Mail to these domains goes to 127.0.0.1, which takes bounces. */
  bounces: { domains: readonly string[]; port: number };
  /** The address at which nobody listens; mail for `gone` is to go there. */
  deadAddress: string;
};

export type MailServer = {
  /** All messages delivered to `ann`. */
  readMailbox: () => Promise<Buffer[]>;
  endGreylisting: () => Promise<void>;
  /** The number of messages that it still wants to deliver. */
  countQueued: () => Promise<number>;
  /** For a person to read, if a test fails. */
  readLog: () => string;
  stop: () => Promise<void>;
};
