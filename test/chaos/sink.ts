import { fork } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import type { SinkAction, SinkStep } from '../support/smtp-sink.ts';

export type ToSink = { hold: SinkStep['phase'] } | { release: SinkAction | null };
export type FromSink = { port: number } | { held: string } | { taken: string };

/** One message for one recipient that the sink took, in the order of arrival. */
export type Delivery = { atMs: number; messageId: string; recipient: string; digest: string };

export type Sink = {
  port: number;
  /** Holds back the next step of this phase; resolves when it has been reached. */
  hold: (phase: SinkStep['phase']) => Promise<void>;
  /** Answers the step that is held back; null means as usual. */
  release: (action: SinkAction | null) => void;
  /** Resolves when the next message has been taken down. */
  whenTaken: () => Promise<void>;
  readDeliveries: () => Promise<Delivery[]>;
  stop: () => Promise<void>;
};

export async function startSink(logFile: string): Promise<Sink> {
  const child = fork(path.join(import.meta.dirname, 'sink-process.ts'), [logFile], {
    execArgv: ['--import', 'tsx'],
  });
  const heard = <Kind extends string>(kind: Kind) =>
    new Promise<FromSink>((resolve, reject) => {
      const onMessage = (message: FromSink) => {
        if (!(kind in message)) return;
        child.off('message', onMessage);
        resolve(message);
      };
      child.on('message', onMessage);
      child.once('exit', () => {
        reject(new Error('the sink has ended'));
      });
    });
  child.setMaxListeners(100);
  const first = await heard('port');
  const send = (order: ToSink) => child.send(order);
  return {
    port: 'port' in first ? first.port : 0,
    hold: async (phase) => {
      const held = heard('held');
      send({ hold: phase });
      await held;
    },
    release: (action) => {
      send({ release: action });
    },
    whenTaken: async () => {
      await heard('taken');
    },
    readDeliveries: async () => parseDeliveries(await readFile(logFile, 'utf8')),
    stop: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    },
  };
}

function parseDeliveries(text: string): Delivery[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [at = '', messageId = '', recipient = '', digest = ''] = line.split(' ');
      return { atMs: Number(at), messageId, recipient, digest };
    });
}
