import { parse } from 'tldts';

/** Longer texts are no addresses that anybody shows. */
export const shownAddressLengthMax = 8_192;

/** They break a long address into lines, and are not seen. */
const invisible = /[\u00ad\u200b-\u200d\u2060\ufeff]/g;

/** Without what stands around it, as in “→ example.com”, “(example.com)” or “example.com.”. Reads a text once. */
const core = /[\p{L}\p{N}](?:.*[\p{L}\p{N}])?/su;

/**
 * Whether a text, as a reader sees it, is an address and nothing else: a URL, the name of a host under a public suffix,
 * with or without a path, or an email address.
 */
export function isShownAddress(text: string): boolean {
  if (text.length > shownAddressLengthMax) return false;
  const [shown = ''] = core.exec(text.replace(invisible, '')) ?? [];
  if (/\s/u.test(shown)) return false;
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(shown)) return true;
  const [authority = ''] = shown.split(/[/?#\\]/, 1);
  const host = authority.slice(authority.lastIndexOf('@') + 1).replace(/:\d*$/, '');
  const { domain, isIcann } = parse(host, { extractHostname: false });
  return domain !== null && isIcann === true;
}
