import { certificatePath, createRoot, privateKeyPath, readMaildir } from './debian.ts';
import {
  credentials,
  type Host,
  hosts,
  localDomains,
  type MailServer,
  type MailServerPlan,
  messageBytesMax,
} from './mail-server.ts';

/** One OpenSMTPD, with a listener and a filter of its own for each address. */
export async function startOpenSmtpd(plan: MailServerPlan): Promise<MailServer> {
  const { port, addressOf, domain, bounces, deadAddress } = plan;
  const root = createRoot();
  root.write(greylisted, `grey@main.${domain}\n`);
  // What the package's own script does when it is installed.
  root.setMode('/usr/sbin/smtpctl', { mode: 0o2555, group: 'opensmtpq' });
  const password = (await root.run('/usr/sbin/smtpctl', 'encrypt', credentials.password)).trim();
  const filters: Partial<Record<Host, string>> = {
    greeting: 'phase connect match src <anywhere> disconnect "554 5.7.1 Not from there"',
    ehlo: 'phase ehlo match src <anywhere> disconnect "550 5.7.1 Not with that name"',
    mail: 'phase mail-from match src <anywhere> reject "550 5.7.1 Not from that sender"',
    data: 'phase data match src <anywhere> reject "554 5.7.1 Not now"',
    content: 'phase commit match src <anywhere> reject "554 5.7.1 Message rejected as spam"',
  };
  const options: Partial<Record<Host, string>> = { clear: '', submission: 'tls pki "us" auth <credentials>' };
  const listen = (host: Host) => {
    const security = options[host] ?? 'tls pki "us"';
    const filter = host in filters || host === 'main' || host === 'strict' ? `filter "${host}"` : '';
    return `listen on ${addressOf(host)} port ${port} ${security} hostname "mx.${host}.${domain}" ${filter}`;
  };
  const refuse = (name: string, address: string, reply: string) =>
    `filter "${name}" phase rcpt-to match rcpt-to ${address} reject "${reply}"`;
  const smarthost = (address: string, at: number) => `relay host "smtp://${address}:${at}"`;
  root.write(
    '/etc/smtpd.conf',
    `pki "us" cert "${certificatePath}"
pki "us" key "${privateKeyPath}"
table here { ${localDomains(domain)
      .map((name) => `"${name}"`)
      .join(', ')} }
table anywhere { "127.0.0.0/8" }
table greylisted file:${greylisted}
table credentials { "${credentials.user}" = "${password}" }
table people { "ann" = "ann", "grey" = "ann", "full" = "ann", "brimful" = "ann", "filling" = "ann", "former" = "nobody-there" }
smtp max-message-size "${messageBytesMax.main}"

${refuse('grey', '<greylisted>', '451 4.7.1 Greylisted, try again later')}
${refuse('full', `"full@main.${domain}"`, '452 4.2.2 Mailbox full')}
${refuse('brimful', `"brimful@main.${domain}"`, '552 5.2.2 Mailbox full')}
filter "dropped" phase rcpt-to match rcpt-to "dropped@main.${domain}" disconnect "550 5.1.1 No such user"
filter "main" chain { "grey", "full", "brimful", "dropped" }
${refuse('nobody', `"nobody@strict.${domain}"`, '550 5.1.1 No such user')}
${refuse('refused', `"refused@strict.${domain}"`, '554 5.7.1 Rejected by policy')}
filter "strict" chain { "nobody", "refused" }
${Object.entries(filters)
  .map(([host, filter]) => `filter "${host}" ${filter}`)
  .join('\n')}
${hosts.map(listen).join('\n')}

action "report" ${smarthost('127.0.0.1', bounces.port)}
action "strict" ${smarthost(addressOf('strict'), port)}
action "gone" ${smarthost(deadAddress, port)} ttl 1s
action "fill" mda "echo Mailbox is full; exit 73" virtual <people>
action "deliver" maildir "/var/mail/ann" virtual <people>
${bounces.domains.map((name) => `match from any for domain "${name}" action "report"`).join('\n')}
match from any for domain "strict.${domain}" action "strict"
match from any for domain "gone.${domain}" action "gone"
match from any for domain <here> rcpt-to "filling@main.${domain}" action "fill"
match from any for domain <here> action "deliver"
`,
  );
  root.makeFolder('/home/ann', { owner: 'ann' });
  root.makeFolder('/var/mail/ann', { owner: 'ann' });
  root.makeFolder('/var/run');
  await root.serve(
    { addresses: hosts.map(addressOf), port },
    ...(['/usr/sbin/smtpd', '-dv', '-f', '/etc/smtpd.conf'] as const),
  );
  return {
    readMailbox: () => readMaildir(root, '/var/mail/ann'),
    endGreylisting: async () => {
      root.write(greylisted, 'nobody@main.example\n');
      await root.run('/usr/sbin/smtpctl', 'update', 'table', 'greylisted');
    },
    countQueued: async () => (await root.run('/usr/sbin/smtpctl', 'show', 'queue')).split('\n').length - 1,
    readLog: root.said,
    stop: root.remove,
  };
}

const greylisted = '/etc/greylisted';
