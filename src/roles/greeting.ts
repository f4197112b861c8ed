import { type ChatAppProviderName, chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import { type EmailProviderName, emailProviders } from '../channels/email/providers/registry.ts';
import { type PushProviderName, pushProviders } from '../channels/push/providers/registry.ts';
import { type SmsProviderName, smsProviders } from '../channels/sms/providers/registry.ts';
import type { FirstOrganization } from '../installation/installation.ts';

/** What a start has to tell. A role without the API has no `api`. */
export type Start = {
  api: { url: string; sandbox: Sandbox; organization: FirstOrganization | 'exists' | 'none' } | null;
  emailProvider: EmailProviderName;
  smsProvider: SmsProviderName;
  pushProvider: PushProviderName;
  chatAppProvider: ChatAppProviderName;
};

/** `hidden`: it is served, and its link is not for this output. */
export type Sandbox = { kind: 'none' } | { kind: 'hidden' } | { kind: 'shown'; link: string };

/** For the person in front of the terminal: standard output is not the log. */
export function composeGreeting({ api, ...providers }: Start): string {
  const sending = describeSending(providers);
  if (api === null) return `\nPostillion delivers, and serves nothing. ${sending}\nCtrl-C stops it.\n\n`;
  const { url, sandbox, organization } = api;
  const lines = [
    `Postillion serves ${url}/v1`,
    `${sending} Ctrl-C stops it.`,
    '',
    `Start page:    ${url}/`,
    `Documentation: ${url}/docs`,
    ...describeSandbox(sandbox),
    `Gallery:       ${url}/gallery`,
    '',
    ...describeOrganization(url, organization),
  ];
  return `\n${lines.join('\n')}\n\n`;
}

function describeSending(chosen: Omit<Start, 'api'>): string {
  const providers = [
    emailProviders[chosen.emailProvider],
    smsProviders[chosen.smsProvider],
    pushProviders[chosen.pushProvider],
    chatAppProviders[chosen.chatAppProvider],
  ];
  if (providers.every(({ isSandbox }) => isSandbox))
    return 'Email, texts, pushes and chat-app messages stay in the sandbox: nothing leaves this machine.';
  return `${providers.map(({ words }) => words.greeting).join(', ')}.`;
}

function describeSandbox(sandbox: Sandbox): string[] {
  switch (sandbox.kind) {
    case 'none':
      return [];
    case 'hidden':
      return ['Sandbox inbox: bin/postillion sandbox link prints its address'];
    case 'shown':
      return [`Sandbox inbox: ${sandbox.link}`];
  }
}

function describeOrganization(url: string, organization: FirstOrganization | 'exists' | 'none'): string[] {
  if (organization === 'none')
    return [
      'There is no organization yet. Create one, and a key for it:',
      'bin/postillion org create --name NAME',
      'bin/postillion key create --org ORGANIZATION',
    ];
  if (organization === 'exists')
    return ['More keys: bin/postillion org list, bin/postillion key create --org ORGANIZATION'];
  return [
    'A first organization was created, with all that is needed to send:',
    `Organization: ${organization.organizationId}`,
    `API key:      ${organization.key}`,
    `Domain:       ${organization.domain} (verified)`,
    `SMS sender:   ${organization.sender} (approved)`,
    'The key is not shown again. Send a first email:',
    '',
    `curl -X POST ${url}/v1/email/send \\`,
    `  -H 'Authorization: Bearer ${organization.key}' \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -d '{"from":"hello@${organization.domain}","from_name":"Hello","to":["you@example.com"],"subject":"It works","html":"<h1>It works</h1>"}'`,
  ];
}
