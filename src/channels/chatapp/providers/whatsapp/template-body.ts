import { isDeepStrictEqual } from 'node:util';
import type { SentTemplate } from '../../provider.ts';
import {
  fillTemplateText,
  listTemplateParameters,
  type TemplateButton,
  type TemplateComponent,
  type TemplateContent,
  type WrittenTemplate,
} from '../../template.ts';
import { type JsonObject, listOf, objectOf, textOf } from './json.ts';

/**
 * The body of `POST /{business account}/message_templates`
 * (https://developers.facebook.com/docs/whatsapp/business-management-api/message-templates). Placeholders have names in
 * all parts but the URL of a button, which has at most one, at its end, and by number.
 */
export function composeTemplate({ name, language, category, content }: SentTemplate): string {
  const format = content.kind === 'written' ? { parameter_format: 'NAMED' } : {};
  return JSON.stringify({
    ...{ name, language, category: category.toUpperCase() },
    ...format,
    ...composeContent(content),
  });
}

/**
 * The body of `POST /{template}`, which replaces all components. The category of an approved template is never changed,
 * and its format of parameters stays.
 */
export function composeEdit({ content }: SentTemplate): string {
  return JSON.stringify(composeContent(content));
}

function composeContent(content: TemplateContent) {
  if (content.kind === 'written')
    return { components: content.components.map((component) => composeComponent(component, content)) };
  const { addSecurityRecommendation, codeExpirationMinutes, buttonText } = content;
  return {
    message_send_ttl_seconds: ttlSecondsOf(codeExpirationMinutes),
    components: [
      { type: 'BODY', add_security_recommendation: addSecurityRecommendation },
      ...(codeExpirationMinutes === null
        ? []
        : [{ type: 'FOOTER', code_expiration_minutes: codeExpirationMinutes }]),
      { type: 'BUTTONS', buttons: [{ type: 'OTP', otp_type: 'COPY_CODE', text: buttonText }] },
    ],
  };
}

/**
 * Whether the components that Meta has of a template say what its content says. Examples are left out, of which Meta need
 * not return any; and of a code the preset text, which is Meta's own.
 */
export function saysTheSame(components: unknown, content: TemplateContent): boolean {
  const read = listOf(components).map(objectOf);
  const partOf = (type: string) => read.find((part) => part.type === type) ?? {};
  const buttons = listOf(partOf('BUTTONS').buttons).map(objectOf);
  if (content.kind === 'code')
    return (
      (partOf('BODY').add_security_recommendation === true) === content.addSecurityRecommendation &&
      (partOf('FOOTER').code_expiration_minutes ?? null) === content.codeExpirationMinutes &&
      textOf(buttons[0]?.text) === content.buttonText
    );
  const wanted = content.components.map((component) => objectOf(composeComponent(component, content)));
  return isDeepStrictEqual(describe(read), describe(wanted));
}

/** What a reader would see of components, whatever their order. */
function describe(components: readonly JsonObject[]) {
  const textFor = (type: string) =>
    textOf(components.find((part) => part.type === type)?.text)
      ?.replaceAll('\r\n', '\n')
      .trim() ?? null;
  const buttons = listOf(components.find((part) => part.type === 'BUTTONS')?.buttons).map(objectOf);
  return {
    texts: ['HEADER', 'BODY', 'FOOTER'].map(textFor),
    buttons: buttons.map(({ type, text, url, phone_number: phoneNumber }) => ({
      type,
      text: textOf(text)?.trim(),
      url,
      phoneNumber: textOf(phoneNumber)?.replace('+', ''),
    })),
  };
}

/** What WhatsApp takes for codes. */
const ttlSecondsMax = 900;
/** What it takes for the life of a code of which nothing is said. */
const usualTtlSeconds = 600;

/** A code that arrives after it has expired is worse than none. */
function ttlSecondsOf(codeExpirationMinutes: number | null): number {
  return codeExpirationMinutes === null
    ? usualTtlSeconds
    : Math.min(ttlSecondsMax, 60 * codeExpirationMinutes);
}

function composeComponent(component: TemplateComponent, content: WrittenTemplate) {
  switch (component.type) {
    case 'header':
      return {
        ...{ type: 'HEADER', format: 'TEXT', text: component.text },
        ...exampleOf('header_text_named_params', component, content),
      };
    case 'body':
      return {
        ...{ type: 'BODY', text: component.text },
        ...exampleOf('body_text_named_params', component, content),
      };
    case 'footer':
      return { type: 'FOOTER', text: component.text };
    case 'buttons':
      return { type: 'BUTTONS', buttons: component.buttons.map((button) => composeButton(button, content)) };
  }
}

function exampleOf(key: string, component: TemplateComponent, { examples }: WrittenTemplate) {
  const names = namesIn(component);
  if (names.length === 0) return {};
  const params = names.map((name) => ({ param_name: name, example: examples[name] ?? '' }));
  return { example: { [key]: params } };
}

function namesIn(component: TemplateComponent): string[] {
  return listTemplateParameters({ kind: 'written', components: [component], examples: {} });
}

function composeButton(button: TemplateButton, { examples }: WrittenTemplate) {
  switch (button.type) {
    case 'quick_reply':
      return { type: 'QUICK_REPLY', text: button.text };
    case 'phone_number':
      return { type: 'PHONE_NUMBER', text: button.text, phone_number: button.phoneNumber.replace('+', '') };
    case 'url': {
      const [name] = namesIn({ type: 'buttons', buttons: [button] });
      if (name === undefined) return { type: 'URL', text: button.text, url: button.url };
      return {
        ...{ type: 'URL', text: button.text },
        // No value, of which the braces would be encoded: only the name is another.
        url: button.url.replace(`{{${name}}}`, '{{1}}'),
        // The whole URL.
        example: [fillTemplateText(button.url, examples)],
      };
    }
  }
}
