import { compileText, type CompiledText, fillText, listPlaceholders } from '../placeholders.ts';

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

/** A text with its values; longer than any template may become is null. */
export function fillTemplateText(text: string | CompiledText, parameters: TemplateParameters): string | null {
  const compiled = typeof text === 'string' ? compileText(text) : text;
  return fillText(compiled, parameters, 'none', filledCharsMax);
}

/** Four times what a body may have before its values are in. */
const filledCharsMax = 4_096;
