import {
  findTemplateIssues,
  listTemplateParameters,
  type TemplateButton,
  type TemplateComponent,
  type TemplateContent,
} from '../channels/chatapp/chatapp.ts';
import { showContent } from './record.ts';
import type { ButtonShape, ComponentShape, TemplateBody, TemplatePatch } from './schema.ts';
import type { TemplateRow } from './store.ts';

export type ReadContent = { kind: 'read'; content: TemplateContent } | { kind: 'invalid'; issues: string[] };

/** What a template says, as the body of a request has it. What the provider is known to refuse is invalid. */
export function readContent(body: TemplateBody): ReadContent {
  const read = readShape(body);
  return read.kind === 'invalid' ? read : check(read.content);
}

function readShape(body: TemplateBody): ReadContent {
  return body.category === 'authentication' ? readCode(body) : readComponents(body);
}

function check(content: TemplateContent): ReadContent {
  const issues = findTemplateIssues(content);
  return issues.length === 0 ? { kind: 'read', content } : { kind: 'invalid', issues };
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
  const read = readShape({ name, language, category, ...bodyOf(row.content), ...patch });
  if (read.kind === 'invalid') return read;
  const { content } = read;
  if (content.kind === 'code' || patch.examples !== undefined) return check(content);
  const names = listTemplateParameters(content);
  const kept = Object.entries(content.examples).filter(([example]) => names.includes(example));
  return check({ ...content, examples: Object.fromEntries(kept) });
}

/** As a request would have it. */
function bodyOf(content: TemplateContent): TemplatePatch {
  const { components, examples, authentication } = showContent(content);
  if (authentication === null)
    return { ...(components !== null && { components }), ...(examples !== null && { examples }) };
  const { code_expiration_minutes: minutes, ...rest } = authentication;
  return { authentication: { ...rest, ...(minutes !== null && { code_expiration_minutes: minutes }) } };
}

function readCode({ components, examples, authentication }: TemplateBody): ReadContent {
  const issues = [
    ...(authentication === undefined ? ['authentication is required where category is authentication'] : []),
    ...(components === undefined ? [] : ['components must be left out where category is authentication']),
    ...(examples === undefined ? [] : ['examples must be left out where category is authentication']),
  ];
  if (authentication === undefined || issues.length > 0) return { kind: 'invalid', issues };
  return {
    kind: 'read',
    content: {
      kind: 'code',
      addSecurityRecommendation: authentication.add_security_recommendation ?? false,
      codeExpirationMinutes: authentication.code_expiration_minutes ?? null,
      buttonText: authentication.button.text,
    },
  };
}

function readComponents({ category, components, examples, authentication }: TemplateBody): ReadContent {
  const issues = [
    ...(components === undefined ? [`components is required where category is ${category}`] : []),
    ...(authentication === undefined
      ? []
      : [`authentication must be left out where category is ${category}`]),
  ];
  const read = (components ?? []).map((given, index) => readComponent(given, `components[${index}]`, issues));
  if (issues.length > 0) return { kind: 'invalid', issues };
  return {
    kind: 'read',
    content: { kind: 'written', components: read, examples: examples ?? {} },
  };
}

/** Adds what is wrong with it to `issues`; what it returns is then of no use. */
function readComponent(given: ComponentShape, path: string, issues: string[]): TemplateComponent {
  const { type, format, text, buttons } = given;
  if (format !== undefined && type !== 'header')
    issues.push(`${path}.format must be left out where type is ${type}`);
  if (type === 'buttons') {
    if (text !== undefined) issues.push(`${path}.text must be left out where type is buttons`);
    if (buttons === undefined) issues.push(`${path}.buttons is required where type is buttons`);
    return {
      type,
      buttons: (buttons ?? []).map((button, index) =>
        readButton(button, `${path}.buttons[${index}]`, issues),
      ),
    };
  }
  if (buttons !== undefined) issues.push(`${path}.buttons must be left out where type is ${type}`);
  if (text === undefined) issues.push(`${path}.text is required where type is ${type}`);
  return { type, text: text ?? '' };
}

function readButton(given: ButtonShape, path: string, issues: string[]): TemplateButton {
  const { type, text, url, phone_number: phoneNumber } = given;
  if (url !== undefined && type !== 'url') issues.push(`${path}.url must be left out where type is ${type}`);
  if (phoneNumber !== undefined && type !== 'phone_number')
    issues.push(`${path}.phone_number must be left out where type is ${type}`);
  switch (type) {
    case 'quick_reply':
      return { type, text };
    case 'url':
      if (url === undefined) issues.push(`${path}.url is required where type is url`);
      return { type, text, url: url ?? '' };
    case 'phone_number':
      if (phoneNumber === undefined)
        issues.push(`${path}.phone_number is required where type is phone_number`);
      return { type, text, phoneNumber: phoneNumber ?? '' };
  }
}
