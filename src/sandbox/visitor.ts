import net from 'node:net';
import type { PageRequest } from '../platform/http/route.ts';
import { isEqualDigest, type Secrets, sha256 } from '../platform/secrets.ts';
import { isOwnSocket } from './socket-owner.ts';
import { parseUrl } from '../platform/url.ts';

/**
 * Who may open the sandbox. Everyone with the token may, from anywhere: it is in the link that is printed at a start.
 *
 * `loopback` also lets in what asks directly from this machine. Of a proxy on this machine, every request comes from
 * there too, so that an address alone proves nothing: what speaks HTTP/1.0 (nginx before 1.29.7 does, unless told
 * otherwise), carries a header that proxies add or pass on, or asks for another port than ours, is not direct. Nor is,
 * on Linux, what comes from a socket of another user, since proxies run as users of their own. One that runs as ours or
 * as root, and forwards TCP or HTTP/1.1 without a word, cannot be told from a program on this machine. For it there is
 * POSTILLION_PUBLIC_URL: with that, or with trusted proxies, the default is `token`.
 *
 * `token` lets in no one else, and `any` everyone.
 */
export type SandboxAccess = {
  mode: 'loopback' | 'token' | 'any';
  /** What `sandboxToken` makes, asked for at each request: it changes while a process runs. */
  token: () => string;
};

/**
 * The same at every start and on every node, until a rotation of the secret: it is of the newest key in use, and that
 * of an earlier key is good for nothing, so that a link that leaked can be taken back.
 */
export function sandboxToken(secrets: Secrets): string {
  return secrets.sign('', 'sandbox token').subarray(0, tokenBytes).toString('hex');
}

/** As long as a UUID, all of it random: it cannot be guessed, and a link stays short enough to be copied. */
const tokenBytes = 16;

export async function isWelcome(request: PageRequest, { mode, token }: SandboxAccess): Promise<boolean> {
  if (mode === 'any' || isToken(givenToken(request), token())) return true;
  return mode === 'loopback' && isDirect(request) && (await isOfOwnUser(request));
}

/** Whether the token stands in the address, where it came with a link. */
export function isLinkOpened({ query }: PageRequest, { token }: SandboxAccess): boolean {
  return isToken(query.token ?? '', token());
}

const cookieName = 'postillion_sandbox';

/**
 * What keeps a browser welcome after it opened the link. `Strict` sends it with nothing that another site began. It
 * goes to all pages of the installation, since their navigation shows the sandbox only to visitors who may open it;
 * `publicUrl` tells whether there is a path before them, and TLS.
 */
export function tokenCookie({ token }: SandboxAccess, publicUrl: string | null): string {
  const base = publicUrl === null ? null : new URL(publicUrl);
  const path = `${base?.pathname.replace(/\/$/, '') ?? ''}/`;
  const secure = base?.protocol === 'https:' ? '; Secure' : '';
  return `${cookieName}=${token()}; Path=${path}; HttpOnly; SameSite=Strict${secure}`;
}

/** A program gives it as `Authorization: Bearer …` or in the address, a browser as the cookie. */
function givenToken({ query, header }: PageRequest): string {
  const bearer = /^Bearer +(\S+)$/i.exec(header('authorization') ?? '')?.[1];
  const cookie = (header('cookie') ?? '')
    .split(';')
    .map((pair) => pair.trim())
    .find((pair) => pair.startsWith(`${cookieName}=`));
  return query.token ?? bearer ?? cookie?.slice(cookieName.length + 1) ?? '';
}

/** Compared as digests: how long it takes tells nothing of how much is right. */
function isToken(given: string, token: string): boolean {
  return isEqualDigest(sha256(given), sha256(token));
}

/**
 * Whether nothing in the request itself says that it came through a proxy or from elsewhere.
 *
 * The host has to name this machine: a page on the web that lets its own name resolve to 127.0.0.1 makes the visitor's
 * browser ask from here, but under that name (DNS rebinding).
 */
export function isDirect(request: PageRequest): boolean {
  if (request.isForwarded || request.httpVersion === '1.0' || !isLoopback(request.remoteAddress))
    return false;
  if (isSwitching(request)) return false;
  const host = parseHost(request.host);
  if (host?.port !== request.localPort) return false;
  return host.name === 'localhost' || isLoopback(host.name);
}

/**
 * `Upgrade`, or a `Connection` that is more than a wish to keep or to close it: a browser or a program has nothing to
 * ask for that way, and a proxy that is set up for WebSockets writes it into every request.
 */
function isSwitching({ header }: PageRequest): boolean {
  if (header('upgrade') !== undefined) return true;
  const options = (header('connection') ?? '').split(',').map((option) => option.trim().toLowerCase());
  return options.some((option) => !['', 'keep-alive', 'close'].includes(option));
}

/** Where that cannot be found out, the other rules have to do. */
async function isOfOwnUser(request: PageRequest): Promise<boolean> {
  const { remoteAddress, remotePort, localAddress, localPort } = request;
  const theirs = { address: remoteAddress, port: remotePort };
  return (await isOwnSocket(theirs, { address: localAddress, port: localPort })) ?? true;
}

/**
 * Whether what changes something was asked for by a page of this installation, or by no page at all. Browsers ask
 * before they send a DELETE from another site, and are not told that they may; this holds even if one did not.
 */
export function isOwnOrigin({ header, host }: PageRequest, publicUrl: string | null): boolean {
  const site = header('sec-fetch-site');
  if (site !== undefined) return site === 'same-origin' || site === 'none';
  const origin = header('origin');
  if (origin === undefined) return true;
  if (publicUrl !== null && origin === new URL(publicUrl).origin) return true;
  return parseUrl(origin)?.host === host;
}

/** 127.0.0.0/8 and ::1 (RFC 6890), bare or in brackets, and IPv4 as a socket for both families shows it. */
function isLoopback(address: string): boolean {
  const bare = address.toLowerCase().replace(/^\[(.*)\]$/, '$1');
  if (bare === '::1') return true;
  const ipv4 = bare.startsWith('::ffff:') ? bare.slice('::ffff:'.length) : bare;
  return net.isIPv4(ipv4) && ipv4.startsWith('127.');
}

const httpPort = 80;

/** Name and port of a `Host` header (RFC 9110 §7.2), or null for what is no host. */
function parseHost(host: string): { name: string; port: number } | null {
  const match = /^(\[[0-9a-f:.]{2,45}\]|[a-z0-9.-]{1,253})(?::(\d{1,5}))?$/i.exec(host);
  const [, name, port] = match ?? [];
  return name === undefined
    ? null
    : { name: name.toLowerCase(), port: port === undefined ? httpPort : Number(port) };
}
