import net from 'node:net';
import type { PageRequest } from '../platform/http/route.ts';

export type SandboxAccess = { isPublic: boolean };

/**
 * Whether the sandbox may be shown to whoever asks. Unless it is public, the request has to come from this machine,
 * not through a proxy that runs on it, and has to name it: a page on the web that lets its own name resolve to
 * 127.0.0.1 makes the visitor's browser ask from here, but under that name (DNS rebinding).
 */
export function isWelcome(request: PageRequest, { isPublic }: SandboxAccess): boolean {
  if (isPublic) return true;
  const name = hostNameOf(request.host);
  if (name === null || request.isForwarded || !isLoopback(request.remoteAddress)) return false;
  return name === 'localhost' || isLoopback(name);
}

/** 127.0.0.0/8 and ::1 (RFC 6890), bare or in brackets, and IPv4 as a socket for both families shows it. */
function isLoopback(address: string): boolean {
  const bare = address.toLowerCase().replace(/^\[(.*)\]$/, '$1');
  if (bare === '::1') return true;
  const ipv4 = bare.startsWith('::ffff:') ? bare.slice('::ffff:'.length) : bare;
  return net.isIPv4(ipv4) && ipv4.startsWith('127.');
}

/** The name in a `Host` header (RFC 9110 §7.2) without its port, or null for what is no host. */
function hostNameOf(host: string): string | null {
  const match = /^(\[[0-9a-f:.]{2,45}\]|[a-z0-9.-]{1,253})(?::\d{1,5})?$/i.exec(host);
  return match?.[1]?.toLowerCase() ?? null;
}
