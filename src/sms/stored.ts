import type { Values } from '../channels/placeholders.ts';
import type { StoredLabels } from '../messages/messages.ts';

/** Details of a text that are known at its acceptance. */
export type StoredSmsDetails = StoredLabels & { encoding: 'gsm7' | 'ucs2'; segments: number };

/** The content of a text. For a campaign, the text before placeholders are filled for each contact. */
export type StoredSmsContent = { text: string; defaults?: Values };
