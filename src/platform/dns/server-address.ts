import { getServers } from 'node:dns';
import { isIP, isIPv4, isIPv6 } from 'node:net';

export type DnsServer = { host: string; port: number };

const dnsPort = 53;
const textLengthMax = 100;
const withPort = /^(?:\[(?<ipv6>[^\]]+)\]|(?<ipv4>[0-9.]+))(?::(?<port>[0-9]{1,5}))?$/;

/** `127.0.0.1`, `127.0.0.1:5300`, `::1` or `[::1]:5300`; null if the text is none of these. Port 53 if none is given. */
export function parseDnsServer(text: string): DnsServer | null {
  if (text.length > textLengthMax) return null;
  if (isIP(text) !== 0) return { host: text, port: dnsPort };
  const { ipv4 = '', ipv6 = '', port: portText } = withPort.exec(text)?.groups ?? {};
  const port = portText === undefined ? dnsPort : Number(portText);
  if (port < 1 || port > 65_535) return null;
  if (isIPv6(ipv6)) return { host: ipv6, port };
  return isIPv4(ipv4) ? { host: ipv4, port } : null;
}

/** The servers of the machine's own configuration, as it is at this moment. */
export function systemDnsServers(): DnsServer[] {
  return getServers().flatMap((text) => parseDnsServer(text) ?? []);
}

/** As it is written in settings and in details of failures. */
export function dnsServerText({ host, port }: DnsServer): string {
  return isIPv6(host) ? `[${host}]:${port}` : `${host}:${port}`;
}
