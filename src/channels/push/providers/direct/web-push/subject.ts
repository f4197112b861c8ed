import { isVapidSubject } from '../../../web-push/vapid-subject.ts';

/**
 * Who sends, in the tokens for push services (RFC 8292 §2.1): what POSTILLION_VAPID_SUBJECT says, or else the host by
 * which this installation is known. Null where there is neither. Throws, in words for the operator, if the setting is one
 * that Apple refuses.
 */
export function chooseVapidSubject(setting: string, publicUrl: string | null): string | null {
  if (setting !== '') {
    if (isVapidSubject(setting)) return setting;
    throw new Error(
      'POSTILLION_VAPID_SUBJECT must be like mailto:push@example.com or https://example.com, with a host that is no address and known to others: Apple refuses anything else.',
    );
  }
  const known = publicUrl === null ? null : `https://${new URL(publicUrl).hostname}`;
  return known !== null && isVapidSubject(known) ? known : null;
}
