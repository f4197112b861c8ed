import { expect, test } from 'vitest';
import { readConfig } from '../config.ts';
import { publicUrlOf } from './opening.ts';

test.each([
  [{}, 'http://127.0.0.1:8025'],
  [{ HOST: '0.0.0.0', PORT: '80' }, 'http://localhost:80'],
  [{ HOST: '::' }, 'http://localhost:8025'],
  [{ HOST: '::1' }, 'http://[::1]:8025'],
  [{ HOST: '0.0.0.0', POSTILLION_PUBLIC_URL: 'https://mail.example.com' }, 'https://mail.example.com'],
])('with the settings %j links lead to %s', (environment, expected) => {
  expect(publicUrlOf(readConfig(environment))).toBe(expected);
});
