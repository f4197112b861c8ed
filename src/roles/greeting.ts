import { type ChatAppProviderName, chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import { type EmailProviderName, emailProviders } from '../channels/email/providers/registry.ts';
import { type PushProviderName, pushProviders } from '../channels/push/providers/registry.ts';
import { type SmsProviderName, smsProviders } from '../channels/sms/providers/registry.ts';
import { composeFirstRequest, type SandboxOrganization, whyElsewhere } from '../installation/installation.ts';
import { programName } from '../platform/program-name.ts';

/** What a start has to tell. A role without the API has no `api`. */
export type Start = {
  api: { url: string; sandbox: Sandbox; organization: SandboxOrganization | 'exists' | 'none' } | null;
  /** Of the embedded PostgreSQL, where its files are in another place than the data directory. */
  filesElsewhere: { files: string; dataDirectory: string } | null;
  emailProvider: EmailProviderName;
  smsProvider: SmsProviderName;
  pushProvider: PushProviderName;
  chatAppProvider: ChatAppProviderName;
};

/** `hidden`: it is served, and its link is not for this output. */
export type Sandbox = { kind: 'none' } | { kind: 'hidden' } | { kind: 'shown'; link: string };

/** For the person in front of the terminal: standard output is not the log. */
export function composeGreeting({ api, filesElsewhere, ...providers }: Start): string {
  const sending = describeSending(providers);
  const place = filesElsewhere === null ? [] : [describePlace(filesElsewhere)];
  if (api === null)
    return [
      '',
      `Postillion delivers, and serves nothing. ${sending}`,
      'Ctrl-C stops it.',
      ...place,
      '',
      '',
    ].join('\n');
  const { url, sandbox, organization } = api;
  const lines = [
    `Postillion serves ${url}/v1`,
    `${sending} Ctrl-C stops it.`,
    '',
    `Start page:    ${url}/`,
    `Documentation: ${url}/docs`,
    ...describeSandbox(sandbox),
    `Gallery:       ${url}/gallery`,
    ...place,
    '',
    ...describeOrganization(url, organization),
  ];
  return `\n${lines.join('\n')}\n\n`;
}

function describePlace({ files, dataDirectory }: NonNullable<Start['filesElsewhere']>): string {
  return `Database:      ${files}, since ${whyElsewhere(dataDirectory)}`;
}

function describeSending(chosen: Omit<Start, 'api' | 'filesElsewhere'>): string {
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
      return [`Sandbox inbox: ${programName()} sandbox link prints its address`];
    case 'shown':
      return [`Sandbox inbox: ${sandbox.link}`];
  }
}

function describeOrganization(url: string, organization: SandboxOrganization | 'exists' | 'none'): string[] {
  if (organization === 'none')
    return [
      'There is no organization yet. Create one, with a key and all that is needed to send into the sandbox:',
      `${programName()} org create --name NAME --sandbox`,
      'Or one with nothing, and a key for it:',
      `${programName()} org create --name NAME`,
      `${programName()} key create`,
    ];
  if (organization === 'exists')
    return [`More keys: ${programName()} org list, ${programName()} key create --org ORGANIZATION`];
  return [
    'A first organization was created, with all that is needed to send:',
    `Organization: ${organization.organizationId}`,
    `API key:      ${organization.key}`,
    `Domain:       ${organization.domain} (verified)`,
    `SMS sender:   ${organization.sender} (approved)`,
    'The key is not shown again. Send a first email:',
    '',
    ...composeFirstRequest(url, organization),
  ];
}
