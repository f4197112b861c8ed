/**
 * Tells whether a person opened a message or followed a link, or a machine that examines mail before the person sees
 * it. Machines are recognised by what they say of themselves, and by requests too soon after the hand-off. A scanner
 * that poses as a browser and takes its time passes for a person: nothing in its request gives it away.
 */
export type EngagementRequest = {
  /** In upper case. */
  method: string;
  /** Empty where there is none. */
  userAgent: string;
  /** `Sec-Purpose`, `Purpose` or `X-Moz`: what a browser says when it fetches ahead. Empty where there is none. */
  purpose: string;
};

/** No mail server passes a message on, and no person opens it, within this time of its hand-off. */
const tooQuickMs = 1_000;

export function isMachineRequest({ method, userAgent, purpose }: EngagementRequest): boolean {
  if (method !== 'GET' || aheadPattern.test(purpose)) return true;
  const agent = userAgent.trim().toLowerCase();
  // Proxies that fetch an image when a person opens the mail, whatever else their user agent says.
  if (humanProxies.some((name) => agent.includes(name))) return false;
  return (
    machineAgents.has(agent) ||
    machineNames.some((name) => agent.includes(name)) ||
    machinePattern.test(agent)
  );
}

/** `handedOffAt` is null until the outcome of the hand-off is written. */
export function isTooQuick(at: Date, handedOffAt: Date | null): boolean {
  return handedOffAt === null || at.getTime() - handedOffAt.getTime() < tooQuickMs;
}

const aheadPattern = /\b(?:prefetch|preview|prerender)\b/i;

const humanProxies = [
  // "Mozilla/5.0 (Windows NT 5.1; rv:11.0) Gecko Firefox/11.0 (via ggpht.com GoogleImageProxy)"
  'googleimageproxy',
  // "YahooMailProxy; https://help.yahoo.com/kb/yahoo-mail-proxy-SLN28749.html"
  'yahoomailproxy',
];

/** Compared as a whole, since browsers of people begin with the same text. */
const machineAgents: ReadonlySet<string> = new Set([
  '',
  '-',
  'node',
  'ruby',
  // Apple Mail Privacy Protection fetches all images of all mail, opened or not.
  'mozilla/5.0',
  // Gmail's prefetch for users who are signed in, before the mail is shown.
  'mozilla/5.0 (windows nt 10.0; win64; x64) applewebkit/537.36 (khtml, like gecko) chrome/42.0.2311.135 safari/537.36 edge/12.246 mozilla/5.0',
]);

const machineNames = [
  // Office looks whether a link exists before a person follows it: "Microsoft Office Existence Discovery".
  'existence discovery',
  // Gateways that scan mail.
  ...['barracuda', 'proofpoint', 'mimecast', 'messagelabs', 'symantec', 'trendmicro', 'tmufe', 'fireeye'],
  ...['forcepoint', 'websense', 'sophos', 'zscaler', 'fortiguard', 'fortimail', 'ironport', 'cloudmark'],
  ...['spamexperts', 'vadesecure', 'bitdefender', 'kaspersky', 'safelinks', 'bingpreview', 'checkpoint'],
  ...['gmail-content-sampling', 'google-safety', 'googleother', 'skypeuripreview', 'urldefense'],
  // Previews in chats.
  ...['facebookexternalhit', 'whatsapp/', 'slack-imgproxy', 'embedly', 'iframely'],
  // Libraries and command-line tools.
  ...[
    'curl/',
    'wget/',
    'python-',
    'python/',
    'aiohttp',
    'httpx',
    'go-http-client',
    'java/',
    'apache-httpclient',
  ],
  ...[
    'libwww-perl',
    'node-fetch',
    'undici',
    'axios/',
    'got (',
    'guzzlehttp',
    'ruby',
    'powershell',
    'postman',
  ],
  ...['headless', 'phantomjs', 'puppeteer', 'playwright', 'selenium'],
];

/** Words in the user agents of many more machines. "Cubot" is a brand of phones, and does not match. */
const machinePattern =
  /(?<!cu)bot\b|crawl|spider|slurp|scanner|link-?check|url-?check|preview|prefetch|monitor/;
