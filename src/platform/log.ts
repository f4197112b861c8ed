import pino from 'pino';

/** Structured log lines. Secrets, bodies and addresses are never handed to it; `redact` is the second net. */
export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error' | 'fatal'>;

export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'fatal' | 'silent';

/** Written behind the request's back in pieces of this size: one write a line costs more than the line. */
const bufferBytes = 4_096;
const flushIntervalMs = 250;

export function createLog(level: LogLevel, role: string): Log & { flush: () => void } {
  const destination = pino.destination({ dest: 2, minLength: bufferBytes, sync: false });
  const timer = setInterval(() => {
    destination.flush();
  }, flushIntervalMs);
  timer.unref();
  const logger = pino(
    {
      level,
      base: { role },
      redact: {
        paths: ['authorization', '*.authorization', 'password', '*.password', 'key', '*.key'],
        remove: true,
      },
    },
    destination,
  );
  return Object.assign(logger, {
    flush: () => {
      destination.flushSync();
    },
  });
}

export const silentLog: Log = pino({ level: 'silent' });
