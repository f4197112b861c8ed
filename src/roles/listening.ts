import type { SettingName } from '../config.ts';

/** Where a listener wants to listen, and by which settings. Port 0 is any free one. */
export type ListeningPlace = {
  host: string;
  port: number;
  hostSetting: SettingName;
  portSetting: SettingName;
};

/** An address that cannot be listened on, in one sentence that says which setting to change. */
export class ListenError extends Error {
  override readonly name = 'ListenError';
  /** As the system names it, such as EADDRINUSE. */
  readonly code: string;

  constructor(code: string, message: string, cause: unknown) {
    super(message, { cause });
    this.code = code;
  }
}

/** Starts what listens at a place. Throws a ListenError if the address cannot be had. */
export async function startListening<Listener>(
  place: ListeningPlace,
  start: () => Promise<Listener>,
): Promise<Listener> {
  try {
    return await start();
  } catch (cause) {
    const code = codeOf(cause);
    const sentence = code === null ? null : describe(code, place);
    if (code === null || sentence === null) throw cause;
    throw new ListenError(code, sentence, cause);
  }
}

function codeOf(cause: unknown): string | null {
  if (!(cause instanceof Error) || !('code' in cause)) return null;
  return typeof cause.code === 'string' ? cause.code : null;
}

/** Null for what is no fault of the address. */
function describe(code: string, place: ListeningPlace): string | null {
  const { host, port, hostSetting, portSetting } = place;
  switch (code) {
    case 'EADDRINUSE':
      return `Port ${port} on ${host} is in use by another process: stop that one, or set ${portSetting} to another port.`;
    case 'EACCES':
      return `This user may not listen on port ${port}: set ${portSetting} to one above 1023, or allow it to.`;
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
    case 'EINVAL':
      return `${host} is no address of this machine: set ${hostSetting} to one, or to 0.0.0.0 for all of them.`;
    default:
      return null;
  }
}
