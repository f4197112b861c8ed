import type { Values } from '../channels/placeholders.ts';

/** What is known of a text from its acceptance on. */
export type StoredSmsDetails = { encoding: 'gsm7' | 'ucs2'; segments: number };

/** What a text says; of a campaign, before its placeholders are filled with each contact's own values. */
export type StoredSmsContent = { text: string; defaults?: Values };
