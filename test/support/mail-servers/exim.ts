import { readFileSync, rmSync } from 'node:fs';
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

/** One Exim, which tells by the address that a client has connected to how it is to behave. */
export async function startExim(plan: MailServerPlan): Promise<MailServer> {
  const { port, addressOf, domain, bounces, deadAddress } = plan;
  const root = createRoot();
  const isAt = (host: Host) => `eq{$received_ip_address}{${addressOf(host)}}`;
  root.write(greylisting, '');
  root.write(
    '/etc/exim4/exim4.conf',
    `primary_hostname = mx.${domain}
local_interfaces = <; ${hosts.map((host) => `${addressOf(host)}.${port}`).join(' ; ')}
log_file_path = /var/log/exim4/%slog
log_selector = +all
host_lookup =
rfc1413_query_timeout = 0s
smtp_accept_max = 0
tls_certificate = ${certificatePath}
tls_privatekey = ${privateKeyPath}
tls_advertise_hosts = \${if ${isAt('clear')}{}{*}}
message_size_limit = \${if ${isAt('strict')}{${messageBytesMax.strict}}{${messageBytesMax.main}}}
domainlist local_domains = ${localDomains(domain).join(' : ')}
domainlist relayed_domains = strict.${domain} : gone.${domain}
never_users =
acl_smtp_connect = connecting
acl_smtp_helo = greeting
acl_smtp_mail = sender
acl_smtp_rcpt = recipient
acl_smtp_predata = before_content
acl_smtp_data = content

begin acl
connecting:
  deny condition = \${if ${isAt('greeting')}}
  accept
greeting:
  deny condition = \${if ${isAt('ehlo')}}
  accept
sender:
  deny condition = \${if ${isAt('mail')}}
  deny condition = \${if and{{${isAt('submission')}}{!def:authenticated_id}}}
       message = authentication required
  accept
recipient:
  accept authenticated = *
  deny condition = \${if ${isAt('strict')}}
       local_parts = nobody
       message = Unrouteable address
  deny condition = \${if ${isAt('strict')}}
       message = Rejected by local policy
  drop local_parts = dropped
       message = Unrouteable address
  defer local_parts = grey
        condition = \${if exists{${greylisting}}}
        message = Greylisted, please try again later
  defer local_parts = full
        message = 452 4.2.2 mailbox is full
  deny local_parts = brimful
       message = 552 5.2.2 mailbox is full
  accept domains = +relayed_domains
  # As of mail that is taken for somebody else: whether it can be delivered turns out later.
  accept local_parts = former
  require verify = recipient
  accept
before_content:
  deny condition = \${if ${isAt('data')}}
  accept
content:
  deny condition = \${if ${isAt('content')}}
       message = This message scored 17.4 spam points.
  accept

begin routers
reports:
  driver = manualroute
  domains = ${bounces.domains.join(' : ')}
  transport = reports
  route_list = * 127.0.0.1
relayed:
  driver = manualroute
  domains = strict.${domain}
  transport = elsewhere
  route_list = * ${addressOf('strict')}
  self = send
gone:
  driver = manualroute
  domains = gone.${domain}
  transport = elsewhere
  route_list = * ${deadAddress}
  self = send
former:
  driver = redirect
  domains = +local_domains
  local_parts = former
  data = nobody@main.${domain}
somebody:
  driver = accept
  domains = +local_domains
  local_parts = ann : grey : full : brimful : filling
  transport = mailbox

begin transports
reports:
  driver = smtp
  port = ${bounces.port}
elsewhere:
  driver = smtp
  port = ${port}
mailbox:
  driver = appendfile
  directory = /var/mail/$local_part_data
  maildir_format
  user = mail
  quota = \${if eq{$local_part}{filling}{1}{0}}

# Without rules, mail is given up after the first try.
begin retry

begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_advertise_condition = \${if ${isAt('submission')}}
  server_condition = \${if and{{eq{$auth2}{${credentials.user}}}{eq{$auth3}{${credentials.password}}}}}
  server_set_id = $auth2
`,
  );
  // It reads the key after it has changed its user.
  root.setMode(privateKeyPath, { owner: 'Debian-exim' });
  root.makeFolder('/var/log/exim4', { owner: 'Debian-exim' });
  root.makeFolder('/var/spool/exim4', { owner: 'Debian-exim' });
  root.makeFolder('/var/mail', { owner: 'mail' });
  root.makeFolder('/run/exim4', { owner: 'Debian-exim' });
  await root.serve({ addresses: hosts.map(addressOf), port }, '/usr/sbin/exim4', '-bdf');
  return {
    readMailbox: () => readMaildir(root, '/var/mail/ann'),
    endGreylisting: async () => {
      rmSync(root.at(greylisting));
    },
    countQueued: async () => Number(await root.run('/usr/sbin/exim4', '-bpc')),
    readLog: () => readFileSync(root.at('/var/log/exim4/mainlog'), 'utf8'),
    stop: root.remove,
  };
}

const greylisting = '/etc/greylisting';
