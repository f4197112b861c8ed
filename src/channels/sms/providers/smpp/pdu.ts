/**
 * The part of SMPP 3.4 that we speak, as values and as octets: the three binds, submit_sm, deliver_sm, enquire_link,
 * unbind, their responses, and generic_nack; of the optional parameters those of receipts and of messages too long
 * for their own field.
 *
 * What is written is neither cut nor checked here: fields must fit (`submission.ts` and `url.ts` see to it).
 * What is read is not trusted: nothing throws, a body that cannot be read is a `malformed` one, and optional
 * parameters that we do not know are passed over. Section numbers are those of the specification, issue 1.2.
 */

/** §5.2.5 and 5.2.6: type of number and numbering plan. */
export type NumberPlan = { ton: number; npi: number };

export type PduAddress = NumberPlan & { address: string };

/** §4.4.1 and §4.6.1 have one layout. */
export type ShortMessage = {
  source: PduAddress;
  destination: PduAddress;
  esmClass: number;
  /** §7.1.1, for example `000001000000000R`; empty for the provider's own. */
  validityPeriod: string;
  registeredDelivery: number;
  dataCoding: number;
  /** At most 254 octets. */
  octets: Buffer;
  /** §5.3.2.12; null where absent, as are the following. */
  receiptedMessageId: string | null;
  /** §5.2.28 */
  messageState: number | null;
  /** §5.3.2.32: instead of `octets`, up to 64 kB. */
  messagePayload: Buffer | null;
};

/** §2.2: what is bound as transmitter submits, as receiver is delivered to, and as transceiver does both. */
export type BindRole = 'transmitter' | 'receiver' | 'transceiver';

export type BindCommand = `bind_${BindRole}`;

type Numbered = { sequence: number };

export type Pdu = Numbered &
  (
    | { command: BindCommand; systemId: string; password: string; systemType: string }
    | { command: 'submit_sm'; message: ShortMessage }
    | { command: 'deliver_sm'; message: ShortMessage }
    | { command: 'enquire_link' }
    | { command: 'unbind' }
    | SmppAnswer
    | { command: 'unknown'; commandId: number; isRequest: boolean }
    | { command: 'malformed'; commandId: number; isRequest: boolean; detail: string }
  );

/** A response; `identifier` is the message's or the system's, empty where there is none. */
export type SmppAnswer = Numbered & {
  command: `${AnsweredCommand}_resp` | 'generic_nack';
  status: number;
  identifier: string;
};

type AnsweredCommand = BindCommand | 'submit_sm' | 'deliver_sm' | 'enquire_link' | 'unbind';

const commandIds = {
  bind_receiver: 0x01,
  bind_transmitter: 0x02,
  submit_sm: 0x04,
  deliver_sm: 0x05,
  unbind: 0x06,
  bind_transceiver: 0x09,
  enquire_link: 0x15,
  generic_nack: 0x8000_0000,
  bind_receiver_resp: 0x8000_0001,
  bind_transmitter_resp: 0x8000_0002,
  submit_sm_resp: 0x8000_0004,
  deliver_sm_resp: 0x8000_0005,
  unbind_resp: 0x8000_0006,
  bind_transceiver_resp: 0x8000_0009,
  enquire_link_resp: 0x8000_0015,
} as const;

type Command = keyof typeof commandIds;

const commandsById = new Map<number, Command>(
  // The keys are those of the object above.
  Object.entries(commandIds).map(([command, id]) => [id, command as Command]),
);

const tags = { receiptedMessageId: 0x001e, messagePayload: 0x0424, messageState: 0x0427 } as const;

export const headerBytes = 16;

/** §4.1.1: 3.4 */
const interfaceVersion = 0x34;

/** Longest strings that are read, their NUL not counted. Providers are not strict about §4: identifiers run to 64. */
const readBytesMax = { serviceType: 32, address: 64, time: 32, identifier: 255 };

/** The octets of a request or response. Throws a RangeError if a field does not fit, which is a mistake of ours. */
export function writePdu(pdu: Exclude<Pdu, { command: 'unknown' | 'malformed' }>): Buffer {
  switch (pdu.command) {
    case 'bind_receiver':
    case 'bind_transmitter':
    case 'bind_transceiver':
      return frame(pdu.command, 0, pdu.sequence, [
        pdu.systemId,
        pdu.password,
        pdu.systemType,
        // No address range: the provider knows which numbers are ours.
        [interfaceVersion, 0, 0, 0],
      ]);
    case 'submit_sm':
    case 'deliver_sm':
      return frame(pdu.command, 0, pdu.sequence, shortMessageFields(pdu.message));
    case 'enquire_link':
    case 'unbind':
      return frame(pdu.command, 0, pdu.sequence, []);
    case 'enquire_link_resp':
    case 'unbind_resp':
    case 'generic_nack':
      return frame(pdu.command, pdu.status, pdu.sequence, []);
    case 'bind_receiver_resp':
    case 'bind_transmitter_resp':
    case 'bind_transceiver_resp':
    case 'submit_sm_resp':
    case 'deliver_sm_resp':
      return frame(pdu.command, pdu.status, pdu.sequence, [pdu.identifier]);
  }
}

/** Reads one whole PDU, as `PduReader` cuts it: at least 16 octets. Its buffers share the memory of `octets`. */
export function readPdu(octets: Buffer): Pdu {
  const commandId = octets.readUInt32BE(4);
  const status = octets.readUInt32BE(8);
  const sequence = octets.readUInt32BE(12);
  const isRequest = commandId < 0x8000_0000;
  const command = commandsById.get(commandId);
  const body = new BodyReader(octets, headerBytes);
  switch (command) {
    case undefined:
      return { command: 'unknown', commandId, isRequest, sequence };
    case 'bind_receiver':
    case 'bind_transmitter':
    case 'bind_transceiver': {
      const systemId = body.cString(readBytesMax.identifier);
      const password = body.cString(readBytesMax.identifier);
      const systemType = body.cString(readBytesMax.identifier);
      return body.fault === null
        ? { command, systemId, password, systemType, sequence }
        : { command: 'malformed', commandId, isRequest, sequence, detail: body.fault };
    }
    case 'submit_sm':
    case 'deliver_sm': {
      const message = readShortMessage(body);
      return body.fault === null
        ? { command, message, sequence }
        : { command: 'malformed', commandId, isRequest, sequence, detail: body.fault };
    }
    case 'enquire_link':
    case 'unbind':
      return { command, sequence };
    case 'generic_nack':
    case 'enquire_link_resp':
    case 'unbind_resp':
      return { command, status, identifier: '', sequence };
    case 'bind_receiver_resp':
    case 'bind_transmitter_resp':
    case 'bind_transceiver_resp':
    case 'submit_sm_resp':
    case 'deliver_sm_resp':
      // Many leave the body out, above all with an error, and some forget the NUL: it is a response all the same.
      return { command, status, identifier: body.rest(readBytesMax.identifier), sequence };
  }
}

/** Octets one by one, a C-Octet String (§3.1: ASCII that ends with NUL), or octets as they are. */
type Field = readonly number[] | string | Buffer;

/** All in one piece: a buffer for each field took as long as everything else that is done for a text here. */
function frame(command: Command, status: number, sequence: number, fields: readonly Field[]): Buffer {
  const length = fields.reduce((sum, field) => sum + sizeOf(field), headerBytes);
  const octets = Buffer.allocUnsafe(length);
  octets.writeUInt32BE(length, 0);
  octets.writeUInt32BE(commandIds[command], 4);
  octets.writeUInt32BE(status, 8);
  octets.writeUInt32BE(sequence, 12);
  let at = headerBytes;
  for (const field of fields) {
    if (typeof field === 'string') {
      octets.write(field, at, 'latin1');
      octets[at + field.length] = 0;
    } else {
      octets.set(field, at);
    }
    at += sizeOf(field);
  }
  return octets;
}

function sizeOf(field: Field): number {
  return typeof field === 'string' ? field.length + 1 : field.length;
}

function shortMessageFields(message: ShortMessage): Field[] {
  if (message.octets.length > 254) throw new RangeError('A short message has at most 254 octets.');
  const { source, destination } = message;
  const fields: Field[] = [
    // No service type: the account's own.
    [0, source.ton, source.npi],
    source.address,
    [destination.ton, destination.npi],
    destination.address,
    // Protocol 0, priority 0, delivery at once.
    [message.esmClass, 0, 0, 0],
    message.validityPeriod,
    [message.registeredDelivery, 0, message.dataCoding, 0, message.octets.length],
    message.octets,
  ];
  if (message.receiptedMessageId !== null)
    fields.push(
      parameterHead(tags.receiptedMessageId, sizeOf(message.receiptedMessageId)),
      message.receiptedMessageId,
    );
  if (message.messageState !== null) fields.push(parameterHead(tags.messageState, 1), [message.messageState]);
  if (message.messagePayload !== null)
    fields.push(parameterHead(tags.messagePayload, message.messagePayload.length), message.messagePayload);
  return fields;
}

/** §3.2.4.1 */
function parameterHead(tag: number, length: number): number[] {
  if (length > 0xffff) throw new RangeError('A parameter has at most 65,535 octets.');
  return [tag >> 8, tag & 0xff, length >> 8, length & 0xff];
}

function readShortMessage(body: BodyReader): ShortMessage {
  body.cString(readBytesMax.serviceType);
  const source = readAddress(body);
  const destination = readAddress(body);
  const esmClass = body.octet();
  body.skip(2);
  body.cString(readBytesMax.time);
  const validityPeriod = body.cString(readBytesMax.time);
  const registeredDelivery = body.octet();
  body.skip(1);
  const dataCoding = body.octet();
  body.skip(1);
  const octets = body.octets(body.octet());
  const message: ShortMessage = {
    source,
    destination,
    esmClass,
    validityPeriod,
    registeredDelivery,
    dataCoding,
    octets,
    receiptedMessageId: null,
    messageState: null,
    messagePayload: null,
  };
  readParameters(body, message);
  return message;
}

function readAddress(body: BodyReader): PduAddress {
  return { ton: body.octet(), npi: body.octet(), address: body.cString(readBytesMax.address) };
}

/** Ends because every parameter takes at least four octets. */
function readParameters(body: BodyReader, message: ShortMessage): void {
  while (body.hasMore()) {
    const tag = body.number();
    const value = body.octets(body.number());
    if (body.fault !== null) return;
    if (tag === tags.receiptedMessageId) {
      message.receiptedMessageId = new BodyReader(value, 0).rest(readBytesMax.identifier);
    } else if (tag === tags.messageState && value.length === 1) {
      message.messageState = value[0] ?? null;
    } else if (tag === tags.messagePayload) {
      message.messagePayload = value;
    }
  }
}

const endsWithinField = 'it ends within a field';

/** Takes one field after the other. After the first that is not there everything is empty, and `fault` says why. */
class BodyReader {
  fault: string | null = null;
  #octets: Buffer;
  #at: number;

  constructor(octets: Buffer, at: number) {
    this.#octets = octets;
    this.#at = at;
  }

  hasMore(): boolean {
    return this.fault === null && this.#at < this.#octets.length;
  }

  octet(): number {
    const octet = this.fault === null ? this.#octets[this.#at] : 0;
    if (octet === undefined) this.fault = endsWithinField;
    this.#at += 1;
    return octet ?? 0;
  }

  /** Two octets, the high one first. */
  number(): number {
    return 256 * this.octet() + this.octet();
  }

  skip(bytes: number): void {
    this.octets(bytes);
  }

  octets(bytes: number): Buffer {
    const from = this.#at;
    if (this.fault !== null || from + bytes > this.#octets.length) {
      this.fault ??= endsWithinField;
      return Buffer.alloc(0);
    }
    this.#at += bytes;
    return this.#octets.subarray(from, this.#at);
  }

  cString(bytesMax: number): string {
    const from = this.#at;
    const end = this.#octets.indexOf(0, from);
    if (this.fault !== null || end === -1 || end - from > bytesMax) {
      this.fault ??= end === -1 ? 'a string does not end' : 'a string is too long';
      return '';
    }
    this.#at = end + 1;
    return this.#octets.toString('latin1', from, end);
  }

  /** Up to the next NUL or to the end, and no more than `bytesMax`. */
  rest(bytesMax: number): string {
    const nul = this.#octets.indexOf(0, this.#at);
    const end = nul === -1 ? this.#octets.length : nul;
    return this.#octets.toString('latin1', this.#at, Math.min(end, this.#at + bytesMax));
  }
}
