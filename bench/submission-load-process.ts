import { connect } from 'node:net';

/**
 * Sends the same email by SMTP again and again, over connections that are kept open, each command after the answer to the
 * one before it, as most libraries do. Prints how many were accepted.
 */
type Order = { port: number; key: string; connections: number; seconds: number };

const order = JSON.parse(process.argv[2] ?? '') as Order; // By submission.ts.
const html = `<p>${'All work and no play. '.repeat(40)}</p>`;
const message = [
  'From: Benchmark <hello@postillion.test>',
  'To: somebody@example.com',
  'Subject: A benchmark',
  'Content-Type: text/html; charset=utf-8',
  '',
  html,
  '.',
].join('\r\n');

const latenciesMs: number[] = [];
const startedAtMs = performance.now();
const isOver = () => performance.now() - startedAtMs > order.seconds * 1_000;

async function sendInTurn(): Promise<void> {
  const socket = connect(order.port, '127.0.0.1');
  let text = '';
  let wake: () => void = () => undefined;
  socket.setNoDelay(true);
  socket.on('data', (chunk: Buffer) => {
    text += chunk.toString('latin1');
    wake();
  });
  const expect = async (code: string) => {
    // Ends with the reply, or with the process.
    while (!/^(?:\d{3}-.*\r\n)*\d{3}(?: .*)?\r\n$/.test(text))
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    if (!text.includes(`${code} `)) throw new Error(`not ${code}: ${text}`);
    text = '';
  };
  const ask = async (line: string, code: string) => {
    socket.write(`${line}\r\n`);
    await expect(code);
  };
  await expect('220');
  await ask('EHLO bench.test', '250');
  await ask(`AUTH PLAIN ${Buffer.from(`\0bench\0${order.key}`).toString('base64')}`, '235');
  while (!isOver()) {
    const begunAtMs = performance.now();
    await ask('MAIL FROM:<hello@postillion.test>', '250');
    await ask('RCPT TO:<somebody@example.com>', '250');
    await ask('DATA', '354');
    await ask(message, '250');
    latenciesMs.push(performance.now() - begunAtMs);
  }
  socket.destroy();
}

await Promise.all(Array.from({ length: order.connections }, sendInTurn));
const elapsedSeconds = (performance.now() - startedAtMs) / 1_000;
latenciesMs.sort((first, second) => first - second);
const at = (share: number) => latenciesMs[Math.floor(latenciesMs.length * share)] ?? 0;
console.log(
  JSON.stringify({
    perSecond: latenciesMs.length / elapsedSeconds,
    count: latenciesMs.length,
    statuses: {},
    p50Ms: at(0.5),
    p99Ms: at(0.99),
  }),
);
