import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { ReviewedTemplate, TemplateState } from '../../provider.ts';
import { templateCategories, type TemplateCategory } from '../../template.ts';
import { readQuality } from './account.ts';
import { idOf, type JsonObject, objectOf, textOf } from './json.ts';

/** What WhatsApp says of a template, in answers and in webhooks, in our words. */

const states: ReadonlyMap<string, TemplateState> = new Map([
  ['PENDING', 'pending'],
  ['IN_APPEAL', 'pending'],
  ['LIMIT_EXCEEDED', 'pending'],
  ['APPROVED', 'approved'],
  ['REINSTATED', 'approved'],
  ['UNARCHIVED', 'approved'],
  ['REJECTED', 'rejected'],
  ['PAUSED', 'paused'],
  ['DISABLED', 'disabled'],
  ['ARCHIVED', 'archived'],
  ['LOCKED', 'locked'],
  ['FLAGGED', 'flagged'],
  ['PENDING_DELETION', 'deleted'],
  ['DELETED', 'deleted'],
]);

/** Null for a word that is not known. */
export function readState(value: unknown): TemplateState | null {
  return states.get(textOf(value) ?? '') ?? null;
}

export function readCategory(value: unknown): TemplateCategory | null {
  const word = textOf(value)?.toLowerCase();
  return templateCategories.find((category) => category === word) ?? null;
}

const reasons: ReadonlyMap<string, string> = new Map([
  ['ABUSIVE_CONTENT', 'The content is abusive'],
  ['INCORRECT_CATEGORY', 'The content does not fit the category'],
  ['INVALID_FORMAT', 'The form is not valid: look at the placeholders, and at what stands around them'],
  ['PROMOTIONAL', 'The content is marketing, and the category is another'],
  ['SCAM', 'The content looks like fraud'],
  ['TAG_CONTENT_MISMATCH', 'The content does not fit the language or the category'],
]);

/** In words for the author; null where there is no reason. */
export function readReason(value: unknown): string | null {
  const text = sanitiseDiagnostic(textOf(value) ?? '');
  if (text === '' || text === 'NONE') return null;
  const known = reasons.get(text);
  return known === undefined ? text : `${known} (${text})`;
}

/** Names and languages of templates have neither blanks nor control characters. */
const namePattern = /^[a-z0-9_]{1,512}$/;
/** A language, a script and a region: at least what our own templates may have. */
const languagePattern = /^[A-Za-z]{2,3}(?:_[A-Za-z]{4})?(?:_[A-Za-z]{2,3})?$/;

export function readTemplateName(value: unknown): string | null {
  const text = textOf(value);
  return text !== null && namePattern.test(text) ? text : null;
}

export function readLanguage(value: unknown): string | null {
  const text = textOf(value);
  return text !== null && languagePattern.test(text) ? text : null;
}

/** An item of a list of templates; null if it does not say which template it is. */
export function readTemplate(json: JsonObject): ReviewedTemplate | null {
  const providerTemplateId = idOf(json.id);
  const name = readTemplateName(json.name);
  const language = readLanguage(json.language);
  if (providerTemplateId === null || name === null || language === null) return null;
  const state = readState(json.status);
  const score = objectOf(json.quality_score).score;
  return {
    ...{ providerTemplateId, name, language, state },
    category: readCategory(json.category),
    rejectionReason: state === 'rejected' ? readReason(json.rejected_reason) : null,
    quality: score === undefined ? null : readQuality(score),
  };
}
