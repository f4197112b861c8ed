import { expect, test } from 'vitest';
import { type Program, usePrograms } from './programs.ts';

/** The runtime never comes to the program. */
const standStill = ['--import', 'data:text/javascript,await new Promise(() => setInterval(() => {}, 1_000))'];

const { start } = usePrograms();
let left: Program;

test('what a program says is had as soon as it is said, and null once it has ended without', async () => {
  const { untilSaid, ended } = start({}, ['--version']);
  const never = untilSaid('errors', /\d/);
  expect(await untilSaid('output', /(\d+)\.\d+\.\d+/)).toHaveLength(2);
  expect(await never).toBeNull();
  expect(await ended).toEqual({
    exitCode: 0,
    output: expect.stringMatching(/^[\d.]+\n$/) as string,
    errors: '',
  });
});

test('what a test leaves running', () => {
  left = start({}, ['--version'], { nodeOptions: standStill });
  expect(left.child.signalCode).toBeNull();
});

test('is killed before the next test', async () => {
  expect(left.child.signalCode).toBe('SIGKILL');
  expect(await left.ended).toEqual({ exitCode: null, output: '', errors: '' });
});
