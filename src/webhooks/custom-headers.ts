/** Headers that a customer adds to the webhooks of an endpoint, such as a token for the gateway before it. */

/** RFC 9110 §5.1. */
const headerName = /^[!#$%&'*+.^_`|~0-9a-z-]{1,100}$/i;

/** Visible ASCII, with blanks in between (RFC 9110 §5.5): line ends would begin another header. */
const headerValue = /^[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?$/;

/** Those that say where the request goes and where it ends, and those that are ours. */
const reservedNames = [
  ...[
    'host',
    'content-length',
    'transfer-encoding',
    'te',
    'trailer',
    'connection',
    'keep-alive',
    'upgrade',
    'expect',
  ],
  ...['content-type', 'content-encoding', 'accept-encoding', 'user-agent'],
];
const reservedPrefixes = ['webhook-', 'proxy-'];

export function isHeaderName(text: string): boolean {
  return headerName.test(text);
}

/** What is wrong with a header, to follow its name; null where nothing is. */
export function findHeaderProblem(name: string, value: string): string | null {
  if (!isHeaderName(name)) return 'is no name of a header, of at most 100 characters';
  const lowered = name.toLowerCase();
  if (reservedNames.includes(lowered) || reservedPrefixes.some((prefix) => lowered.startsWith(prefix)))
    return 'is a header that we set ourselves';
  return headerValue.test(value)
    ? null
    : 'must have a value of 1 to 1000 visible characters of ASCII, with blanks between them';
}
