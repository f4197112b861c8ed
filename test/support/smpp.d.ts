/** The part of the npm library `smpp` that our peer uses; it has no types of its own. */
declare module 'smpp' {
  import type { EventEmitter } from 'node:events';
  import type { Server, Socket } from 'node:net';

  export type Pdu = {
    command: string;
    command_status: number;
    sequence_number: number;
    response: (options?: Record<string, unknown>) => Pdu;
    toBuffer: () => Buffer;
    // The fields of each command, as the library names them.
    [field: string]: unknown;
  };

  export type Session = EventEmitter & {
    socket: Socket;
    send: (pdu: Pdu, onResponse?: (pdu: Pdu) => void) => boolean;
    bind_transceiver: (options: Record<string, unknown>, onResponse: (pdu: Pdu) => void) => boolean;
    submit_sm: (options: Record<string, unknown>, onResponse: (pdu: Pdu) => void) => boolean;
    deliver_sm: (options: Record<string, unknown>, onResponse: (pdu: Pdu) => void) => boolean;
    enquire_link: (onResponse: (pdu: Pdu) => void) => boolean;
    unbind: (onResponse: (pdu: Pdu) => void) => boolean;
    close: () => void;
    destroy: () => void;
  };

  const smpp: {
    createServer: (options: { key?: string; cert?: string }, onSession: (session: Session) => void) => Server;
    connect: (options: { host: string; port: number }, onConnect: () => void) => Session;
    PDU: new (command: string | Buffer, options?: Record<string, unknown>) => Pdu;
    encodings: Record<'ASCII' | 'LATIN1' | 'UCS2', { decode: (octets: Buffer) => string }>;
    errors: Record<string, number>;
  };
  export default smpp;
}
