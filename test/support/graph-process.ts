import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { startGraph, type WebhookTarget } from './graph.ts';

/**
 * The stand-in for the Graph API as a process of its own, for benchmarks and fault injection: `tsx
 * test/support/graph-process.ts ['{"port":8400,"logsMessages":false,"throughput":"HIGH"}']`. What it answers depends on
 * the number. Prints `{"port":…}` when it listens, `{"message":{…}}` for every message before it answers, and
 * `{"counts":{…}}` for every line that it reads and when it is asked to end. Reads `{"webhooks":{…}}` (where they go, how
 * often, in which order), `{"review":{"name":…,"status":…,"reason":…}}` and `{"release":true}`, which gives the answers
 * that it holds.
 */
type Start = { port?: number; logsMessages?: boolean; throughput?: 'STANDARD' | 'HIGH' };

type Command = {
  webhooks?: WebhookTarget | null;
  review?: { name: string; status: string; reason?: string };
  release?: boolean;
};

const { port = 0, logsMessages = true, throughput = 'HIGH' } = JSON.parse(process.argv[2] ?? '{}') as Start;
const graph = await startGraph({
  port,
  throughput,
  messagesKeptMax: 0,
  onMessage: ({ body: _, ...message }) => {
    if (logsMessages) print({ message });
  },
});
print({ port: graph.port });

const commands = createInterface({ input: process.stdin });
commands.on('line', (line) => {
  const { webhooks, review, release } = (line.startsWith('{') ? JSON.parse(line) : {}) as Command;
  if (webhooks !== undefined) graph.setWebhooks(webhooks);
  if (review !== undefined) graph.review(review.name, review.status, review.reason);
  if (release) graph.releaseAnswers();
  print({ counts: graph.counts, faults: graph.faults.slice(0, 10) });
});
commands.on('close', end);
process.on('SIGTERM', end);
process.on('SIGINT', end);

let hasEnded = false;
function end(): void {
  if (hasEnded) return;
  hasEnded = true;
  print({ counts: graph.counts, faults: graph.faults.slice(0, 10) });
  void graph.close().then(() => {
    process.exit(0);
  });
}

/** Synchronously, so that the line is written even if this process is killed next. */
function print(value: unknown): void {
  writeSync(1, `${JSON.stringify(value)}\n`);
}
