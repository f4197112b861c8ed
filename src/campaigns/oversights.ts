import { foreignSyntaxWarnings, warningsHeaderName } from '../messages/messages.ts';

/**
 * Likely mistakes in a campaign are named when it is written and when it is sent, in a header, since the body of these
 * responses is the id alone. A preview describes them in words.
 */

/** For a route's description in OpenAPI. */
export const oversightsHeader = {
  [warningsHeaderName]:
    'Names of likely mistakes, separated by commas. `no_unsubscribe_link`: neither the HTML nor the text has `{{unsubscribe_url}}`, so recipients can unsubscribe only through their mail client. ' +
    `${foreignSyntaxWarnings} A mistake is not a reason to refuse the request. Absent if there are none.`,
};
