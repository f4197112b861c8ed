import { connect, type Socket } from 'node:net';
import type { Sender } from './installation.ts';
import type { Random } from './random.ts';

/** Requests that send their headers, `{`, and then nothing more, or an octet now and then. */
export type UnfinishedBodies = {
  /** What they were answered, and how often. */
  answers: ReadonlyMap<string, number>;
  stop: () => void;
};

export type UnfinishedPlan = {
  apiUrl: string;
  senders: readonly Sender[];
  /** Per sender, at the same time. */
  countOfEach: number;
};

const shareThatTrickles = 0.2;
const octetEveryMs = 1_000;
/** How soon a request that was answered is followed by another. If shorter, the harness itself is the bottleneck. */
const againAfterMs = [5_000, 10_000] as const;

/** At once, they would fill the system's queue of new connections, which no server can divide. */
const beginWithinMs = 3_000;

/** Keeps up that many requests until it is stopped. */
export function holdBodiesOpen(
  { apiUrl, senders, countOfEach }: UnfinishedPlan,
  random: Random,
): UnfinishedBodies {
  const { port } = new URL(apiUrl);
  const answers = new Map<string, number>();
  const sockets = new Set<Socket>();
  const pauses = new Set<NodeJS.Timeout>();
  let isStopped = false;
  // Connections are divided among addresses, and these are not those of the load.
  const begin = (sender: Sender, localAddress: string) => {
    const socket = connect({ port: Number(port), host: '127.0.0.1', localAddress });
    sockets.add(socket);
    let answer = '';
    let failure = '';
    socket.on('error', (error) => {
      failure = error.message;
    });
    socket.on('data', (bytes: Buffer) => {
      answer += bytes.toString('latin1');
      // The status is all that counts: neither the response's body nor the connection is needed any more.
      if (answer.includes('\r\n\r\n')) socket.destroy();
    });
    socket.write(headOf(sender));
    const trickle = random.isLucky(shareThatTrickles)
      ? setInterval(() => socket.write(' '), octetEveryMs)
      : undefined;
    socket.once('close', () => {
      clearInterval(trickle);
      sockets.delete(socket);
      if (isStopped) return;
      const status = /^HTTP\/1\.1 (\d{3})/.exec(answer)?.[1] ?? `connection ended ${failure}`;
      answers.set(status, (answers.get(status) ?? 0) + 1);
      beginAfter(random.between(...againAfterMs), sender, localAddress);
    });
  };
  const beginAfter = (pauseMs: number, sender: Sender, localAddress: string) => {
    const pause = setTimeout(() => {
      pauses.delete(pause);
      begin(sender, localAddress);
    }, pauseMs);
    pauses.add(pause);
  };
  for (const [index, sender] of senders.entries()) {
    for (let count = 0; count < countOfEach; count += 1) {
      beginAfter(random.between(0, beginWithinMs), sender, `127.0.0.${index + 2}`);
    }
  }
  return {
    answers,
    stop: () => {
      isStopped = true;
      for (const pause of pauses) clearTimeout(pause);
      for (const socket of sockets) socket.destroy();
    },
  };
}

function headOf({ key }: Sender): string {
  return [
    'POST /v1/email/send HTTP/1.1',
    'host: chaos',
    `authorization: Bearer ${key}`,
    'content-type: application/json',
    'content-length: 1000',
    '',
    '{',
  ].join('\r\n');
}
