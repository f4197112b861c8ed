import { listOf } from '../../../../platform/setting.ts';
import { defineEmailProvider } from '../../provider-definition.ts';

/** The port at which mail servers listen for each other (RFC 5321 §4.5.4.2). */
const usualPort = 25;

export const mx = defineEmailProvider({
  settings: {
    POSTILLION_MX_PORT: {
      type: 'port',
      default: `${usualPort}`,
      about: 'The port of mail servers for mx. Any other than 25 is for tests.',
    },
    POSTILLION_MX_PRIVATE_ADDRESSES: {
      type: 'choice',
      choices: ['refuse', 'allow'],
      default: '',
      about:
        'Whether mx delivers to servers on private addresses, which attackers can publish in the DNS to reach into your network. Empty: refused on port 25, allowed on any other.',
    },
    POSTILLION_MX_REQUIRE_TLS: {
      type: 'list',
      default: '',
      about:
        'Domains of recipients, separated by commas, to whose servers mx sends only with TLS and a valid certificate. For all others, TLS is used if the server offers it.',
    },
  },
  requires: [],
  isChosenBy: null,
  words: {
    settings: "delivers straight to the recipients' own servers",
    greeting: "Email goes straight to the recipients' servers",
    advice: 'Check POSTILLION_DNS_SERVERS, and that this machine can reach them.',
  },
  isSandbox: false,
  isDirect: true,
  // Mail hosts count the connections of a machine.
  processesMax: async () => (await import('./mx.ts')).defaultLimits.connectionsPerDestinationMax,
  create: async ({ clock, random, resolver, openResolver, heloName, share }, values) => {
    const { createMxProvider, limitsOf } = await import('./mx.ts');
    const port = Number(values.POSTILLION_MX_PORT);
    const privateAddresses = values.POSTILLION_MX_PRIVATE_ADDRESSES;
    const domainsRequiringTls = new Set(
      listOf(values.POSTILLION_MX_REQUIRE_TLS).map((domain) => domain.toLowerCase()),
    );
    const probeResolver = openResolver();
    const provider = createMxProvider({
      resolver,
      probeResolver,
      clock,
      random,
      heloName,
      port,
      mayUsePrivateAddresses: privateAddresses === '' ? port !== usualPort : privateAddresses === 'allow',
      requiresTls: (domain) => domainsRequiringTls.has(domain),
      limits: limitsOf(share),
    });
    return {
      ...provider,
      close: async () => {
        await provider.close();
        probeResolver.close();
      },
    };
  },
});
