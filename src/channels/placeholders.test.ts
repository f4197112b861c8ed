import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { compileText, fillOnce, fillText, listMissing, listPlaceholders } from './placeholders.ts';

function fill(
  text: string,
  values: Record<string, string | number | boolean>,
  form: 'html' | 'text' = 'text',
) {
  return fillText(compileText(text, form), values, 1_000_000);
}

describe('text replacement', () => {
  it.each([
    ['Hello {{name}}', 'Hello Ada'],
    ['{{ name }}{{\tname\t}}', 'AdaAda'],
    ['{{Name}} is not {{name}}', '{{Name}} is not Ada'],
    ['{{ missing }} stays', '{{ missing }} stays'],
    ['{{a.b_C9}}', '9'],
    ['{{9a}} {{}} {{ }} {{a b}} {name}', '{{9a}} {{}} {{ }} {{a b}} {name}'],
    ['{{{name}}}', 'Ada'],
    ['{{{name}}', '{Ada'],
    ['{{name}}}', 'Ada}'],
    ['{{{{name}}}}', '{Ada}'],
    ['{{a{{name}}', '{{aAda'],
    ['{{name}{{name}}', '{{name}Ada'],
    ['{{\nname\n}}', '{{\nname\n}}'],
    ['{{yes}} {{zero}}', 'false 0'],
    ['{{', '{{'],
    ['', ''],
  ])('%j becomes %j', (text, expected) => {
    expect(fill(text, { name: 'Ada', 'a.b_C9': 9, yes: false, zero: 0 })).toBe(expected);
  });

  it('escapes values in HTML, except those of three braces', () => {
    expect(fill('{{v}} {{{v}}}', { v: `<a href="x">&'` }, 'html')).toBe(
      `&lt;a href=&quot;x&quot;&gt;&amp;&#39; <a href="x">&'`,
    );
    expect(fill('{{v}}', { v: '<b>' }, 'text')).toBe('<b>');
    expect(fill('{{{missing}}} {{ missing}}', {}, 'html')).toBe('{{{missing}}} {{ missing}}');
  });

  it('never looks at a replaced value again', () => {
    expect(fill('{{a}}{{b}}', { a: '{{b}}', b: '{{a}}' })).toBe('{{b}}{{a}}');
    expect(fill('{{a}}b}}', { a: '{{' })).toBe('{{b}}');
  });

  it.each(['constructor', '__proto__', 'toString', 'hasOwnProperty', 'constructor.name'])(
    '{{%s}} is literal unless it is a value',
    (name) => {
      expect(fill(`{{${name}}}`, {})).toBe(`{{${name}}}`);
      const values = JSON.parse(`{"${name}": "own"}`) as Record<string, string>;
      expect(fill(`{{${name}}}`, values)).toBe('own');
    },
  );

  it('stops at its limit before the values fill the memory', () => {
    const compiled = compileText('{{a}}'.repeat(200_000), 'text');
    expect(fillText(compiled, { a: 'x'.repeat(1_000_000) }, 10_000)).toBeNull();
    expect(fillText(compileText('{{a}}', 'text'), { a: '123' }, 3)).toBe('123');
    expect(fillText(compileText('{{a}}', 'text'), { a: '123' }, 2)).toBeNull();
    expect(fillText(compileText('123', 'text'), {}, 2)).toBeNull();
  });

  it.each(['{', '{{', '{{a', '{{ a ', '{{a}', '{{a}} ', '{{{a}}', '}', ' {{\t', '{{{{a}}}}'])(
    'gives back a megabyte of %j as it was',
    (unit) => {
      const text = unit.repeat(Math.ceil(1_000_000 / unit.length));
      expect(fillText(compileText(text, 'html'), {}, 2_000_000)).toBe(text);
    },
  );

  it('agrees with the plain pattern on every text', () => {
    const pattern =
      /\{\{\{[ \t]*([A-Za-z_][A-Za-z0-9_.]*)[ \t]*\}\}\}|\{\{[ \t]*([A-Za-z_][A-Za-z0-9_.]*)[ \t]*\}\}/g;
    const texts = fc.array(fc.constantFrom('{', '{{', '}', '}}', 'a', 'b.c', ' ', '\t', '7', '<'), {
      maxLength: 30,
    });
    fc.assert(
      fc.property(texts, (parts) => {
        const text = parts.join('');
        const values: Record<string, string> = { a: '<{{b.c}}>', 'b.c': '&' };
        const expected = text.replace(pattern, (written: string, raw?: string, escaped?: string) => {
          const value = values[raw ?? escaped ?? ''];
          if (value === undefined) return written;
          return raw === undefined
            ? value.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
            : value;
        });
        expect(fill(text, values, 'html')).toBe(expected);
      }),
      { numRuns: 2_000 },
    );
  });

  it('lists each name once, in the order of the text', () => {
    expect(listPlaceholders(['{{b}} {{a}} {{{b}}} {{ c', '{{a}}{{d}}'], 9)).toEqual(['b', 'a', 'd']);
    expect(listPlaceholders(['{{b}} {{a}}', '{{c}}'], 2)).toEqual(['b', 'a']);
  });
});

describe('a text that is filled once', () => {
  const piece = fc.constantFrom(
    '{',
    '{{',
    '{{{',
    '}',
    '}}',
    '}}}',
    'a',
    'b',
    ' ',
    '<',
    '{{a}}',
    '{{{a}}}',
    '{{b}}',
  );
  it('is what it is when it is cut first, whatever it holds', () => {
    fc.assert(
      fc.property(
        fc.array(piece, { maxLength: 60 }),
        fc.constantFrom('html', 'text', 'url'),
        fc.integer({ min: 0, max: 200 }),
        (pieces, form, lengthMax) => {
          const text = pieces.join('');
          const values = { a: '<{{b}}>' };
          const compiled = compileText(text, form);
          const filled = fillOnce(text, values, form, lengthMax);
          expect(filled.text).toBe(fillText(compiled, values, lengthMax));
          if (filled.text !== null) expect(filled.missing).toEqual(listMissing(compiled, values));
        },
      ),
    );
  });

  it('may have more placeholders than fit into memory one by one', () => {
    const count = 3_000_000;
    expect(fillOnce('{{a}}'.repeat(count), { a: 'é' }, 'html', count).text).toBe('é'.repeat(count));
    expect(fillOnce('{{a}}'.repeat(count), { a: 'éé' }, 'html', count).text).toBeNull();
  });
});
