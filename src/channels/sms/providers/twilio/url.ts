import { isLoopbackHost } from '../../../../platform/loopback.ts';
import { parseUrl } from '../../../../platform/url.ts';

/** The account to send texts with, and where its API is. */
export type TwilioUrl = {
  /** `https://api.twilio.com`, without a slash at its end. */
  origin: string;
  /** 34 characters, `AC…`. */
  accountSid: string;
  /** Also signs the callbacks. */
  authToken: string;
  /** 34 characters, `MG…`, or null: the messaging service whose settings and pool of senders apply. */
  messagingServiceSid: string | null;
};

const knownParameters = ['messaging_service'];
const accountSidPattern = /^AC[0-9a-fA-F]{32}$/;
const messagingServiceSidPattern = /^MG[0-9a-fA-F]{32}$/;

/** Auth tokens are 32 characters today. Anything printable is accepted, since only Twilio can check it. */
const authTokenPattern = /^[\x21-\x7e]{1,256}$/;

/**
 * Reads `https://ACCOUNT_SID:AUTH_TOKEN@api.twilio.com?messaging_service=MG…`. An address of this machine may be
 * `http://`, too, for tests: the auth token stands in every request.
 *
 * Throws an Error that says what is wrong and how to write it, and that never contains the auth token.
 */
export function parseTwilioUrl(url: string): TwilioUrl {
  const parsed = parseUrl(url);
  if (parsed === null) {
    throw new Error(
      'POSTILLION_TWILIO_URL cannot be read. Write it as https://ACCOUNT_SID:AUTH_TOKEN@api.twilio.com.',
    );
  }
  if (parsed.protocol !== 'https:' && parsed.protocol !== 'http:') {
    throw new Error('POSTILLION_TWILIO_URL must begin with https://.');
  }
  if (parsed.protocol === 'http:' && !isLoopbackHost(parsed.hostname.replace(/^\[|\]$/g, ''))) {
    throw new Error(
      'POSTILLION_TWILIO_URL must begin with https://, or the auth token could be read on its way.',
    );
  }
  if (parsed.pathname !== '/' || parsed.hash !== '') {
    throw new Error(
      'POSTILLION_TWILIO_URL has something after its host. Encode /, ? and # in the auth token as %2F, %3F, %23.',
    );
  }
  for (const name of parsed.searchParams.keys()) {
    if (!knownParameters.includes(name)) {
      throw new Error(
        `POSTILLION_TWILIO_URL has an unknown parameter; it may have ${knownParameters.join(', ')}.`,
      );
    }
  }
  return {
    origin: parsed.origin,
    ...credentialsOf(parsed),
    messagingServiceSid: messagingServiceOf(parsed.searchParams.get('messaging_service')),
  };
}

function credentialsOf(parsed: URL): Pick<TwilioUrl, 'accountSid' | 'authToken'> {
  const accountSid = decodePart(parsed.username);
  const authToken = decodePart(parsed.password);
  if (accountSid.startsWith('SK')) {
    throw new Error(
      'POSTILLION_TWILIO_URL has an API key. Write the account SID (AC…) and its auth token: callbacks are signed with it.',
    );
  }
  if (!accountSidPattern.test(accountSid)) {
    throw new Error('POSTILLION_TWILIO_URL needs the account SID as its user: AC and 32 hexadecimal digits.');
  }
  if (!authTokenPattern.test(authToken)) {
    throw new Error('POSTILLION_TWILIO_URL needs the auth token as its password.');
  }
  return { accountSid, authToken };
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    // Without the cause, which would carry the auth token.
    throw new Error(
      'The user or password of POSTILLION_TWILIO_URL is not well encoded. Write % itself as %25.',
    );
  }
}

function messagingServiceOf(value: string | null): string | null {
  if (value === null || messagingServiceSidPattern.test(value)) return value;
  throw new Error(
    'The messaging_service parameter of POSTILLION_TWILIO_URL must be MG and 32 hexadecimal digits.',
  );
}
