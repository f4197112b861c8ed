import { createHash } from 'node:crypto';
import { openSync, writeSync } from 'node:fs';
import { type SinkAction, type SinkMessage, type SinkStep, startSmtpSink } from '../support/smtp-sink.ts';
import type { FromSink, ToSink } from './sink.ts';

/**
 * The receiving side, in a process that nothing kills: `sink-process.ts LOGFILE`. A message is in the log before it
 * is answered with 250, a line each: milliseconds, message id, recipient, digest of the content. Recipients choose
 * their fate by how they begin: `unknown-` never exists, `later-` is put off once. One step at a time can be held
 * back until the parent process says how it is to be answered.
 */
const log = openSync(process.argv[2] ?? '', 'a');
const putOff = new Set<string>();
let wantedPhase: string | null = null;
let release: (action: SinkAction | undefined) => void = () => undefined;

const sink = await startSmtpSink({
  keepContent: true,
  messagesKeptMax: 0,
  script: answer,
  onMessage: takeDown,
});
process.on('message', (order: ToSink) => {
  if ('hold' in order) wantedPhase = order.hold;
  else release(order.release ?? undefined);
});
process.on('disconnect', () => process.exit(0));
tell({ port: sink.port });

function answer({ phase, recipient }: SinkStep): SinkAction | undefined | Promise<SinkAction | undefined> {
  if (phase === wantedPhase) {
    wantedPhase = null;
    const held = new Promise<SinkAction | undefined>((resolve) => {
      release = resolve;
    });
    tell({ held: phase });
    return held;
  }
  if (phase !== 'rcpt') return undefined;
  if (recipient.startsWith('unknown-')) return { reply: '550 5.1.1 No such user here' };
  if (recipient.startsWith('later-') && !putOff.has(recipient)) {
    putOff.add(recipient);
    return { reply: '451 4.3.0 Come again' };
  }
  return undefined;
}

function takeDown({ recipients, content }: SinkMessage): void {
  const messageId = /^Message-ID: <([^@>]+)@/im.exec(content.toString('latin1', 0, 4_096))?.[1] ?? 'none';
  const digest = createHash('sha256').update(content).digest('hex');
  writeSync(
    log,
    recipients.map((recipient) => `${Date.now()} ${messageId} ${recipient} ${digest}\n`).join(''),
  );
  tell({ taken: messageId });
}

function tell(message: FromSink): void {
  process.send?.(message);
}
