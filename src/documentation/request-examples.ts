import type { ApiReference, PlacedOperation } from './api-reference.ts';

/**
 * The same request in each language that the documentation speaks, to be pasted and run: `URL` and `KEY` (of devices,
 * `DEVICE_SECRET`) are variables of the environment. Python has the client of its standard library, which is wherever
 * Python is; the one that more people use would have to be installed first, and does nothing here that this one cannot.
 */

export const languages = [
  { name: 'curl', title: 'curl', write: writeCurl },
  { name: 'typescript', title: 'TypeScript', write: writeTypeScript },
  { name: 'python', title: 'Python', write: writePython },
] as const;

export type ExampleRequest = {
  method: string;
  /** With its query, and encoded. */
  path: string;
  /** The variable that holds what opens the operation. */
  keyVariable: 'KEY' | 'DEVICE_SECRET';
  idempotencyKey: string | null;
  /** Undefined where none is sent. */
  body?: unknown;
};

const unknownId = '0199c0de-0000-7000-8000-000000000000';

/** The first of the recorded requests that succeeded; without one, what the path and the method say. */
export function exampleOf(operation: PlacedOperation, { resolve }: ApiReference): ExampleRequest {
  const { method, path, security, parameters = [], requestBody, examples } = operation;
  const recorded = examples.find(({ status }) => status < 400);
  const isRepeatable = parameters.some((parameter) => resolve(parameter).name === 'Idempotency-Key');
  return {
    method,
    path: recorded?.path ?? path.replaceAll(/\{\w+\}/g, unknownId),
    keyVariable: security.some((one) => 'deviceSecret' in one) ? 'DEVICE_SECRET' : 'KEY',
    idempotencyKey: isRepeatable ? 'any-unique-text' : null,
    ...(requestBody !== undefined && { body: recorded?.body ?? {} }),
  };
}

function writeCurl({ method, path, keyVariable, idempotencyKey, body }: ExampleRequest): string {
  const lines = [
    method === 'GET' ? `curl "$URL${path}"` : `curl -X ${method} "$URL${path}"`,
    `  -H "Authorization: Bearer $${keyVariable}"`,
  ];
  if (idempotencyKey !== null) lines.push(`  -H "Idempotency-Key: ${idempotencyKey}"`);
  if (body !== undefined) {
    lines.push(`  -H "Content-Type: application/json"`);
    // A quote inside of single quotes would end them in a shell.
    lines.push(`  -d '${JSON.stringify(body, null, 2).replaceAll("'", '\\u0027')}'`);
  }
  return lines.join(' \\\n');
}

function writeTypeScript({ method, path, keyVariable, idempotencyKey, body }: ExampleRequest): string {
  const headers = [`    Authorization: \`Bearer \${process.env.${keyVariable}}\`,`];
  if (idempotencyKey !== null) headers.push(`    "Idempotency-Key": ${JSON.stringify(idempotencyKey)},`);
  if (body !== undefined) headers.push('    "Content-Type": "application/json",');
  return [
    `const response = await fetch(\`\${process.env.URL}${path}\`, {`,
    ...(method === 'GET' ? [] : [`  method: ${JSON.stringify(method)},`]),
    '  headers: {',
    ...headers,
    '  },',
    ...(body === undefined ? [] : [`  body: JSON.stringify(${writeLiteral(body, inTypeScript, '  ')}),`]),
    '});',
    'if (!response.ok) throw new Error(await response.text());',
    'console.log(await response.json());',
  ].join('\n');
}

function writePython({ method, path, keyVariable, idempotencyKey, body }: ExampleRequest): string {
  const headers = [`        "Authorization": "Bearer " + os.environ["${keyVariable}"],`];
  if (idempotencyKey !== null) headers.push(`        "Idempotency-Key": ${JSON.stringify(idempotencyKey)},`);
  if (body !== undefined) headers.push('        "Content-Type": "application/json",');
  return [
    'import json',
    'import os',
    'from urllib.request import Request, urlopen',
    '',
    'request = Request(',
    `    os.environ["URL"] + ${JSON.stringify(path)},`,
    ...(method === 'GET' ? [] : [`    method=${JSON.stringify(method)},`]),
    '    headers={',
    ...headers,
    '    },',
    ...(body === undefined ? [] : [`    data=json.dumps(${writeLiteral(body, inPython, '    ')}).encode(),`]),
    ')',
    'with urlopen(request) as response:',
    '    print(json.load(response))',
  ].join('\n');
}

type Notation = {
  indent: string;
  writeKey: (name: string) => string;
  /** Of null, true and false. */
  constants: Readonly<Record<string, string>>;
};

const inTypeScript: Notation = {
  indent: '  ',
  writeKey: (name) => (/^[a-z_$][\w$]*$/i.test(name) ? name : JSON.stringify(name)),
  constants: {},
};

const inPython: Notation = {
  indent: '    ',
  writeKey: (name) => JSON.stringify(name),
  constants: { null: 'None', true: 'True', false: 'False' },
};

/** A list of short values stands on one line up to this many characters. */
const lineCharsMax = 60;

/** Texts and numbers of JSON are those of both languages. The value comes from JSON, so that it ends. */
function writeLiteral(value: unknown, notation: Notation, margin: string): string {
  const inner = margin + notation.indent;
  if (Array.isArray(value)) {
    const items = value.map((item) => writeLiteral(item, notation, inner));
    const line = `[${items.join(', ')}]`;
    return line.includes('\n') || line.length > lineCharsMax
      ? writeLines('[', items, ']', margin, inner)
      : line;
  }
  if (typeof value === 'object' && value !== null) {
    const members = Object.entries(value).map(
      ([name, member]) => `${notation.writeKey(name)}: ${writeLiteral(member, notation, inner)}`,
    );
    return members.length === 0 ? '{}' : writeLines('{', members, '}', margin, inner);
  }
  const text = JSON.stringify(value);
  return notation.constants[text] ?? text;
}

function writeLines(
  opening: string,
  lines: readonly string[],
  closing: string,
  margin: string,
  inner: string,
): string {
  return `${opening}\n${lines.map((line) => `${inner}${line},`).join('\n')}\n${margin}${closing}`;
}
