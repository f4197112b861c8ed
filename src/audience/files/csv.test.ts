import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type CsvRecord, readCsv, splitCell } from './csv-reader.ts';
import { guardText, joinTexts, unguardText, writeRecord } from './csv-writer.ts';

/** The records of a file that arrives in parts of so many bytes. */
async function read(file: string | Buffer, partBytes = Number.POSITIVE_INFINITY): Promise<CsvRecord[]> {
  const whole = Buffer.from(file as string);
  async function* parts() {
    for (let at = 0; at < whole.length; at += partBytes) yield whole.subarray(at, at + partBytes);
  }
  const records: CsvRecord[] = [];
  for await (const some of readCsv(parts())) records.push(...some);
  return records;
}

const cellsOf = async (file: string | Buffer) => (await read(file)).map(({ cells }) => cells);

test('whatever is written is read again as it was, in parts of whatever size', async () => {
  const text = fc.string({ unit: 'binary', maxLength: 12 }).filter((value) => !value.includes('\0'));
  const tricky = fc.stringMatching(/^[\t \r\n"',;=+@ä-]{0,6}$/);
  const row = fc.array(fc.oneof(text, tricky), { minLength: 2, maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(
      fc.array(row, { minLength: 1, maxLength: 6 }),
      fc.integer({ min: 1, max: 40 }),
      async (rows, bytes) => {
        // The head decides on the delimiter; rows that say nothing are passed over.
        const written = [['a', 'b'], ...rows.filter((cells) => cells.some((cell) => cell !== ''))];
        const file = written.map((cells) => `${writeRecord(cells)}\n`).join('');
        const records = await read(file, bytes);
        expect(records.map(({ cells }) => cells.map(unguardText))).toEqual(written);
        expect(records.every(({ problem }) => problem === null)).toBe(true);
        expect(records.reduce((sum, record) => sum + record.bytes, 0)).toBe(Buffer.byteLength(file));
      },
    ),
  );
});

test('a text that a spreadsheet would run is guarded, and each has its way back', () => {
  for (const text of [
    '=1+1',
    '+49151',
    '-2+3',
    '@SUM(A1)',
    '\t=1',
    '\r=1',
    "'=1",
    "''+1",
    '＝1+1',
    '＋49',
    '－2',
    '＠SUM(A1)',
    "'＝1",
  ]) {
    expect(guardText(text)).toBe(`'${text}`);
  }
  for (const text of ["'tis", 'a=b', '1+1', '']) expect(guardText(text)).toBe(text);
  const text = fc.oneof(fc.string(), fc.stringMatching(/^'{0,3}[=+@a＝＋－＠-]{0,3}$/));
  fc.assert(fc.property(text, (value) => unguardText(guardText(value)) === value));
});

test('a number is written as one, and a text that looks like one is not', () => {
  expect(writeRecord([-5, '-5', true, null, ''])).toBe(`-5,'-5,true,,`);
});

test('several texts share a cell, whatever they contain', () => {
  const text = fc.oneof(fc.string({ minLength: 1 }), fc.stringMatching(/^[;" \n,a]{1,5}$/));
  fc.assert(
    fc.property(fc.array(text), (texts) => {
      expect(splitCell(joinTexts(texts))).toEqual(texts);
    }),
  );
  expect(splitCell(' VIP ;; "a;b" ;c')).toEqual(['VIP', 'a;b', 'c']);
  expect(splitCell('"a')).toBeNull();
  expect(splitCell('"a"b')).toBeNull();
});

test('the delimiter is the one that the head has most of outside of quotes', async () => {
  expect(await cellsOf('a;b\n1,2;3\n')).toEqual([
    ['a', 'b'],
    ['1,2', '3'],
  ]);
  expect(await cellsOf('a\tb,c\td\n1\t2\t\n')).toEqual([
    ['a', 'b,c', 'd'],
    ['1', '2', ''],
  ]);
  expect(await cellsOf('"a;b;c;d",e\n1,2\n')).toEqual([
    ['a;b;c;d', 'e'],
    ['1', '2'],
  ]);
  expect(await cellsOf('5" screen,b\n1,2\n')).toEqual([
    ['5" screen', 'b'],
    ['1', '2'],
  ]);
  expect(await cellsOf('email\na@b.test')).toEqual([['email'], ['a@b.test']]);
});

test('records know the line in which they begin, whatever ends the lines', async () => {
  for (const end of ['\n', '\r\n', '\r']) {
    const file = ['a,b', '', '1,"x', 'y"', ',', '2,z'].join(end);
    for (const bytes of [1, 3, 1_000]) {
      const records = await read(file, bytes);
      expect(records.map(({ line, cells }) => [line, ...cells])).toEqual([
        [1, 'a', 'b'],
        [3, '1', `x${end}y`],
        [6, '2', 'z'],
      ]);
    }
  }
});

test('blanks around a cell are dropped, those inside of quotes are not', async () => {
  expect(await cellsOf('a, b\t,c\n x ," y ", "z"  \n')).toEqual([
    ['a', 'b', 'c'],
    ['x', ' y ', 'z'],
  ]);
});

test('what is wrong with one record is said with it, and the next one is read', async () => {
  const file = Buffer.concat([
    Buffer.from('a,b\n1,"x"y\n2,'),
    Buffer.from([0xfc]),
    Buffer.from('\n3,a\0b\n4,ü\n'),
  ]);
  for (const bytes of [1, 7, 1_000]) {
    const records = await read(file, bytes);
    expect(records.slice(1).map(({ line, problem }) => [line, problem])).toEqual([
      [2, { cell: 1, reason: 'has text after its closing quote' }],
      [3, { cell: 1, reason: 'is not UTF-8' }],
      [4, { cell: 1, reason: 'must not contain NUL' }],
      [5, null],
    ]);
    expect(records.at(-1)?.cells).toEqual(['4', 'ü']);
  }
});

test('a mark of UTF-8 is dropped; UTF-16 and spreadsheets are refused with a sentence', async () => {
  expect(await cellsOf('\ufeffa,b\n')).toEqual([['a', 'b']]);
  const utf16 = Buffer.from('a,b\n', 'utf16le');
  await expect(read(utf16)).rejects.toThrow(/UTF-16.*UTF-8/);
  await expect(read(Buffer.concat([Buffer.from([0xff, 0xfe]), utf16]))).rejects.toThrow(/UTF-16/);
  await expect(read(utf16.swap16())).rejects.toThrow(/UTF-16/);
  await expect(read(Buffer.from('PK\x03\x04…'))).rejects.toThrow(/spreadsheet/);
});

test('a quote that is never closed ends the reading, at the end of the file or after a megabyte', async () => {
  await expect(read('a,b\n1,2\n3,"4\n5,6\n')).rejects.toThrow(
    'In row 3 a quote is opened that is never closed.',
  );
  const rest = '5,6\n'.repeat(300_000);
  await expect(read(`a,b\n1,2\n3,"4\n${rest}`)).rejects.toThrow(/^Row 3 is longer than 1048576 bytes/);
  await expect(read(`a,b\n1,${'x'.repeat(1_048_576)}\n`)).rejects.toThrow(/^Row 2 is longer/);
  expect(await read(`a,b\n1,${'x'.repeat(1_048_000)}\n`)).toHaveLength(2);
});

test('what was read before the reading ended is given out first', async () => {
  const records: CsvRecord[] = [];
  async function* parts() {
    yield Buffer.from(`a,b\n${'1,2\n'.repeat(5_000)}3,"4\n`);
  }
  const reading = (async () => {
    for await (const some of readCsv(parts())) records.push(...some);
  })();
  await expect(reading).rejects.toThrow('In row 5002');
  expect(records).toHaveLength(5_001);
});

test('an empty file has no records', async () => {
  expect(await read('')).toEqual([]);
  expect(await read('\n , \n\r\n')).toEqual([]);
});
