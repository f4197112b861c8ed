import { openSync, writeSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { type PeerAnswer, type PeerRequest, startHttp2Peer } from '../support/http2-peer.ts';
import { type FromPushService, type Line, fateOf } from './push-service.ts';

/**
 * The push service of the browsers, in a process that nothing kills: `push-service-process.ts LOGFILE SEED`. A push is in
 * the log before it is answered. Its fate is drawn from its endpoint and its message (push-service.ts); one that is put
 * off is put off once.
 */
const [logFile = '', seed = ''] = process.argv.slice(2);
const log = openSync(logFile, 'a');
/** Those that had their fate: what comes again is taken. */
const met = new Set<string>();

const peer = await startHttp2Peer();
peer.answerBy(answer);
process.on('disconnect', () => process.exit(0));
process.send?.({ host: peer.host } satisfies FromPushService);

/** The time in which other requests are under way when a connection ends. */
const answerMs = 5;

async function answer(request: PeerRequest): Promise<PeerAnswer> {
  const { path, headers, body } = request;
  const topic = String(headers.topic);
  const push = { path, topic };
  const name = `${topic} ${path}`;
  const fate = met.has(name) ? 'accepted' : fateOf(seed, push);
  met.add(name);
  const take = () => {
    note({ kind: 'taken', ...push, body: body.toString('base64') });
  };
  await delay(answerMs);
  switch (fate) {
    case 'gone':
      note({ kind: 'refused', ...push });
      met.delete(name);
      return { status: 410 };
    case 'throttled':
      note({ kind: 'refused', ...push });
      return { status: 429, headers: { 'retry-after': '1' } };
    case 'unavailable':
      note({ kind: 'refused', ...push });
      return { status: 503, headers: { 'retry-after': '1' } };
    case 'unprocessed':
      note({ kind: 'refused', ...push });
      return 'refuse';
    case 'cut':
    case 'reset':
    case 'silence':
      take();
      note({ kind: 'cut', ...push });
      return fate;
    case 'cut_before':
      note({ kind: 'cut', ...push });
      return 'cut';
    case 'goaway':
      take();
      peer.goaway();
      return { status: 201, headers: { location: `/m/${topic}` } };
    case 'accepted':
      take();
      return { status: 201, headers: { location: `/m/${topic}` } };
  }
}

function note(line: Line): void {
  writeSync(log, `${JSON.stringify(line)}\n`);
}
