import type { Oversight } from './channel.ts';

/**
 * What is likely to be a mistake in a campaign is told when it is written and when it is sent, in a header: the body
 * of these answers is the id alone. A preview says it in words.
 */

const header = 'postillion-warnings';

/** For the description of a route. */
export const oversightsHeader = {
  [header]:
    'What is likely to be a mistake, as names separated by commas. `no_unsubscribe_link`: neither the HTML nor the ' +
    'text has `{{unsubscribe_url}}`, so that readers can unsubscribe by their mail client alone. Nothing is refused ' +
    'for it; not sent where there is nothing to say.',
};

export function tellOversights(oversights: readonly Oversight[]): Record<string, string> {
  return oversights.length === 0 ? {} : { [header]: oversights.join(', ') };
}
