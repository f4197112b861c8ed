import {
  findTemplateIssues,
  listTemplateParameters,
  type TemplateButton,
  type TemplateCategory,
  type TemplateComponent,
  type TemplateContent,
} from '../channels/chatapp/chatapp.ts';
import { showContent } from './record.ts';
import type { ButtonShape, ComponentShape, TemplateBody, TemplatePatch } from './schema.ts';
import type { TemplateRow } from './store.ts';

type ReadContent = { kind: 'read'; content: TemplateContent } | { kind: 'invalid'; issues: string[] };

/** What a template says, as the body of a request has it, which its schema and rules let through. */
export function readContent(body: TemplateBody): TemplateContent {
  const { category, components = [], examples = {}, authentication } = body;
  if (category !== 'authentication')
    return { kind: 'written', components: components.map(readComponent), examples };
  if (authentication === undefined) throw new Error('the rules let no such body through');
  return {
    kind: 'code',
    addSecurityRecommendation: authentication.add_security_recommendation ?? false,
    codeExpirationMinutes: authentication.code_expiration_minutes ?? null,
    buttonText: authentication.button.text,
  };
}

/**
 * What is wrong with a body of which each component is right by itself: what does not belong together, or what the
 * provider is known to refuse.
 */
export function findBodyIssues(
  { category, ...said }: Partial<TemplateBody>,
  isGiven: (name: string) => boolean,
): string[] {
  if (category === undefined) return [];
  const issues = findForeignFields(category, isGiven);
  const isReadable = (['components', 'examples', 'authentication'] as const).every(
    (field) => isGiven(field) === (said[field] !== undefined),
  );
  return issues.length > 0 || !isReadable
    ? issues
    : findTemplateIssues(readContent({ name: '', language: '', ...said, category }));
}

function findForeignFields(category: TemplateCategory, isGiven: (name: string) => boolean): string[] {
  const isCode = category === 'authentication';
  const wanted = isCode ? 'authentication' : 'components';
  const foreign = isCode ? ['components', 'examples'] : ['authentication'];
  return [
    ...(isGiven(wanted) ? [] : [`${wanted} is required where category is ${category}`]),
    ...foreign.filter(isGiven).map((field) => `${field} must be left out where category is ${category}`),
  ];
}

/**
 * What a template is to say after an edit: what is not given stays. Examples that are not given stay for the placeholders
 * that are still there.
 */
export function readEdit(
  row: Pick<TemplateRow, 'name' | 'language' | 'category' | 'content'>,
  patch: TemplatePatch,
): ReadContent {
  const { name, language, category } = row;
  const body = { name, language, category, ...bodyOf(row.content), ...patch };
  const foreign = findForeignFields(category, (field) => Reflect.get(body, field) !== undefined);
  if (foreign.length > 0) return { kind: 'invalid', issues: foreign };
  const content = readContent(body);
  if (content.kind === 'code' || patch.examples !== undefined) return check(content);
  const names = listTemplateParameters(content);
  const kept = Object.entries(content.examples).filter(([example]) => names.includes(example));
  return check({ ...content, examples: Object.fromEntries(kept) });
}

function check(content: TemplateContent): ReadContent {
  const issues = findTemplateIssues(content);
  return issues.length === 0 ? { kind: 'read', content } : { kind: 'invalid', issues };
}

/** As a request would have it. */
function bodyOf(content: TemplateContent): TemplatePatch {
  const { components, examples, authentication } = showContent(content);
  if (authentication === null)
    return { ...(components !== null && { components }), ...(examples !== null && { examples }) };
  const { code_expiration_minutes: minutes, ...rest } = authentication;
  return { authentication: { ...rest, ...(minutes !== null && { code_expiration_minutes: minutes }) } };
}

/** Its rules let no field be missing that its type needs. */
function readComponent({ type, text = '', buttons = [] }: ComponentShape): TemplateComponent {
  return type === 'buttons' ? { type, buttons: buttons.map(readButton) } : { type, text };
}

function readButton({ type, text, url = '', phone_number: phoneNumber = '' }: ButtonShape): TemplateButton {
  switch (type) {
    case 'quick_reply':
      return { type, text };
    case 'url':
      return { type, text, url };
    case 'phone_number':
      return { type, text, phoneNumber };
  }
}
