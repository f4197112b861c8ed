import type { Keyword } from '../keywords.ts';

/**
 * What is answered where neither the sender's owner nor the provider has an answer of their own. Each fits into one
 * segment of GSM 7-bit.
 */
export const defaultReplies: Readonly<Record<Keyword, string>> = {
  stop: 'You will get no more texts from this sender. Changed your mind? Reply START.',
  start: 'You will get texts from this sender again. Reply STOP to end them, HELP for help.',
  help: 'Reply STOP to get no more texts from this sender, START to get them again. Message and data rates may apply.',
};
