import { expect, test } from 'vitest';
import type { TemplateContent } from '../channels/chatapp/template.ts';
import { compileParameters, fillParameters, findParameterIssues, takeCode } from './parameters.ts';

const asks = (text: string): TemplateContent => ({
  kind: 'written',
  components: [
    { type: 'body', text },
    { type: 'buttons', buttons: [{ type: 'url', text: 'Track', url: 'https://acme.test/t/{{track}}' }] },
  ],
  examples: {},
});
const code: TemplateContent = {
  kind: 'code',
  addSecurityRecommendation: false,
  codeExpirationMinutes: null,
  buttonText: 'Copy',
};

test('a name that every object has is missing where it is not given', () => {
  expect(findParameterIssues(asks('Hello {{constructor}}'), { track: '7' })).toEqual([
    'parameters lacks constructor',
  ]);
});

test('a hundred wrong names are not all repeated, nor is a long one', () => {
  const parameters = Object.fromEntries(Array.from({ length: 100 }, (_, index) => [`wrong_${index}`, 'x']));
  const [, issue] = findParameterIssues(asks('Hello'), { ...parameters, track: '7' });
  expect(issue).toBeUndefined();
  const [only] = findParameterIssues(asks('Hello'), { track: '7', ...parameters, ['y'.repeat(999)]: 'x' });
  expect(only).toMatch(/wrong_19 and 81 more, which the template does not have$/);
  const [long] = findParameterIssues(asks('Hello'), { track: '7', ['y'.repeat(999)]: 'x' });
  expect(long!.length).toBeLessThan(150);
});

test('the address of a button may not become too long either', () => {
  const issues = findParameterIssues(asks('Hello'), { track: 'x'.repeat(2_000) });
  expect(issues).toEqual(['parameters make the address of a button longer than 2000 characters']);
});

test('of a code nothing but the code is taken out, and nothing of any other template', () => {
  expect(takeCode(code, { code: '123' })).toEqual({ shown: {}, code: '123' });
  expect(takeCode(asks('{{code}}'), { code: '123' })).toEqual({ shown: { code: '123' }, code: null });
});

test('a contact gets its own values, with white space folded', () => {
  const compiled = compileParameters({ name: '{{first_name}}!', plan: 'Gold' });
  expect(fillParameters(compiled, { first_name: ' Ann \n\t Lee ' })).toEqual({
    name: 'Ann Lee !',
    plan: 'Gold',
  });
});

test('control characters are refused in a request, and folded in the field of a contact', () => {
  for (const value of ['7\u001b', '\u007f7', '7\u009b8']) {
    expect(findParameterIssues(asks('Hello'), { track: value })).toEqual([
      'parameters.track must not contain control characters',
    ]);
    const compiled = compileParameters({ track: '{{first_name}}' });
    expect(findParameterIssues(asks('Hello'), fillParameters(compiled, { first_name: value }))).toEqual([]);
  }
});

test('a value is not looked through for placeholders, and one that is missing leaves nothing to send', () => {
  const compiled = compileParameters({ name: 'Dear {{first_name}}' });
  expect(fillParameters(compiled, { first_name: '{{last_name}}' })).toEqual({ name: 'Dear {{last_name}}' });
  expect(fillParameters(compiled, { last_name: 'Lee' })).toEqual({ name: '' });
  expect(fillParameters(compiled, { first_name: 'x'.repeat(1_000_000) })).toEqual({ name: '' });
});
