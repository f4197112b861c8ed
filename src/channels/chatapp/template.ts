import { isLongerThan } from '../../platform/characters.ts';
import { compileText, type CompiledText, fillText, findValue, listPlaceholders } from '../placeholders.ts';

/** What a template is for, which decides how it may be sent and what it costs. */
export const templateCategories = ['marketing', 'utility', 'authentication'] as const;

export type TemplateCategory = (typeof templateCategories)[number];

/** What a template says: parts that its author wrote, or the preset text around a one-time code. */
export type TemplateContent = WrittenTemplate | CodeTemplate;

export type WrittenTemplate = {
  kind: 'written';
  /** At most one of each type; a body is always there. */
  components: readonly TemplateComponent[];
  /** For the reviewer: a value for each placeholder. */
  examples: Readonly<Record<string, string>>;
};

export type TemplateComponent =
  | { type: 'header'; text: string }
  | { type: 'body'; text: string }
  | { type: 'footer'; text: string }
  | { type: 'buttons'; buttons: readonly TemplateButton[] };

export type TemplateButton =
  | { type: 'quick_reply'; text: string }
  /** `url` may end in one placeholder. */
  | { type: 'url'; text: string; url: string }
  /** E.164, with its plus. */
  | { type: 'phone_number'; text: string; phoneNumber: string };

export type CodeTemplate = {
  kind: 'code';
  addSecurityRecommendation: boolean;
  /** Null: the text says nothing of an end. */
  codeExpirationMinutes: number | null;
  /** Of the button that copies the code. */
  buttonText: string;
};

/** By the names of placeholders. */
export type TemplateParameters = Readonly<Record<string, string>>;

/** The only parameter of a template with a code. */
export const codeParameter = 'code';

/** Of any template that the rules let through. */
const parametersMax = 1_000;

/** The names that a message must give values for, in the order in which a reader meets them. */
export function listTemplateParameters(content: TemplateContent): string[] {
  if (content.kind === 'code') return [codeParameter];
  return listPlaceholders(content.components.flatMap(textsOf), parametersMax);
}

function textsOf(component: TemplateComponent): string[] {
  if (component.type !== 'buttons') return [component.text];
  return component.buttons.flatMap((button) => (button.type === 'url' ? [button.url] : []));
}

export function findComponent<Type extends TemplateComponent['type']>(
  { components }: WrittenTemplate,
  type: Type,
): Extract<TemplateComponent, { type: Type }> | null {
  const found = components.find((component) => component.type === type);
  return (found as Extract<TemplateComponent, { type: Type }> | undefined) ?? null; // Of that type.
}

/** What its author wrote: texts, labels and addresses. */
export function listTemplateTexts(content: TemplateContent): string[] {
  if (content.kind === 'code') return [];
  return content.components.flatMap((component) =>
    component.type === 'buttons'
      ? component.buttons.flatMap((button) =>
          button.type === 'url' ? [button.text, button.url] : [button.text],
        )
      : [component.text],
  );
}

/** A text with its values; longer than any template may become is null. */
export function fillTemplateText(text: string | CompiledText, parameters: TemplateParameters): string | null {
  const compiled = typeof text === 'string' ? compileText(text, 'text') : text;
  return fillText(compiled, parameters, filledCharsMax);
}

/**
 * What stands for the placeholder of a button's URL, as the URL with its values has it; null where there is none. Meta
 * appends it as it gets it, so that it is encoded before.
 */
export function fillLinkParameter(url: string, parameters: TemplateParameters): string | null {
  const [placeholder] = compileText(url, 'text').placeholders;
  return placeholder === undefined ? null : (findValue(placeholder, placeholder.place, parameters) ?? '');
}

/** Four times what a body may have before its values are in. */
const filledCharsMax = 4_096;

/**
 * What the provider is known to refuse, as issues that begin with the path of their field in the request; none for a
 * template that may be submitted. What only a reviewer can tell, such as too many placeholders for so little text, is
 * told by the review.
 */
export function findTemplateIssues(content: TemplateContent): string[] {
  if (content.kind === 'code') return findCodeIssues(content);
  const { components, examples } = content;
  const issues = [
    ...findDuplicates(components),
    ...components.flatMap((component, index) => findComponentIssues(component, `components[${index}]`)),
  ];
  // Of texts with malformed placeholders the names are not known.
  return issues.length > 0 ? issues : findExampleIssues(listTemplateParameters(content), examples);
}

/** Code points, by what Meta's documentation of components says of each text. */
const headerCharsMax = 60;
const bodyCharsMax = 1_024;
const footerCharsMax = 60;
const buttonCharsMax = 25;
const urlCharsMax = 2_000;

const buttonsMax = 10;
const urlButtonsMax = 2;
const phoneButtonsMax = 1;

function findCodeIssues({ buttonText, codeExpirationMinutes }: CodeTemplate): string[] {
  const issues = findTextIssues(buttonText, 'authentication.button.text', buttonCharsMax, { isLine: true });
  if (listPlaceholders([buttonText], 1).length > 0)
    issues.push('authentication.button.text must have no placeholder');
  const isExpirationKnown = codeExpirationMinutes === null || isBetween(codeExpirationMinutes, 1, 90);
  if (!isExpirationKnown) issues.push('authentication.code_expiration_minutes must be from 1 to 90');
  return issues;
}

function isBetween(value: number, least: number, most: number): boolean {
  return Number.isInteger(value) && value >= least && value <= most;
}

function findDuplicates(components: readonly TemplateComponent[]): string[] {
  const issues = components.flatMap(({ type }, index) =>
    components.findIndex((other) => other.type === type) < index
      ? [`components[${index}].type ${type} is there twice`]
      : [],
  );
  if (!components.some(({ type }) => type === 'body')) issues.push('components must have a body');
  return issues;
}

function findComponentIssues(component: TemplateComponent, path: string): string[] {
  switch (component.type) {
    case 'header':
      return [
        ...findTextIssues(component.text, `${path}.text`, headerCharsMax, { isLine: true }),
        ...findPlaceholderIssues(component.text, `${path}.text`, 1),
      ];
    case 'body':
      return [
        ...findTextIssues(component.text, `${path}.text`, bodyCharsMax, { isLine: false }),
        ...findPlaceholderIssues(component.text, `${path}.text`, bodyCharsMax),
        ...findEdgeIssues(component.text, `${path}.text`),
      ];
    case 'footer':
      return findPlainIssues(component.text, `${path}.text`, footerCharsMax);
    case 'buttons':
      return findButtonsIssues(component.buttons, `${path}.buttons`);
  }
}

function findPlainIssues(text: string, path: string, charsMax: number): string[] {
  return [...findTextIssues(text, path, charsMax, { isLine: true }), ...findPlaceholderIssues(text, path, 0)];
}

function findTextIssues(
  text: string,
  path: string,
  charsMax: number,
  { isLine }: { isLine: boolean },
): string[] {
  if (isLongerThan(text, charsMax)) return [`${path} must be at most ${charsMax} characters`];
  if (text.trim() === '') return [`${path} must not be blank`];
  if (hasControlCharacters(text)) return [`${path} must not contain control characters`];
  return isLine && /[\r\n]/.test(text) ? [`${path} must be a single line`] : [];
}

const placeholderPattern = /\{\{([a-z][a-z0-9_]*)\}\}/g;

/** Stands for a placeholder that was cut out: no text of a template has it, since PostgreSQL could not store it. */
const cutOut = '\0';

/** Texts that are too long are not looked at. */
function findPlaceholderIssues(text: string, path: string, countMax: number): string[] {
  if (isLongerThan(text, urlCharsMax)) return [];
  const names = Array.from(text.matchAll(placeholderPattern), ([, name]) => name);
  const rest = text.replaceAll(placeholderPattern, cutOut);
  if (
    rest.includes('{{') ||
    rest.includes('}}') ||
    rest.includes(`{${cutOut}`) ||
    rest.includes(`${cutOut}}`)
  )
    return [
      `${path} must have placeholders of the form {{name}} alone, with names of lower-case letters, digits and underscores that begin with a letter`,
    ];
  if (names.length > countMax)
    return [`${path} must have ${countMax === 0 ? 'no placeholder' : `at most ${countMax} placeholder`}`];
  const twice = names.find((name, index) => names.indexOf(name) < index);
  return twice === undefined ? [] : [`${path} must have the placeholder {{${twice}}} once`];
}

/** Meta: the body may neither begin nor end with a variable (2388299). */
function findEdgeIssues(text: string, path: string): string[] {
  if (isLongerThan(text, bodyCharsMax)) return [];
  const rest = text.replaceAll(placeholderPattern, cutOut).trim();
  const isAtEdge = rest.startsWith(cutOut) || rest.endsWith(cutOut);
  return isAtEdge ? [`${path} must neither begin nor end with a placeholder`] : [];
}

function findButtonsIssues(buttons: readonly TemplateButton[], path: string): string[] {
  if (buttons.length === 0) return [`${path} must have at least 1 item`];
  if (buttons.length > buttonsMax) return [`${path} must have at most ${buttonsMax} items`];
  const count = (type: TemplateButton['type']) => buttons.filter((button) => button.type === type).length;
  const issues = buttons.flatMap((button, index) => findButtonIssues(button, `${path}[${index}]`));
  if (count('url') > urlButtonsMax) issues.push(`${path} must have at most ${urlButtonsMax} of the type url`);
  if (count('phone_number') > phoneButtonsMax)
    issues.push(`${path} must have at most ${phoneButtonsMax} of the type phone_number`);
  // From replies to others or back, once: else they do not stand together.
  const changes = buttons.filter(
    (button, index) =>
      index > 0 && (button.type === 'quick_reply') !== (buttons[index - 1]?.type === 'quick_reply'),
  );
  if (changes.length > 1)
    issues.push(`${path} must have those of the type quick_reply together, before the others or after them`);
  return issues;
}

function findButtonIssues(button: TemplateButton, path: string): string[] {
  const issues = findPlainIssues(button.text, `${path}.text`, buttonCharsMax);
  switch (button.type) {
    case 'quick_reply':
      return issues;
    case 'url':
      return [...issues, ...findUrlIssues(button.url, `${path}.url`)];
    case 'phone_number':
      return /^\+[1-9][0-9]{1,14}$/.test(button.phoneNumber)
        ? issues
        : [...issues, `${path}.phone_number must be an E.164 number such as +15550051310`];
  }
}

function findUrlIssues(url: string, path: string): string[] {
  if (isLongerThan(url, urlCharsMax)) return [`${path} must be at most ${urlCharsMax} characters`];
  const issues = findPlaceholderIssues(url, path, 1);
  if (issues.length > 0) return issues;
  const rest = url.replaceAll(placeholderPattern, cutOut);
  const place = rest.indexOf(cutOut);
  if (place !== -1 && place < rest.length - 1) return [`${path} must have its placeholder at the end`];
  const fixed = place === -1 ? rest : rest.slice(0, place);
  if (!isWebAddress(fixed)) return [`${path} must be an https URL`];
  // Else whoever gives the value says where the link leads.
  const isHostFixed = place === -1 || /^https:\/\/[^/?#]+[/?#]/i.test(fixed);
  return isHostFixed ? [] : [`${path} must have its host before the placeholder`];
}

function isWebAddress(url: string): boolean {
  if (!/^https:\/\/[^\s\\@]+$/i.test(url.split(/[?#]/, 1)[0] ?? '') || /[\s\\]|\p{Cc}/u.test(url))
    return false;
  try {
    return new URL(url).hostname.includes('.');
  } catch {
    return false;
  }
}

/** But line breaks and tabs, which have rules of their own: what terminals and phones may obey, and nobody sees. */
export function hasControlCharacters(text: string): boolean {
  return /(?![\t\n\r])\p{Cc}/u.test(text);
}

/** Why a value cannot stand in a message, or null: Meta refuses it (132012) as an example and when sending alike. */
export function findValueProblem(value: string): string | null {
  if (value.trim() === '') return 'must not be blank';
  if (isLongerThan(value, bodyCharsMax)) return `must be at most ${bodyCharsMax} characters`;
  if (hasControlCharacters(value)) return 'must not contain control characters';
  return /[\r\n\t]| {5}/.test(value)
    ? 'must have no line break, no tab and no more than four blanks in a row'
    : null;
}

function findExampleIssues(names: readonly string[], examples: Readonly<Record<string, string>>): string[] {
  const known = new Set(names);
  const missing = names.filter((name) => !Object.hasOwn(examples, name));
  const given = Object.entries(examples);
  return [
    ...missing.map((name) => `examples.${name} is required`),
    ...given.flatMap(([name, value]) => {
      if (!known.has(name)) return [`examples.${name} is not the name of a placeholder`];
      const problem = findValueProblem(value);
      return problem === null ? [] : [`examples.${name} ${problem}`];
    }),
  ];
}

/** More is not known to pass at Meta. */
const surelyTakenName = /^[a-z_]{1,20}$/;

/** What a reviewer may refuse, in sentences for the author. */
export function listTemplateWarnings(content: TemplateContent): string[] {
  return listTemplateParameters(content)
    .filter((name) => !surelyTakenName.test(name))
    .map(
      (name) =>
        `The provider may refuse the placeholder {{${name}}}: those of at most 20 letters and underscores are known to be taken.`,
    );
}

/** A message as a person sees it. */
export type TemplateBubble = {
  header: string | null;
  body: string;
  footer: string | null;
  buttons: readonly BubbleButton[];
};

export type BubbleButton =
  | { type: 'quick_reply'; text: string }
  | { type: 'url'; text: string; url: string }
  | { type: 'phone_number'; text: string; phoneNumber: string }
  | { type: 'copy_code'; text: string; code: string };

/** Null if it is too long with these values. A placeholder without a value is left as it is written. */
export function fillTemplate(
  content: TemplateContent,
  parameters: TemplateParameters,
): TemplateBubble | null {
  if (content.kind === 'code') return fillCode(content, parameters);
  const textOf = (type: 'header' | 'body' | 'footer') => {
    const component = findComponent(content, type);
    return component && { filled: fillTemplateText(component.text, parameters) };
  };
  const [header, body, footer] = [textOf('header'), textOf('body'), textOf('footer')];
  const buttons = (findComponent(content, 'buttons')?.buttons ?? []).map((button) =>
    fillButton(button, parameters),
  );
  if (header?.filled === null || footer?.filled === null || typeof body?.filled !== 'string') return null;
  const whole = buttons.flatMap((button) => button ?? []);
  if (whole.length < buttons.length) return null;
  return {
    header: header?.filled ?? null,
    body: body.filled,
    footer: footer?.filled ?? null,
    buttons: whole,
  };
}

function fillButton(button: TemplateButton, parameters: TemplateParameters): BubbleButton | null {
  if (button.type !== 'url') return button;
  const url = fillTemplateText(button.url, parameters);
  return url === null ? null : { ...button, url };
}

/** The provider presets this text, in words of its own. */
function fillCode(content: CodeTemplate, parameters: TemplateParameters): TemplateBubble {
  const code = Object.hasOwn(parameters, codeParameter)
    ? (parameters[codeParameter] ?? '')
    : `{{${codeParameter}}}`;
  const { addSecurityRecommendation, codeExpirationMinutes: minutes, buttonText } = content;
  const advice = addSecurityRecommendation ? ' Tell it to nobody, whoever asks for it.' : '';
  return {
    header: null,
    body: `Your code is ${code}.${advice}`,
    footer:
      minutes === null ? null : `It is good for ${minutes === 1 ? 'one minute' : `${minutes} minutes`}.`,
    buttons: [{ type: 'copy_code', text: buttonText, code }],
  };
}
