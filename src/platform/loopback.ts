import { isIP } from 'node:net';

/** Whether an address of a socket, or a host of a URL, is this machine itself. */
export function isLoopbackHost(host: string): boolean {
  if (host === 'localhost' || host === '::1') return true;
  return isIP(host) === 4 ? host.startsWith('127.') : host.startsWith('::ffff:127.');
}
