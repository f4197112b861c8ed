import { describe, expect, test } from 'vitest';
import { describeForeignSyntax, findForeignSyntax, nameForeignSyntax } from './foreign-syntax.ts';

const namesIn = (...texts: (string | null)[]) => nameForeignSyntax(findForeignSyntax(texts));

describe.each([
  [
    'foreign_block',
    [
      '{{#if x}}',
      '{{/if}}',
      '{{~#each items}}',
      '{{^x}}',
      '{{> footer}}',
      '{{!-- a comment --}}',
      '{{{#x}}}',
      '{{{{#raw}}}}',
      '{{ # x }}',
    ],
  ],
  [
    'foreign_expression',
    [
      '{{name|there}}',
      '{{ name | default: "there" }}',
      '{{ user["name"] }}',
      '{{user[0].name}}',
      '{{first name}}',
      '{{first-name}}',
      '{{prénom}}',
      '{{.Name}}',
      '{{- .Name }}',
      '{{ $json.name }}',
      '{{${first_name}}}',
      '{{formatDate date "DD"}}',
      '{{&name}}',
      '{{\nname\n}}',
      '{{{name|there}}}',
      '{{a || b}}',
    ],
  ],
  ['foreign_tag', ['{% if x %}', '{%- endif -%}', '{%for a in b%}', '{%\nassign a = "b" %}']],
  ['foreign_merge_tag', ['*|FNAME|*', '*|IF:NAME|*', '*|MC:SUBJECT|*', '*|DATE:d/m/Y|*', '*|END:IF|*']],
  ['foreign_percent_tag', ['%%name%%', '%%First_Name%%', '(%%name%%)']],
])('%s', (name, texts) => {
  test.each(texts)('is %s', (text) => {
    expect(namesIn(text)).toEqual([name]);
    expect(namesIn(`<p>Hello ${text}, {{name}} {{{b.c}}}</p>`)).toEqual([name]);
  });
});

test.each([
  '{{name}} {{ name }} {{{name}}} {{\tb.c_9 }} {{{{name}}}}',
  '{name} {{}} {{ }} {{{}}} {{9}} {{name} {{name',
  '{{"json": 1}} {{ "a": {"b": 2}} }} [{{a: 1}}] {"a":{"b":{}}}',
  "<p style={{color: 'red'}} {...{...props}} {{...props}}>",
  '{{ width, height }} {{a+b}} {{a=b}} {{-1}} {{.5}} {{$5}} x^{{2}}',
  '<style>@media print{a{color:red}}@media (min-width:50%){b{width:100%}}p{margin:0 5%}</style>',
  'width:calc(100%-{a}) {%} {% %} {%5%} {5%} %}',
  'Save 100%% or 50%%, 100%%off%% and %% x %% y %%%% %name% 5%%a%%',
  '| a *|* b | *|b|* **|x|** *||* *|a b|* *|FNAME *|',
  'https://a.example/?a=%%41%%42&b=%7B%7Bname%7Cthere%7D%7D',
])('%s has nothing foreign', (text) => {
  expect(namesIn(text)).toEqual([]);
});

test('all of them are named over all texts, each once and in one order', () => {
  const texts = ['*|A|* {% a %}{% b %}', null, '{{#a}}{{name}}{{/a}}', '', '%%a%% %%b%% {{a|b}}'];
  const all = [
    'foreign_block',
    'foreign_expression',
    'foreign_tag',
    'foreign_merge_tag',
    'foreign_percent_tag',
  ];
  expect(namesIn(...texts)).toEqual(all);
  expect(nameForeignSyntax(...texts.map((text) => findForeignSyntax([text])))).toEqual(all);
});

test('a tag is found beside one that has no end', () => {
  expect(namesIn('{{#a {{#b}} {% x {% y %}')).toEqual(['foreign_block', 'foreign_tag']);
  expect(namesIn(`{{#${'a'.repeat(300)}}} {{#b}}`)).toEqual(['foreign_block']);
  expect(namesIn('50%% and %%name%%')).toEqual(['foreign_percent_tag']);
});

test('what comes after thousands of placeholders is found, and not after more than anybody writes', () => {
  expect(namesIn('{{a}}'.repeat(9_999) + '{{#b}}')).toEqual(['foreign_block']);
  expect(namesIn('{{a}}'.repeat(10_000) + '{{#b}}')).toEqual([]);
});

test('an author reads of the first of each kind', () => {
  expect(describeForeignSyntax(['{{#if a}}{{/if}} *|NAME|*'])).toEqual([
    '{{#if a}} is of another template language, and stays as written.',
    '*|NAME|* is of another template language, and stays as written.',
  ]);
  const [long = ''] = describeForeignSyntax([`{% ${'a'.repeat(400)} %}`]);
  expect(long.length).toBeLessThan(200);
});

test.each([
  '{{',
  '{{#',
  '}}',
  '{{ a',
  '{{a|',
  '{%',
  '{% a',
  '*|',
  '*|A',
  '|*',
  '%%',
  '%%a',
  '%%a%',
  '{{{%',
  '{{#a}}',
])('ten megabytes of %j are read in one go', (unit) => {
  // What grows with the square of the length would outlast the test.
  const text = unit.repeat(10_000_000 / unit.length);
  expect(namesIn(text).length).toBeLessThanOrEqual(2);
  expect(namesIn(`${text}}} %} |*`).length).toBeLessThanOrEqual(2);
});
