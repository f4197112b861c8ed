import { connect } from 'node:net';
import { hostname } from 'node:os';
import { emailProviders } from '../channels/email/providers/registry.ts';
import { examineVerifiedDomains, sandboxDomain } from '../domains/domains.ts';
import { createControlLookup, wellKnownDomains } from '../email/email.ts';
import type { Installation } from '../installation/installation.ts';
import type { Clock } from '../platform/clock.ts';
import type { DnsAnswer } from '../platform/dns/dns.ts';
import { readNetworkTimeSkewMs } from '../platform/network-time.ts';
import { type Finding, ok, problem, warning } from './finding.ts';

/**
 * What direct delivery needs of the world around: that this machine reaches other mail servers, and that these find
 * in the DNS what they ask of a stranger before they take mail from it.
 */
export async function examineDirectDelivery(installation: Installation): Promise<Finding[]> {
  const findings = await Promise.all([
    examineOutgoingPort(installation),
    examineName(installation),
    examineDomains(installation),
    examineWorldTime(installation),
  ]);
  return findings.flat();
}

/**
 * Whether the name servers are fit to judge the domains of recipients. Those that know the names of one network only deny
 * all others.
 */
export async function examineAddressChecks(installation: Installation): Promise<Finding[]> {
  if (!installation.config.areDomainsLookedUp) return [];
  const domains = wellKnownDomains.join(', ');
  const verdict = await createControlLookup(installation).ask();
  switch (verdict) {
    case 'answer':
      return [ok('recipients', 'the name servers answer for the domains of recipients')];
    case 'silent':
      return [unanswered('recipients', domains)];
    case 'deny':
      return [
        problem(
          'recipients',
          `the name servers deny that mail can be delivered to ${domains}, so that no recipient's domain is checked`,
          'Set POSTILLION_DNS_SERVERS to name servers that know the whole DNS. If there are none, set POSTILLION_ADDRESS_CHECKS=off.',
        ),
      ];
  }
}

const connectMs = 5_000;

async function examineOutgoingPort({ config, resolver, clock }: Installation): Promise<Finding[]> {
  const port = Number(config.providerSettings.POSTILLION_MX_PORT);
  const failures: string[] = [];
  for (const domain of wellKnownDomains) {
    const exchange = await firstOf(resolver.mx(domain));
    if (exchange === null) continue;
    const address = await firstOf(resolver.a(exchange.exchange));
    if (address === null) continue;
    const failure = await tryToConnect(clock, address, port);
    if (failure === null) return [ok('port', `mail servers can be reached on port ${port}`)];
    failures.push(`${exchange.exchange}: ${failure}`);
  }
  if (failures.length === 0) {
    return [
      warning(
        'port',
        `whether port ${port} is open cannot be tested: the DNS has no mail server of ${wellKnownDomains.join(', ')}`,
        'Check POSTILLION_DNS_SERVERS, and that this machine can reach them.',
      ),
    ];
  }
  return [
    problem(
      'port',
      `no mail server can be reached on port ${port} (${failures.join('; ')})`,
      'Ask the provider of this machine to open outgoing port 25, or send through a relay with POSTILLION_SMTP_URL.',
    ),
  ];
}

function unanswered(subject: string, what: string): Finding {
  return warning(
    subject,
    `the DNS does not answer for ${what}`,
    'Check POSTILLION_DNS_SERVERS, and run doctor again.',
  );
}

async function firstOf<T>(asking: Promise<DnsAnswer<T>>): Promise<T | null> {
  const answer = await asking;
  return answer.kind === 'found' ? (answer.records[0] ?? null) : null;
}

/** Returns what went wrong, or null. */
function tryToConnect(clock: Clock, host: string, port: number): Promise<string | null> {
  return new Promise((resolve) => {
    const socket = connect({ host, port });
    const end = (failure: string | null) => {
      cancel();
      socket.destroy();
      resolve(failure);
    };
    const cancel = clock.after(connectMs, () => {
      end('no answer');
    });
    socket.once('connect', () => {
      end(null);
    });
    socket.once('error', (error) => {
      end(error.message);
    });
  });
}

const nameAdvice =
  'Give the name an address record, have the provider of the machine point its PTR record to the name, and set POSTILLION_MAIL_HOST to it.';

/** Forward-confirmed reverse DNS: many servers take nothing from an address without it. */
async function examineName({ config, resolver }: Installation): Promise<Finding[]> {
  const name = (config.mailHost ?? hostname()).toLowerCase();
  const [v4, v6] = await Promise.all([resolver.a(name), resolver.aaaa(name)]);
  const addresses = [v4, v6].flatMap((answer) => (answer.kind === 'found' ? [...answer.records] : []));
  if (addresses.length === 0) {
    if (v4.kind === 'failed' || v6.kind === 'failed') return [unanswered('PTR', `the addresses of ${name}`)];
    return [problem('PTR', `${name}, which is sent in EHLO, has no address in the DNS`, nameAdvice)];
  }
  const reversed = await Promise.all(
    addresses.map(async (address) => {
      const names = await resolver.ptr(address);
      return { address, names: names.kind === 'found' ? names.records : [] };
    }),
  );
  const astray = reversed.filter(({ names }) => !names.includes(name));
  if (astray.length === 0) return [ok('PTR', `${name} and its addresses point to each other`)];
  const found = astray
    .map(({ address, names }) => `${address} to ${names.join(', ') || 'nothing'}`)
    .join('; ');
  return [problem('PTR', `the addresses of ${name} do not point back to it: ${found}`, nameAdvice)];
}

/** Whether what comes back is read. A relay's user wants that as much as who delivers without one. */
export async function examineBounces({ config, hosts, resolver }: Installation): Promise<Finding[]> {
  const { bounceListener } = config;
  const { bounceHost } = hosts;
  const provider = emailProviders[config.emailProvider];
  if (provider.isSandbox) return [];
  if (bounceHost === null) {
    return [
      warning(
        'bounces',
        'bounces are not read: they go to the sender of each email',
        'Set POSTILLION_BOUNCE_HOST and POSTILLION_BOUNCE_PORT; see docs/domains.md.',
      ),
    ];
  }
  const [v4, v6, texts] = await Promise.all([
    resolver.a(bounceHost),
    resolver.aaaa(bounceHost),
    resolver.txt(bounceHost),
  ]);
  if ([v4, v6, texts].some(({ kind }) => kind === 'failed'))
    return [unanswered('bounces', `the records of ${bounceHost}`)];
  const hasAddress = v4.kind === 'found' || v6.kind === 'found';
  const policies = texts.kind === 'found' ? texts.records.filter((text) => /^v=spf1( |$)/i.test(text)) : [];
  const findings: Finding[] = [
    hasAddress
      ? ok('bounces', `${bounceHost} has an address`)
      : problem('bounces', `${bounceHost} has no address in the DNS`, 'Give it one: bounces are sent to it.'),
    policies.length === 1
      ? ok('SPF', `the SPF record of ${bounceHost} is ${policies[0] ?? ''}`)
      : problem(
          'SPF',
          `${bounceHost} has ${policies.length === 0 ? 'no SPF record' : 'more than one SPF record'}`,
          `Publish exactly one, which names the addresses that send: the records of all sending domains include it. ${
            provider.isDirect
              ? `For this machine alone, "v=spf1 a:${bounceHost} -all" does.`
              : 'Those of a relay are what its operator says, often an "include:" of its own record.'
          }`,
        ),
  ];
  if (bounceListener === null) {
    findings.push(
      warning(
        'bounces',
        'nothing listens for bounces',
        'Set POSTILLION_BOUNCE_PORT on a worker, usually to 25.',
      ),
    );
  } else if (bounceListener.port !== 25) {
    findings.push(
      warning(
        'bounces',
        `bounces are taken on port ${bounceListener.port}, but other servers send to port 25`,
        'Forward port 25 of the machine to it.',
      ),
    );
  }
  return findings;
}

/** Enough to see that something is wrong; a person who holds more looks at their records over the API. */
const domainsMax = 20;

async function examineDomains(installation: Installation): Promise<Finding[]> {
  const all = await examineVerifiedDomains(installation, domainsMax);
  // The sandbox's own domain exists nowhere else.
  const domains = all.filter(({ name }) => name !== sandboxDomain);
  const lacking = domains.filter(({ issues }) => issues.length > 0);
  if (lacking.length === 0) {
    return domains.every(({ isAnswered }) => isAnswered)
      ? [ok('DKIM', `the records of the ${domains.length} newest sending domains are in the DNS`)]
      : [unanswered('DKIM', 'the records of the sending domains')];
  }
  return lacking.map(({ name, issues }) =>
    problem(
      'DKIM',
      `${name}: ${issues.join(' ')}`,
      'Publish what GET /email/domains shows for it: emails without it fail DKIM, SPF or DMARC.',
    ),
  );
}

const timeServer = { name: 'pool.ntp.org', port: 123 };
/** Signatures from the future are refused by some; a minute is what most allow for. */
const skewMsMax = 30_000;

async function examineWorldTime({ resolver, clock }: Installation): Promise<Finding[]> {
  const address = await firstOf(resolver.a(timeServer.name));
  const skewMs =
    address === null ? null : await readNetworkTimeSkewMs(clock, { address, port: timeServer.port });
  if (skewMs === null) {
    return [
      warning(
        'time',
        `${timeServer.name} does not answer, so the time of this machine was not checked`,
        'Check the time by other means: signatures contain it.',
      ),
    ];
  }
  const found = `this machine is ${Math.abs(Math.round(skewMs))} ms ${skewMs > 0 ? 'behind' : 'ahead of'} ${timeServer.name}`;
  return Math.abs(skewMs) <= skewMsMax
    ? [ok('time', found)]
    : [problem('time', found, 'Synchronise the machine by NTP: signatures contain the time.')];
}
