import {
  findTemplateIssues,
  type TemplateButton,
  type TemplateComponent,
  type TemplateContent,
} from '../channels/chatapp/chatapp.ts';
import type { ButtonShape, ComponentShape, TemplateBody } from './schema.ts';

export type ReadContent = { kind: 'read'; content: TemplateContent } | { kind: 'invalid'; issues: string[] };

/** What a template says, as the body of a request has it. What the provider is known to refuse is invalid. */
export function readContent(body: TemplateBody): ReadContent {
  const read = body.category === 'authentication' ? readCode(body) : readComponents(body);
  if (read.kind === 'invalid') return read;
  const issues = findTemplateIssues(read.content);
  return issues.length === 0 ? read : { kind: 'invalid', issues };
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
