import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type CodeTemplate,
  fillTemplate,
  findTemplateIssues,
  findValueProblem,
  listTemplateParameters,
  listTemplateWarnings,
  type TemplateButton,
  type TemplateComponent,
  type WrittenTemplate,
} from './template.ts';

const body: TemplateComponent = { type: 'body', text: 'Hello {{first_name}}, it is on its way.' };

const written = (
  components: readonly TemplateComponent[],
  examples: Record<string, string> = { first_name: 'Ana' },
): WrittenTemplate => ({ kind: 'written', components, examples });

const withText = (text: string) => written([{ type: 'body', text }], examplesOf(text));
const withHeader = (text: string) =>
  written([{ type: 'header', text }, body], examplesOf(text, 'first_name'));
const withButtons = (...buttons: TemplateButton[]) =>
  written([body, { type: 'buttons', buttons }], examplesOf(JSON.stringify(buttons), 'first_name'));

function examplesOf(text: string, ...more: string[]): Record<string, string> {
  const names = Array.from(text.matchAll(/\{\{([a-z][a-z0-9_]*)\}\}/g), ([, name]) => name!);
  return Object.fromEntries([...more, ...names].map((name) => [name, 'x']));
}

const reply = (text = 'Stop'): TemplateButton => ({ type: 'quick_reply', text });
const link = (url = 'https://shop.example/t'): TemplateButton => ({ type: 'url', text: 'Track', url });
const call = (phoneNumber = '+15550051310'): TemplateButton => ({
  type: 'phone_number',
  text: 'Call',
  phoneNumber,
});

const code = (change: Partial<CodeTemplate> = {}): CodeTemplate => ({
  kind: 'code',
  addSecurityRecommendation: true,
  codeExpirationMinutes: 10,
  buttonText: 'Copy code',
  ...change,
});

describe('a template that the provider would take', () => {
  test.each<[string, WrittenTemplate | CodeTemplate]>([
    ['with a body alone', written([{ type: 'body', text: 'It is on its way.' }], {})],
    [
      'with all components',
      written([
        { type: 'header', text: 'Order' },
        body,
        { type: 'footer', text: 'Bye' },
        { type: 'buttons', buttons: [reply()] },
      ]),
    ],
    ['with its components in another order', written([{ type: 'footer', text: 'Bye' }, body])],
    ['with 1,024 characters that are two code units each', withText('😀'.repeat(1_024))],
    ['with line breaks in the body', withText('One\n\nTwo {{a}} three')],
    ['with lone braces', withText('A {smile} and } and { are text.')],
    ['with a placeholder in its header', withHeader('Order {{number}}')],
    ['with the same placeholder in header and body', withHeader('Hello {{first_name}}')],
    ['with ten replies', withButtons(...Array.from({ length: 10 }, () => reply()))],
    ['with replies before the others', withButtons(reply(), reply(), link(), call(), link())],
    ['with replies after the others', withButtons(link(), call(), reply())],
    ['with a link that ends in a placeholder', withButtons(link('https://shop.example/t?id={{track_id}}'))],
    ['with a link to a host alone', withButtons(link('https://shop.example'))],
    ['with a code', code()],
    ['with a code and no end', code({ codeExpirationMinutes: null })],
  ])('%s has no issues', (_what, content) => {
    expect(findTemplateIssues(content)).toEqual([]);
  });
});

describe('what the provider refuses', () => {
  test.each<[string, WrittenTemplate | CodeTemplate, string]>([
    [
      'a template without a body',
      written([{ type: 'footer', text: 'Bye' }], {}),
      'components must have a body',
    ],
    ['no components', written([], {}), 'components must have a body'],
    ['two bodies', written([body, body]), 'components[1].type body is there twice'],
    ['an empty body', withText(''), 'components[0].text must not be blank'],
    ['a blank body', withText(' \n'), 'components[0].text must not be blank'],
    ['a long body', withText('x'.repeat(1_025)), 'components[0].text must be at most 1024 characters'],
    [
      'a body that begins with a placeholder',
      withText(' {{a}} is here.'),
      'components[0].text must neither begin nor end',
    ],
    [
      'a body that ends with a placeholder',
      withText('Here is {{a}}\n'),
      'components[0].text must neither begin nor end',
    ],
    [
      'a placeholder twice in a text',
      withText('It is {{a}} or {{a}} now.'),
      'components[0].text must have the placeholder {{a}} once',
    ],
    ['a long header', withHeader('x'.repeat(61)), 'components[0].text must be at most 60 characters'],
    [
      'an escape in a body',
      withText('Hello \u001b[2J'),
      'components[0].text must not contain control characters',
    ],
    ['a DEL in a header', withHeader('One\u007f'), 'components[0].text must not contain control characters'],
    ['a C1 in a body', withText('Hello \u009b'), 'components[0].text must not contain control characters'],
    [
      'an escape on a button',
      withButtons(reply('Stop\u001b')),
      'components[1].buttons[0].text must not contain control characters',
    ],
    [
      'an escape in an example',
      written([body], { first_name: 'A\u001b' }),
      'examples.first_name must not contain control characters',
    ],
    ['a header of two lines', withHeader('One\nTwo'), 'components[0].text must be a single line'],
    [
      'two placeholders in a header',
      withHeader('{{a}} and {{b}}'),
      'components[0].text must have at most 1 placeholder',
    ],
    [
      'a long footer',
      written([body, { type: 'footer', text: 'x'.repeat(61) }]),
      'components[1].text must be at most 60 characters',
    ],
    [
      'a placeholder in a footer',
      written([body, { type: 'footer', text: 'Bye {{first_name}}' }]),
      'components[1].text must have no placeholder',
    ],
    ['no buttons', withButtons(), 'components[1].buttons must have at least 1 item'],
    [
      'eleven buttons',
      withButtons(...Array.from({ length: 11 }, () => reply())),
      'components[1].buttons must have at most 10 items',
    ],
    [
      'three links',
      withButtons(link(), link(), link()),
      'components[1].buttons must have at most 2 of the type url',
    ],
    [
      'two numbers to call',
      withButtons(call(), call()),
      'components[1].buttons must have at most 1 of the type phone_number',
    ],
    [
      'replies on both sides',
      withButtons(reply(), link(), reply()),
      'components[1].buttons must have those of the type quick_reply together',
    ],
    [
      'replies in the middle',
      withButtons(link(), reply(), call()),
      'components[1].buttons must have those of the type quick_reply together',
    ],
    [
      'a long text on a button',
      withButtons(reply('x'.repeat(26))),
      'components[1].buttons[0].text must be at most 25 characters',
    ],
    ['a blank text on a button', withButtons(reply(' ')), 'components[1].buttons[0].text must not be blank'],
    [
      'a placeholder on a button',
      withButtons(reply('Stop {{a}}')),
      'components[1].buttons[0].text must have no placeholder',
    ],
    [
      'a number without plus',
      withButtons(reply(), call('15550051310')),
      'components[1].buttons[1].phone_number must be an E.164 number',
    ],
    [
      'a placeholder in the middle of a link',
      withButtons(link('https://shop.example/{{a}}/x')),
      'components[1].buttons[0].url must have its placeholder at the end',
    ],
    [
      'two placeholders in a link',
      withButtons(link('https://shop.example/{{a}}{{b}}')),
      'components[1].buttons[0].url must have at most 1 placeholder',
    ],
    [
      'a link whose host is a placeholder',
      withButtons(link('https://{{a}}')),
      'components[1].buttons[0].url must be an https URL',
    ],
    [
      'a link whose host goes on in a placeholder',
      withButtons(link('https://shop.example{{a}}')),
      'components[1].buttons[0].url must have its host before the placeholder',
    ],
    [
      'a link that is not https',
      withButtons(link('http://shop.example/t')),
      'components[1].buttons[0].url must be an https URL',
    ],
    [
      'a script for a link',
      withButtons(link('javascript:alert(1)')),
      'components[1].buttons[0].url must be an https URL',
    ],
    [
      'a link with a user',
      withButtons(link('https://bank.example@evil.example/t')),
      'components[1].buttons[0].url must be an https URL',
    ],
    [
      'a link with a blank',
      withButtons(link('https://shop.example/a b')),
      'components[1].buttons[0].url must be an https URL',
    ],
    [
      'a long link',
      withButtons(link(`https://shop.example/${'x'.repeat(2_000)}`)),
      'components[1].buttons[0].url must be at most 2000 characters',
    ],
    ['a missing example', written([body], {}), 'examples.first_name is required'],
    [
      'an example of nothing',
      written([body], { first_name: 'Ana', other: 'x' }),
      'examples.other is not the name of a placeholder',
    ],
    ['a blank example', written([body], { first_name: ' ' }), 'examples.first_name must not be blank'],
    [
      'an example of two lines',
      written([body], { first_name: 'A\nB' }),
      'examples.first_name must have no line break',
    ],
    [
      'a long text on the button of a code',
      code({ buttonText: 'x'.repeat(26) }),
      'authentication.button.text must be at most 25 characters',
    ],
    [
      'a code that is good for no time',
      code({ codeExpirationMinutes: 0 }),
      'authentication.code_expiration_minutes must be from 1 to 90',
    ],
    [
      'a code that is good for long',
      code({ codeExpirationMinutes: 91 }),
      'authentication.code_expiration_minutes must be from 1 to 90',
    ],
  ])('is found of %s, by its field', (_what, content, issue) => {
    const issues = findTemplateIssues(content);
    expect(issues).toHaveLength(1);
    expect(issues[0]).toContain(issue);
  });

  test.each([
    '{{1}}',
    '{{First}}',
    '{{ first }}',
    '{{first-name}}',
    '{{first.name}}',
    '{{{first}}}',
    '{{first}',
    '{{}}',
    '{{_a}}',
    'a}} b',
    '{{{{a}}}}',
    '{{a}}}',
    '{{constructor()}}',
    '{{a',
  ])('is found of the placeholder %s', (placeholder) => {
    const issues = findTemplateIssues(
      written([{ type: 'body', text: `One ${placeholder} two` }], { a: 'x' }),
    );
    expect(issues).toEqual([
      expect.stringContaining('components[0].text must have placeholders of the form {{name}} alone'),
    ]);
  });

  test('is found in time that does not explode, whatever the braces', () => {
    for (const text of ['{'.repeat(1_000_000), '{{a'.repeat(300_000), `${'{{a}}'.repeat(200_000)}`])
      expect(findTemplateIssues(withText(text))).toEqual([
        'components[0].text must be at most 1024 characters',
      ]);
  });
});

test('names that are not known to pass are warned of, and no others', () => {
  expect(listTemplateWarnings(withText('A {{order_number}} b'))).toEqual([]);
  expect(listTemplateWarnings(withText(`A {{line_2}} b {{${'x'.repeat(21)}}} c`))).toEqual([
    expect.stringContaining('{{line_2}}'),
    expect.stringContaining('x'.repeat(21)),
  ]);
  expect(listTemplateWarnings(code())).toEqual([]);
});

test.each([
  ['Ana', null],
  ['four    blanks', null],
  ['five     blanks', 'must have no line break, no tab and no more than four blanks in a row'],
  ['tab\t', 'must have no line break, no tab and no more than four blanks in a row'],
  ['\r', 'must not be blank'],
  ['', 'must not be blank'],
  ['😀'.repeat(1_024), null],
  ['x'.repeat(1_025), 'must be at most 1024 characters'],
])('the value %j is judged as the provider would', (value, problem) => {
  expect(findValueProblem(value)).toBe(problem);
});

describe('a message as a person sees it', () => {
  const content = written([
    { type: 'header', text: 'Order {{number}}' },
    body,
    { type: 'footer', text: 'Reply STOP to stop.' },
    { type: 'buttons', buttons: [reply(), link('https://shop.example/t/{{number}}'), call()] },
  ]);

  test('has its values wherever they belong, and nothing of a value is filled again', () => {
    expect(fillTemplate(content, { number: '1047', first_name: '{{number}}' })).toEqual({
      header: 'Order 1047',
      body: 'Hello {{number}}, it is on its way.',
      footer: 'Reply STOP to stop.',
      buttons: [reply(), link('https://shop.example/t/1047'), call()],
    });
  });

  test('leaves a placeholder as it is written where there is no value of its own', () => {
    const constructed = withText('A {{constructor}} b');
    expect(fillTemplate(constructed, {})?.body).toBe('A {{constructor}} b');
  });

  test('is none where it is too long', () => {
    expect(fillTemplate(content, { number: '1', first_name: 'x'.repeat(5_000) })).toBeNull();
    expect(fillTemplate(content, { number: 'x'.repeat(5_000), first_name: 'Ana' })).toBeNull();
  });

  test('has its code in the text and on the button', () => {
    expect(fillTemplate(code(), { code: '123456' })).toMatchObject({
      body: expect.stringContaining('123456') as string,
      footer: expect.stringContaining('10 minutes') as string,
      buttons: [{ type: 'copy_code', text: 'Copy code', code: '123456' }],
    });
    expect(
      fillTemplate(code({ codeExpirationMinutes: null, addSecurityRecommendation: false }), { code: '1' }),
    ).toEqual({
      header: null,
      body: 'Your code is 1.',
      footer: null,
      buttons: [{ type: 'copy_code', text: 'Copy code', code: '1' }],
    });
  });

  test('of any template without issues has no placeholder left, once each parameter has a value', () => {
    const name = fc.stringMatching(/^[a-z][a-z0-9_]{0,8}$/);
    const piece = fc.oneof(
      fc.string({ maxLength: 8 }),
      name.map((given) => `{{${given}}}`),
      fc.constantFrom('{', '}', '{{', '}}'),
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 8 }), (pieces) => {
        const template = withText(`A ${pieces.join(' ')} z`);
        fc.pre(findTemplateIssues(template).length === 0);
        const names = listTemplateParameters(template);
        const bubble = fillTemplate(template, Object.fromEntries(names.map((given) => [given, 'v'])));
        expect(bubble?.body).not.toMatch(/\{\{|\}\}/);
        expect(names).toEqual(Object.keys(template.examples));
      }),
    );
  });
});
