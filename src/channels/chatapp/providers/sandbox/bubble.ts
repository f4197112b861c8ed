import {
  codeParameter,
  fillTemplateText,
  type TemplateButton,
  type TemplateContent,
  type TemplateParameters,
} from '../../template.ts';

/** What a person would see, as JSON: a member for each part that the message has. */
export function describeBubble(content: TemplateContent, parameters: TemplateParameters): string {
  const fill = (text: string) => fillTemplateText(text, parameters) ?? '';
  const parts =
    content.kind === 'code'
      ? codeParts(content, parameters)
      : content.components.map((component) =>
          component.type === 'buttons'
            ? (['buttons', component.buttons.map((button) => describeButton(button, fill))] as const)
            : ([component.type, fill(component.text)] as const),
        );
  return JSON.stringify(Object.fromEntries(parts), null, 2);
}

function describeButton(button: TemplateButton, fill: (text: string) => string) {
  switch (button.type) {
    case 'quick_reply':
      return { text: button.text };
    case 'url':
      return { text: button.text, url: fill(button.url) };
    case 'phone_number':
      return { text: button.text, phone_number: button.phoneNumber };
  }
}

/** The provider writes these itself, in the language of the template. */
function codeParts(
  {
    addSecurityRecommendation,
    codeExpirationMinutes,
    buttonText,
  }: Extract<TemplateContent, { kind: 'code' }>,
  parameters: TemplateParameters,
): (readonly [string, unknown])[] {
  const advice = addSecurityRecommendation ? ' Keep it to yourself.' : '';
  const code = parameters[codeParameter] ?? '';
  return [
    ['body', `Your code is ${code}.${advice}`],
    ...(codeExpirationMinutes === null
      ? []
      : ([['footer', `Valid for ${codeExpirationMinutes} minutes`]] as const)),
    ['buttons', [{ text: buttonText, copies: code }]],
  ];
}
