import type { Resolver } from '../../../../../platform/dns/dns.ts';

/** Hosts of services that no browser has chosen: name servers that know none of them are unfit to judge any other. */
export const wellKnownHosts: readonly string[] = [
  'fcm.googleapis.com',
  'updates.push.services.mozilla.com',
  'web.push.apple.com',
];

/**
 * Whether nobody has a host, so that it never can be reached. Name servers that cannot say have said nothing, nor have
 * those that know the names of one network only, and deny all others: every browser would seem to be gone. An alias that
 * leads nowhere is a fault of whoever has the name.
 */
export async function isUnknownHost(resolver: Pick<Resolver, 'a' | 'cname'>, host: string): Promise<boolean> {
  const isFresh = { isFresh: true };
  const answers = await Promise.all([resolver.a(host, isFresh), resolver.cname(host, isFresh)]);
  if (!answers.every((answer) => answer.kind === 'absent' && answer.reason === 'no_such_domain'))
    return false;
  const known = await Promise.all(wellKnownHosts.map((name) => resolver.a(name, isFresh)));
  return known.some(({ kind }) => kind === 'found');
}
