import { createInterface } from 'node:readline';
import { startSmtpSink } from './smtp-sink.ts';
import type { SmtpSinkOptions } from './smtp-sink.ts';

/**
 * The sink as a process of its own, for benchmarks and fault injection: `tsx test/support/smtp-sink-process.ts
 * ['{"tls":"starttls"}']`. Prints `{"port":…}` when it listens, and `{"counts":{…}}` for every line that it reads
 * and when it is asked to end. Keeps no messages unless the options say so. `deferring`: recipients that begin so.
 */
const { deferring, ...options } = JSON.parse(process.argv[2] ?? '{}') as SmtpSinkOptions & {
  deferring?: string;
};
const sink = await startSmtpSink({
  messagesKeptMax: 0,
  ...(deferring !== undefined && { script: deferRecipients(deferring) }),
  ...options,
});
print({ port: sink.port });

const requests = createInterface({ input: process.stdin });
requests.on('line', () => {
  print({ counts: sink.counts });
});
requests.on('close', end);
process.on('SIGTERM', end);
process.on('SIGINT', end);

function deferRecipients(beginning: string): NonNullable<SmtpSinkOptions['script']> {
  return ({ phase, recipient }) =>
    phase === 'rcpt' && recipient.startsWith(beginning)
      ? { reply: '451 4.7.1 Please try again later' }
      : undefined;
}

let hasEnded = false;
function end(): void {
  if (hasEnded) return;
  hasEnded = true;
  print({ counts: sink.counts });
  void sink.close().then(() => {
    process.exit(0);
  });
}

function print(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}
