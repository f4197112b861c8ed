import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/email-journey.ts';
import { createServer } from './servers.ts';

let directory: string;

beforeAll(async () => {
  directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-servers-'));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

test('a process that ends of its own is reported with its exit code and its last words', async () => {
  const environment = { PORT: 'none' };
  const server = createServer({ role: 'api', environment, logFile: path.join(directory, 'api.log') });
  server.start();
  const [end] = await eventually(
    () => Promise.resolve(server.ownEnds()),
    ([told]) => told?.includes('PORT') === true,
  );
  expect(end).toMatch(
    /^a process ended that nobody had killed: api, with code 1 after \d+ ms; it said last:\n {2}.*PORT/,
  );
});
