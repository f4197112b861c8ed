import type { ChatAppHandOff } from '../../provider.ts';
import {
  codeParameter,
  fillLinkParameter,
  findComponent,
  listTemplateParameters,
  type TemplateParameters,
  type WrittenTemplate,
} from '../../template.ts';

/**
 * The body of `POST /{phone}/messages`
 * (https://developers.facebook.com/docs/whatsapp/cloud-api/guides/send-message-templates). Parameters go by their names,
 * except where WhatsApp counts: the variable of a button's URL, and the code of an authentication template.
 */

type TextParameter = { type: 'text'; parameter_name?: string; text: string };

type MessageComponent =
  | { type: 'header' | 'body'; parameters: readonly TextParameter[] }
  | { type: 'button'; sub_type: 'url'; index: string; parameters: readonly TextParameter[] };

/** `token` comes back with every status of the message. */
export function composeMessage(
  {
    to,
    template,
    parameters,
    isCampaign,
  }: Pick<ChatAppHandOff, 'to' | 'template' | 'parameters' | 'isCampaign'>,
  token: string,
): string {
  // What a contact's field holds is not the typing of the sender, who would be told of it with a single message.
  const values = isCampaign ? foldWhiteSpace(parameters) : parameters;
  const components =
    template.content.kind === 'code' ? composeCode(values) : composeComponents(template.content, values);
  return JSON.stringify({
    messaging_product: 'whatsapp',
    recipient_type: 'individual',
    to: to.replace('+', ''),
    type: 'template',
    biz_opaque_callback_data: token,
    template: {
      name: template.name,
      language: { policy: 'deterministic', code: template.language },
      ...(components.length > 0 && { components }),
    },
  });
}

/** Line breaks, tabs and more than four blanks in a row are refused (132012). */
function foldWhiteSpace(parameters: TemplateParameters): TemplateParameters {
  const folded = Object.entries(parameters).map(([name, value]) => [name, foldText(value)]);
  return Object.fromEntries(folded) as TemplateParameters; // Of the same names.
}

function foldText(text: string): string {
  return text.trim().replace(/\s+/g, (run) => (isTaken(run) ? run : ' '));
}

function isTaken(run: string): boolean {
  return run.length <= 4 && !/[\t\n\v\f\r\u0085\u2028\u2029]/.test(run);
}

/** The code is shown in the text, and copied by the button. */
function composeCode(values: TemplateParameters): MessageComponent[] {
  const parameters: TextParameter[] = [{ type: 'text', text: values[codeParameter] ?? '' }];
  return [
    { type: 'body', parameters },
    { type: 'button', sub_type: 'url', index: '0', parameters },
  ];
}

function composeComponents(content: WrittenTemplate, values: TemplateParameters): MessageComponent[] {
  const components: MessageComponent[] = [];
  for (const type of ['header', 'body'] as const) {
    const component = findComponent(content, type);
    const names = component === null ? [] : namesIn(component);
    if (names.length > 0) components.push({ type, parameters: names.map((name) => named(name, values)) });
  }
  const buttons = findComponent(content, 'buttons')?.buttons ?? [];
  for (const [index, button] of buttons.entries()) {
    if (button.type !== 'url') continue;
    const text = fillLinkParameter(button.url, values);
    if (text === null) continue;
    // Among all buttons, also those of other types.
    const parameters = [{ type: 'text', text }] as const;
    components.push({ type: 'button', sub_type: 'url', index: String(index), parameters });
  }
  return components;
}

function namesIn(component: WrittenTemplate['components'][number]): string[] {
  return listTemplateParameters({ kind: 'written', components: [component], examples: {} });
}

function named(name: string, values: TemplateParameters): TextParameter {
  return { type: 'text', parameter_name: name, text: values[name] ?? '' };
}
