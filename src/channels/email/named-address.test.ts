import { addressParser } from 'postal-mime';
import { expect, test } from 'vitest';
import { parseAddress } from './address.ts';
import { parseNamedAddress, writeNamedAddress } from './named-address.ts';

test.each([
  ['ada@example.com', null, 'ada@example.com'],
  ['<ada@example.com>', null, 'ada@example.com'],
  ['Ada <ada@example.com>', 'Ada', 'ada@example.com'],
  ['Ada Lovelace <ada@example.com>', 'Ada Lovelace', 'ada@example.com'],
  ['Ada<ada@example.com>', 'Ada', 'ada@example.com'],
  ['  The   Shop   <shop@example.com>', 'The Shop', 'shop@example.com'],
  ['J. R. R. Tolkien <jrr@example.com>', 'J. R. R. Tolkien', 'jrr@example.com'],
  ['"Doe, Jane" <jane@example.com>', 'Doe, Jane', 'jane@example.com'],
  ['"a \\"b\\" \\\\ c" <a@example.com>', 'a "b" \\ c', 'a@example.com'],
  ['"a <b@example.org>" <c@example.com>', 'a <b@example.org>', 'c@example.com'],
  ['"Team" of "Ada (London)" <a@example.com>', 'Team of Ada (London)', 'a@example.com'],
  ['"" <a@example.com>', null, 'a@example.com'],
  ['"  " <a@example.com>', null, 'a@example.com'],
  ['Zoë Ада 山田 <zoe@example.com>', 'Zoë Ада 山田', 'zoe@example.com'],
  ['Ada’s 🚀 <ada@münchen.example>', 'Ada’s 🚀', 'ada@münchen.example'],
  ['Jörg <jörg@example.com>', 'Jörg', 'jörg@example.com'],
  [`${'😀'.repeat(256)} <a@example.com>`, '😀'.repeat(256), 'a@example.com'],
  [`"${'\\"'.repeat(256)}" <a@example.com>`, '"'.repeat(256), 'a@example.com'],
] as const)('%s is understood', (text, name, address) => {
  const parsed = parseNamedAddress(text);
  expect(parsed).toEqual({ name, email: parseAddress(address) });
  // What is written of it is read as the same, also by somebody else.
  const written = writeNamedAddress(parsed!);
  expect(parseNamedAddress(written)).toEqual(parsed);
  expect(addressParser(written)).toEqual([{ name: name ?? '', address }]);
});

test.each([
  ['an empty text', ''],
  ['a name alone', 'Ada'],
  ['brackets without an address', 'Ada <>'],
  ['what is no address in brackets', 'Ada <ada>'],
  ['a quoted local part', 'Ada <"ada x"@example.com>'],
  ['a route', 'Ada <@relay.example:ada@example.com>'],
  ['an address literal', 'Ada <ada@[127.0.0.1]>'],
  ['a list', 'Ada <ada@example.com>, Bob <bob@example.com>'],
  ['a bare list', 'ada@example.com, <bob@example.com>'],
  ['a group', 'Friends: Ada <ada@example.com>;'],
  ['a comment in the name', 'Ada (home) <ada@example.com>'],
  ['a comment after the address', 'Ada <ada@example.com> (home)'],
  ['something after the address', 'Ada <ada@example.com> x'],
  ['a blank after the address', 'Ada <ada@example.com> '],
  ['blanks in the brackets', 'Ada < ada@example.com>'],
  ['two addresses', 'Ada <ada@example.com> <bob@example.com>'],
  ['an address as an unquoted name', 'ada@example.com <eve@example.net>'],
  ['an unquoted comma', 'Doe, Jane <jane@example.com>'],
  ['a quote that is not closed', '"Ada <ada@example.com>'],
  ['a quote that is closed late', 'Ada" <ada@example.com>'],
  ['a quote whose end is escaped', '"Ada\\" <ada@example.com>'],
  ['a word that sticks to a quote', '"Ada"Lovelace <ada@example.com>'],
  ['a backslash outside of quotes', 'Ada\\ <ada@example.com>'],
  ['an encoded word', '=?utf-8?Q?Ada?= <ada@example.com>'],
  ['an encoded word in quotes', '"=?utf-8?Q?Ada?=" <ada@example.com>'],
  ['a line that begins a header', 'Ada\r\nBcc: eve@example.net <ada@example.com>'],
  ['a line feed in quotes', '"Ada\nLovelace" <ada@example.com>'],
  ['an escaped line feed', '"Ada\\\nLovelace" <ada@example.com>'],
  ['a line separator', 'Ada\u2028Lovelace <ada@example.com>'],
  ['a tab', 'Ada\tLovelace <ada@example.com>'],
  ['NUL', 'Ada\0 <ada@example.com>'],
  ['a name that is too long', `${'x'.repeat(257)} <ada@example.com>`],
  ['megabytes', `${'"a" '.repeat(500_000)}<ada@example.com>`],
])('%s is not', (_what, text) => {
  expect(parseNamedAddress(text)).toBeNull();
});
