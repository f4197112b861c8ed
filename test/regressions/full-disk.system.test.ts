/** A disk that is full of something else, under the embedded PostgreSQL, on a file system that is mounted for it. */
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { mountSmallDisk, type SmallDisk } from '../chaos/disk.ts';
import { eventually } from '../support/email-journey.ts';
import { servedUrl, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';

const programs = usePrograms();

const folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-full-disk-'));
await chmod(folder, 0o711);
const disk: SmallDisk | null = await mountSmallDisk(path.join(folder, 'disk'));
if (disk === null) await rm(folder, { recursive: true });

test.runIf(disk !== null)(
  'of a full disk /readyz says 503 and why, and the doctor says what is full, until there is room again',
  async () => {
    const settings = { POSTILLION_DATA_DIR: path.join(folder, 'disk'), PORT: '0', LOG_LEVEL: 'silent' };
    try {
      const { child, untilSaid, ended, said } = programs.start(settings, ['serve']);
      const url = (await untilSaid('output', servedUrl))![1]!;
      const key = (await untilSaid('output', /^KEY=(\S+)/m))![1]!;
      const send = async () => {
        const response = await fetch(`${url}/v1/email/send`, {
          method: 'POST',
          headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
          body: JSON.stringify({
            ...{
              from: 'hello@postillion.test',
              from_name: 'Hello',
              to: ['ann@example.com'],
              subject: 'Hello',
            },
            text: Array.from({ length: 4_000 }, () => Math.random().toString(36)).join(' '),
          }),
        });
        return response.status;
      };
      const readiness = async () => {
        const response = await fetch(`${url}/readyz`);
        return { status: response.status, body: (await response.json()) as { reason?: string } };
      };
      expect(await send()).toBe(202);
      expect((await readiness()).status).toBe(200);

      const giveBack = await disk!.fill();
      try {
        await eventually(send, (status) => status === 503);
        const { status, body } = await readiness();
        expect(status).toBe(503);
        expect(body.reason).toMatch(/^the database (takes no writes: its disk is full|cannot be reached)$/);
        const { output, exitCode } = await programs.run(settings, 'doctor');
        expect(exitCode).toBe(1);
        expect(output).toMatch(/^problem +disk +0 MiB are free in /m);
      } finally {
        await giveBack();
      }
      await eventually(readiness, ({ status }) => status === 200);
      await eventually(send, (status) => status === 202);
      child.kill('SIGTERM');
      expect((await ended).exitCode).toBe(0);
      expect(said.errors).toBe('');
    } finally {
      await disk!.remove();
      await rm(folder, { recursive: true, force: true });
    }
  },
);
