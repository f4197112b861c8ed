import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseTwilioUrl } from './url.ts';

const accountSid = `AC${'0123456789abcdef'.repeat(2)}`;
const messagingServiceSid = `MG${'0123456789abcdef'.repeat(2)}`;

test('a URL says everything that is needed', () => {
  expect(
    parseTwilioUrl(
      `https://${accountSid}:t%2Fo%25k%3Aen@api.example.test:8443?messaging_service=${messagingServiceSid}`,
    ),
  ).toEqual({
    origin: 'https://api.example.test:8443',
    accountSid,
    authToken: 't/o%k:en',
    messagingServiceSid,
  });
});

test.each([
  [`https://${accountSid}:token@api.twilio.com`, 'https://api.twilio.com'],
  [`https://${accountSid}:token@api.twilio.com/`, 'https://api.twilio.com'],
  [`https://${accountSid}:token@api.dublin.ie1.twilio.com`, 'https://api.dublin.ie1.twilio.com'],
  [`http://${accountSid}:token@127.0.0.1:1234`, 'http://127.0.0.1:1234'],
  [`http://${accountSid}:token@localhost:1234`, 'http://localhost:1234'],
  [`http://${accountSid}:token@[::1]:1234`, 'http://[::1]:1234'],
])('%s means the API at %s, without a messaging service', (url, origin) => {
  expect(parseTwilioUrl(url)).toEqual({ origin, accountSid, authToken: 'token', messagingServiceSid: null });
});

test.each([
  ['', /cannot be read/],
  ['api.twilio.com', /cannot be read/],
  [`smtp://${accountSid}:token@api.twilio.com`, /must begin with https/],
  [`http://${accountSid}:token@api.twilio.com`, /could be read/],
  [`http://${accountSid}:token@127.0.0.1.example.test`, /could be read/],
  [`https://${accountSid}:token@api.twilio.com/2010-04-01`, /after its host/],
  [`https://${accountSid}:to#ken@api.twilio.com`, /cannot be read|after its host/],
  [`https://${accountSid}:token@api.twilio.com?service=MG1`, /unknown parameter/],
  [`https://${accountSid}:token@api.twilio.com?messaging_service=MG1`, /32 hexadecimal/],
  [`https://${accountSid}:token@api.twilio.com?messaging_service=${accountSid}`, /32 hexadecimal/],
  ['https://api.twilio.com', /account SID as its user/],
  ['https://someone:token@api.twilio.com', /account SID as its user/],
  [`https://SK${'0'.repeat(32)}:token@api.twilio.com`, /API key/],
  [`https://${accountSid}@api.twilio.com`, /auth token as its password/],
  [`https://${accountSid}:a%0d%0ab@api.twilio.com`, /auth token as its password/],
  [`https://${accountSid}:%E0%A4%A@api.twilio.com`, /well encoded/],
])('%j is refused with a sentence that helps', (url, sentence) => {
  expect(() => parseTwilioUrl(url)).toThrow(sentence);
});

test('no error carries the auth token', () => {
  const faults = [
    '@host?x=1',
    '@host/path',
    '@',
    '@ho st',
    '@host?messaging_service=x',
    '%E0@host',
    '%00@host',
  ];
  const users = [accountSid, 'someone', `SK${'0'.repeat(32)}`];
  fc.assert(
    fc.property(
      fc.stringMatching(/^[a-z0-9]{8,20}$/),
      fc.constantFrom(...faults),
      fc.constantFrom(...users),
      (random, fault, user) => {
        const authToken = `Tk0${random}`;
        let thrown = null;
        try {
          parseTwilioUrl(`https://${user}:${authToken}${fault}`);
        } catch (error) {
          thrown = error as Error;
        }
        expect(thrown).not.toBeNull();
        expect(`${thrown?.stack}${String(thrown?.cause)}${JSON.stringify(thrown)}`).not.toContain(authToken);
      },
    ),
  );
});
