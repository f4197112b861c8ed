import { foreignSyntaxWarnings } from '../messages/messages.ts';
import type { Oversight } from './channel.ts';

/**
 * Likely mistakes in a campaign are named when it is written and when it is sent, in a header, since the body of these
 * responses is the id alone. A preview describes them in words.
 */

const header = 'postillion-warnings';

/** For a route's description in OpenAPI. */
export const oversightsHeader = {
  [header]:
    'Names of likely mistakes, separated by commas. `no_unsubscribe_link`: neither the HTML nor the text has `{{unsubscribe_url}}`, so recipients can unsubscribe only through their mail client. ' +
    `${foreignSyntaxWarnings} A mistake is not a reason to refuse the request. Absent if there are none.`,
};

export function tellOversights(oversights: readonly Oversight[]): Record<string, string> {
  return oversights.length === 0 ? {} : { [header]: oversights.join(', ') };
}
