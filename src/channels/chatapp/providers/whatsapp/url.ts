import { isLoopbackHost } from '../../../../platform/loopback.ts';
import { parseUrl } from '../../../../platform/url.ts';

/**
 * The origin of POSTILLION_WHATSAPP_URL. An address of this machine may be `http://`, too, for tests: the access token
 * stands in every request. Throws, in words for the operator, where the setting is none.
 */
export function parseWhatsAppUrl(url: string): string {
  const parsed = parseUrl(url);
  if (parsed === null)
    throw new Error('POSTILLION_WHATSAPP_URL must be a URL, such as https://graph.facebook.com');
  const { protocol, hostname, pathname, search, hash, username, password, origin } = parsed;
  const isLoopback = protocol === 'http:' && isLoopbackHost(hostname.replace(/^\[|\]$/g, ''));
  if (protocol !== 'https:' && !isLoopback)
    throw new Error(
      'POSTILLION_WHATSAPP_URL must begin with https://, or access tokens could be read on their way',
    );
  if (pathname !== '/' || search !== '' || hash !== '' || username !== '' || password !== '')
    throw new Error(
      'POSTILLION_WHATSAPP_URL must be a scheme and a host only, such as https://graph.facebook.com',
    );
  return origin;
}
