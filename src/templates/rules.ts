import { isLongerThan } from '../platform/characters.ts';
import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import { listVariables, variablesMax } from './rendering.ts';
import type { TemplateBody } from './schema.ts';
import type { TemplateContent } from './store.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const templateRules: Record<'template-content', FieldRule> = {
  // What is stored may also come from a change, or from the gallery.
  'template-content': defineRule<TemplateBody>(
    ({ subject = null, html = null, text = null, preview_text: previewText = null }, isGiven) => {
      const isReadable = isGiven('html') === (html !== null) && isGiven('text') === (text !== null);
      if (!isReadable) return [];
      const checked = checkContent({ subject, html, text, previewText });
      return checked.kind === 'invalid' ? [checked.issue] : [];
    },
    { isLeftToRoute: true },
  ),
};

/** Of all names together. They stand in every item of a list, where one name of 2 MB would be a page of 200 MB. */
const variablesLengthMax = 32_768;

/** Whether it can be stored, and the names of its placeholders. */
export function checkContent(
  content: TemplateContent,
): { kind: 'valid'; variables: string[] } | { kind: 'invalid'; issue: string } {
  if (content.html === null && content.text === null)
    return { kind: 'invalid', issue: 'one of html and text is required' };
  const variables = listVariables(content);
  if (variables.length > variablesMax)
    return { kind: 'invalid', issue: `a template must have at most ${variablesMax} different placeholders` };
  if (isLongerThan(variables.join(''), variablesLengthMax))
    return {
      kind: 'invalid',
      issue: `the names of a template's placeholders must be at most ${variablesLengthMax} characters altogether`,
    };
  return { kind: 'valid', variables };
}
