import type { EmailProvider } from '../channels/email/email.ts';
import { createSandboxProvider } from '../channels/email/providers/sandbox/sandbox.ts';
import { createSmtpProvider } from '../channels/email/providers/smtp/smtp.ts';
import { applyReports, startDelivery } from '../messages/messages.ts';
import { deleteExpiredKeys, retentionMs } from '../platform/http/idempotency.ts';
import { deleteOldRateWindows } from '../platform/http/rate-limit.ts';
import { dateOf } from '../platform/clock.ts';
import { createPartitions } from '../platform/postgres/partitions.ts';
import { keepMessage, tidySandbox } from '../sandbox/sandbox.ts';
import { hostname } from 'node:os';
import type { Installation } from './installation.ts';

export type Worker = { stop: () => Promise<void> };

/** Delivers what is due until it is stopped. */
export function startWorker(installation: Installation): Worker {
  const emailProvider = createEmailProvider(installation);
  const delivery = startDelivery({ ...installation, emailProvider, random: Math.random });
  const stopTidying = tidyRegularly(installation);
  return {
    stop: async () => {
      await stopTidying();
      await delivery.stop();
      await emailProvider.close();
    },
  };
}

/** The registry: a new provider is a folder and a line here. */
export function createEmailProvider(installation: Installation): EmailProvider {
  const { config, clock } = installation;
  switch (config.emailProvider) {
    case 'sandbox':
      return createSandboxProvider({
        keep: ({ reference, ...kept }) =>
          keepMessage(installation, { ...kept, ...reference, channel: 'email' }),
        reportComplaint: (job) => applyReports(installation, [{ job, status: 'complained', failure: null }]),
      });
    case 'smtp':
      if (config.smtpUrl === null) throw new Error('POSTILLION_SMTP_URL is not set');
      return createSmtpProvider({ url: config.smtpUrl, clock, heloName: hostname() });
  }
}

const tidyIntervalMs = 60 * 60 * 1_000;
const firstTidyMs = 30_000;

/** Housekeeping that may run on any number of nodes at once, and that nothing waits for. */
function tidyRegularly(installation: Installation): () => Promise<void> {
  const { clock, log, database } = installation;
  let isStopped = false;
  let running: Promise<void> = Promise.resolve();
  let cancel = clock.after(firstTidyMs, run);

  async function tidy() {
    await createPartitions(database, dateOf(clock.nowMs()));
    await deleteExpiredKeys(database, dateOf(clock.nowMs() - retentionMs));
    await deleteOldRateWindows(database, dateOf(clock.nowMs() - 10 * 60_000));
    await tidySandbox(database);
  }
  function run() {
    running = tidy()
      .catch((cause: unknown) => {
        log.warn({ err: cause }, 'housekeeping was interrupted');
      })
      .then(() => {
        if (!isStopped) cancel = clock.after(tidyIntervalMs, run);
      });
  }
  return async () => {
    isStopped = true;
    cancel();
    await running;
  };
}
