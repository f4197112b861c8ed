import { readFileSync } from 'node:fs';
import { certificatePath, createRoot, privateKeyPath, readMaildir } from './debian.ts';
import { startDovecotAuth } from './dovecot-auth.ts';
import { type Host, hosts, type MailServer, type MailServerPlan, messageBytesMax } from './mail-server.ts';

/** One Postfix, with a service of its own for each address. */
export async function startPostfix(plan: MailServerPlan): Promise<MailServer> {
  const { port, addressOf, domain, bounces, deadAddress } = plan;
  const auth = await startDovecotAuth();
  const root = createRoot();
  const table = (name: string, lines: readonly string[]) => {
    root.write(`/etc/postfix/${name}`, `${lines.join('\n')}\n`);
    return `texthash:/etc/postfix/${name}`;
  };
  // The words are those of Postgrey and of Dovecot's quota-status, which Postfix is usually made to ask.
  const writeAtMain = (greylisted: readonly string[]) =>
    table('at-main', [
      ...greylisted.map(
        (name) => `${name}@main.${domain} 450 4.2.0 Greylisted, see http://postgrey.schweikert.ch/`,
      ),
      `full@main.${domain} 452 4.2.2 Mailbox is full`,
      `brimful@main.${domain} 552 5.2.2 Mailbox is full`,
      // After 521 it hangs up.
      `dropped@main.${domain} 521 5.1.1 User unknown`,
    ]);
  const atMain = writeAtMain(['grey']);
  const atStrict = table('at-strict', [
    `nobody@strict.${domain} 550 5.1.1 User unknown in virtual mailbox table`,
    `refused@strict.${domain} REJECT 5.7.1 This kind of mail is not for us`,
  ]);
  const transports = table('transports', [
    ...bounces.domains.map((name) => `${name} smtp:[127.0.0.1]:${bounces.port}`),
    `gone.${domain} smtp:[${deadAddress}]:${port}`,
    `strict.${domain} smtp:[${addressOf('strict')}]:${port}`,
  ]);
  const mailboxes = table('mailboxes', [
    ...['ann', 'grey', 'full', 'brimful'].map((name) => `${name}@main.${domain} ann/`),
    `filling@main.${domain} filling`,
    `ann@clear.${domain} ann/`,
  ]);
  const aliases = table('aliases', [`former@main.${domain} nobody@main.${domain}`]);
  root.makeFolder('/var/mail', { owner: 'mail' });
  root.write('/var/mail/filling', '\n'.repeat(messageBytesMax.main), { owner: 'mail' });
  root.write('/etc/postfix/content', '/^Subject:/ REJECT 5.7.1 Message content rejected due to spam\n');

  root.write(
    '/etc/postfix/main.cf',
    `compatibility_level = 3.6
maillog_file = ${log}
inet_protocols = ipv4
myhostname = mx.${domain}
mydestination =
mynetworks = 127.0.0.0/8
alias_maps =
alias_database =
smtpd_peername_lookup = no
smtp_dns_support_level = disabled
smtp_host_lookup = native
smtpd_delay_reject = no
smtpd_recipient_restrictions = check_recipient_access ${atMain}
smtpd_tls_security_level = may
smtpd_tls_cert_file = ${certificatePath}
smtpd_tls_key_file = ${privateKeyPath}
virtual_mailbox_domains = main.${domain}, clear.${domain}
virtual_mailbox_maps = ${mailboxes}
virtual_alias_maps = ${aliases}
virtual_mailbox_base = /var/mail
virtual_uid_maps = static:60001
virtual_gid_maps = static:60001
virtual_mailbox_limit = ${messageBytesMax.main}
message_size_limit = ${messageBytesMax.main}
relay_domains = strict.${domain}, gone.${domain}
relay_recipient_maps =
transport_maps = ${transports}
# Given up after the first try.
maximal_queue_lifetime = 0
bounce_queue_lifetime = 0
`,
  );
  const options: Partial<Record<Host, string[]>> = {
    greeting: ['smtpd_client_restrictions=reject'],
    ehlo: ['smtpd_helo_restrictions=reject'],
    mail: ['smtpd_sender_restrictions=reject'],
    data: ['smtpd_data_restrictions=reject'],
    content: ['cleanup_service_name=strict-cleanup'],
    clear: ['smtpd_tls_security_level=none'],
    submission: [
      'smtpd_sasl_auth_enable=yes',
      'smtpd_sasl_type=dovecot',
      `smtpd_sasl_path=inet:127.0.0.1:${auth.port}`,
      'smtpd_recipient_restrictions=permit_sasl_authenticated,reject',
    ],
    strict: [
      `myhostname=strict.${domain}`,
      `message_size_limit=${messageBytesMax.strict}`,
      `smtpd_recipient_restrictions=check_recipient_access,${atStrict}`,
    ],
  };
  root.write(
    '/etc/postfix/master.cf',
    `${hosts
      .map((host) =>
        [
          `${addressOf(host)}:${port} inet n - n - - smtpd`,
          // Each connection has a process of its own, and so the tables as they are now.
          '-o max_use=1',
          ...(options[host] ?? []).map((option) => `-o ${option}`),
        ].join('\n  '),
      )
      .join('\n')}
cleanup unix n - n - 0 cleanup
strict-cleanup unix n - n - 0 cleanup
  -o header_checks=regexp:/etc/postfix/content
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
showq unix n - n - - showq
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
`,
  );
  root.makeFolder('/var/log', { mode: 0o777 });
  root.makeFolder('/var/lib/postfix', { owner: 'postfix' });
  for (const name of [
    'active',
    'bounce',
    'corrupt',
    'defer',
    'deferred',
    'flush',
    'hold',
    'incoming',
    'private',
    'saved',
    'trace',
  ]) {
    root.makeFolder(`${queue}/${name}`, { owner: 'postfix', mode: 0o700 });
  }
  root.makeFolder(`${queue}/public`, { owner: 'postfix', mode: 0o755 });
  root.makeFolder(`${queue}/maildrop`, { owner: 'postfix', mode: 0o730 });
  root.makeFolder(`${queue}/pid`);
  await root.serve(
    { addresses: hosts.map(addressOf), port },
    '/usr/lib/postfix/sbin/master',
    '-c',
    '/etc/postfix',
    '-d',
  );
  return {
    readMailbox: () => readMaildir(root, '/var/mail/ann'),
    endGreylisting: async () => {
      writeAtMain([]);
    },
    countQueued: async () => (await root.run('/usr/sbin/postqueue', '-j')).split('\n').length - 1,
    readLog: () => readFileSync(root.at(log), 'utf8'),
    stop: async () => {
      await root.remove();
      await auth.stop();
    },
  };
}

const queue = '/var/spool/postfix';
const log = '/var/log/postfix.log';
