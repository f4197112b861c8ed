import pino from 'pino';

/** Structured log lines. Secrets, bodies and addresses are never logged; `redact` is the second safeguard. */
export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error' | 'fatal'>;

export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'fatal' | 'silent';

/** Written in the background, in pieces of this size: one write a line costs more than the line. */
const bufferBytes = 4_096;
const flushIntervalMs = 250;

/** JSON lines on standard error, or lines for people if that is a terminal. */
export async function createLog(
  level: LogLevel,
  /** On every line. `process` is the number of one of several. */
  base: { role: string; process?: number },
): Promise<Log & { flush: () => void }> {
  const { destination, flush } = process.stderr.isTTY ? await openTerminal() : openStream();
  const logger = pino(
    {
      level,
      base,
      redact: {
        paths: ['authorization', '*.authorization', 'password', '*.password', 'key', '*.key'],
        remove: true,
      },
    },
    destination,
  );
  return Object.assign(logger, { flush });
}

function openStream() {
  const destination = pino.destination({ dest: 2, minLength: bufferBytes, sync: false });
  const timer = setInterval(() => {
    destination.flush();
  }, flushIntervalMs);
  timer.unref();
  const flush = () => {
    destination.flushSync();
  };
  return { destination, flush };
}

/** Written at once: a person waits for each line, and throughput does not matter. */
async function openTerminal() {
  const format = await createTerminalFormat(process.stderr.hasColors());
  const write = (line: string) => {
    process.stderr.write(format(line));
  };
  return { destination: { write }, flush: () => undefined };
}

/** Makes a JSON line of the log readable for people. Loaded only where it is needed: it would slow every start. */
async function createTerminalFormat(hasColors: boolean): Promise<(line: string) => string> {
  // In the bundle, a package in CommonJS has no names of its own.
  const { default: pretty } = await import('pino-pretty');
  return pretty.prettyFactory({
    colorize: hasColors,
    singleLine: true,
    translateTime: 'SYS:HH:MM:ss',
    // All lines on one terminal are of the same role.
    ignore: 'pid,hostname,role',
  });
}

export const silentLog: Log = pino({ level: 'silent' });
