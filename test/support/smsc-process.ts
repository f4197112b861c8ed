import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { startSmsc } from './smsc.ts';

/**
 * The message centre as a process of its own, for benchmarks and fault injection: `tsx test/support/smsc-process.ts
 * ['{"port":2775,"logsSubmits":false}']`. What it answers depends on the number, as in `smscNumbers`. Prints
 * `{"port":…}` when it listens, `{"submit":{…}}` for every text before it answers, and `{"counts":{…}}` for every
 * line that it reads and when it is asked to end. Reading `{"deliver":{…}}`, it delivers that message; reading
 * `{"release":true}`, it sends the receipts that it holds.
 */
const { port = 0, logsSubmits = true } = JSON.parse(process.argv[2] ?? '{}') as {
  port?: number;
  logsSubmits?: boolean;
};
const smsc = await startSmsc({
  port,
  submitsKeptMax: 0,
  onSubmit: (submit) => {
    if (logsSubmits) print({ submit });
  },
});
print({ port: smsc.port });

const requests = createInterface({ input: process.stdin });
requests.on('line', (line) => {
  const request = (line.startsWith('{') ? JSON.parse(line) : {}) as {
    deliver?: Record<string, unknown>;
    release?: boolean;
  };
  if (request.release) smsc.releaseReceipts();
  if (request.deliver === undefined) print({ counts: smsc.counts });
  else
    void smsc.deliver(request.deliver).then((status) => {
      print({ delivered: { status } });
    });
});
requests.on('close', end);
process.on('SIGTERM', end);
process.on('SIGINT', end);

let hasEnded = false;
function end(): void {
  if (hasEnded) return;
  hasEnded = true;
  print({ counts: smsc.counts });
  void smsc.close().then(() => {
    process.exit(0);
  });
}

/** Synchronously, so that the line is written even if this process is killed next. */
function print(value: unknown): void {
  writeSync(1, `${JSON.stringify(value)}\n`);
}
