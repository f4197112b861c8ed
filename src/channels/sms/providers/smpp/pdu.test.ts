import fc from 'fast-check';
import smpp from 'smpp';
import { describe, expect, it } from 'vitest';
import { PduReader, pduBytesMax } from './pdu-reader.ts';
import { readPdu, writePdu } from './pdu.ts';
import type { Pdu, ShortMessage } from './pdu.ts';

type WritablePdu = Parameters<typeof writePdu>[0];

const octet = fc.integer({ min: 0, max: 255 });
const sequence = fc.integer({ min: 1, max: 0x7fffffff });
const status = fc.integer({ min: 0, max: 0xffffffff });
const latin1 = (maxLength: number) =>
  fc.array(fc.integer({ min: 1, max: 255 }), { maxLength }).map((codes) => String.fromCharCode(...codes));
const octets = (maxLength: number) => fc.uint8Array({ maxLength }).map((array) => Buffer.from(array));
const address = fc.record({ ton: octet, npi: octet, address: latin1(20) });

const shortMessage: fc.Arbitrary<ShortMessage> = fc.record({
  source: address,
  destination: address,
  esmClass: octet,
  validityPeriod: latin1(16),
  registeredDelivery: octet,
  dataCoding: octet,
  octets: octets(254),
  receiptedMessageId: fc.option(latin1(64)),
  messageState: fc.option(octet),
  messagePayload: fc.option(octets(2_000)),
});

const pdu: fc.Arbitrary<WritablePdu> = fc.oneof(
  fc.record({
    command: fc.constantFrom('bind_receiver', 'bind_transmitter', 'bind_transceiver'),
    sequence,
    systemId: latin1(15),
    password: latin1(64),
    systemType: latin1(12),
  }),
  fc.record({
    command: fc.constantFrom('submit_sm' as const, 'deliver_sm' as const),
    sequence,
    message: shortMessage,
  }),
  fc.record({ command: fc.constantFrom('enquire_link' as const, 'unbind' as const), sequence }),
  fc.record({
    command: fc.constantFrom(
      'bind_receiver_resp',
      'bind_transmitter_resp',
      'bind_transceiver_resp',
      'submit_sm_resp',
      'deliver_sm_resp',
    ),
    sequence,
    status,
    identifier: latin1(65),
  }),
  fc.record({
    command: fc.constantFrom('enquire_link_resp', 'unbind_resp', 'generic_nack'),
    sequence,
    status,
    identifier: fc.constant(''),
  }),
);

/** The octets cut at random places. */
const cutOctets = (source: fc.Arbitrary<Buffer>) =>
  fc.tuple(source, fc.array(fc.nat({ max: 400 }), { maxLength: 60 })).map(([whole, lengths]) => {
    const chunks: Buffer[] = [];
    let at = 0;
    for (const length of lengths) {
      chunks.push(whole.subarray(at, at + length));
      at += length;
    }
    return [...chunks, whole.subarray(at)];
  });

function readAll(chunks: readonly Buffer[]): { pdus: Pdu[]; fault: string | null } {
  const reader = new PduReader();
  const pdus: Pdu[] = [];
  for (const chunk of chunks) {
    const fault = reader.read(chunk, (each) => pdus.push(each));
    if (fault !== null) return { pdus, fault };
  }
  return { pdus, fault: null };
}

describe('PDUs', () => {
  it('are read as they were written', () => {
    fc.assert(
      fc.property(pdu, (each) => {
        expect(readPdu(writePdu(each))).toEqual(each);
      }),
    );
  });

  it('are read as they were written, wherever their octets were cut', () => {
    const source = fc.array(pdu, { maxLength: 5 });
    fc.assert(
      fc.property(
        source.chain((pdus) =>
          fc.tuple(fc.constant(pdus), cutOctets(fc.constant(Buffer.concat(pdus.map(writePdu))))),
        ),
        ([pdus, chunks]) => {
          expect(readAll(chunks)).toEqual({ pdus, fault: null });
        },
      ),
    );
  });

  it('of nothing but noise are read without throwing', () => {
    const noise = fc
      .tuple(
        fc.constantFrom(0x01, 0x02, 0x04, 0x05, 0x06, 0x09, 0x15, 0x80000000, 0x80000004, 0x80000009, 0x103),
        octets(400),
      )
      .map(([commandId, body]) => {
        const header = Buffer.alloc(16);
        header.writeUInt32BE(16 + body.length, 0);
        header.writeUInt32BE(commandId, 4);
        return Buffer.concat([header, body]);
      });
    fc.assert(
      fc.property(cutOctets(fc.oneof(noise, octets(600))), (chunks) => {
        expect(['string', 'object']).toContain(typeof readAll(chunks).fault);
      }),
      { numRuns: 500 },
    );
  });

  it('with a part of them missing are malformed, and say which request it was', () => {
    fc.assert(
      fc.property(shortMessage, fc.nat(), (message, cut) => {
        const bare = { ...message, receiptedMessageId: null, messageState: null, messagePayload: null };
        const whole = writePdu({ command: 'deliver_sm', sequence: 7, message: bare });
        const length = 16 + (cut % (whole.length - 16));
        expect(readPdu(whole.subarray(0, length))).toMatchObject({
          command: 'malformed',
          commandId: 5,
          isRequest: true,
          sequence: 7,
        });
      }),
    );
  });

  it.each([0, 15, pduBytesMax + 1, 0xffffffff])('of %i octets end the connection', (length) => {
    const header = Buffer.alloc(16);
    header.writeUInt32BE(length, 0);
    expect(readAll([header])).toEqual({ pdus: [], fault: `a PDU cannot have ${length} octets` });
  });

  it('without a body, or without its NUL, are answers all the same', () => {
    const header = (length: number) => `000000${length.toString(16)}800000040000005800000001`;
    expect(readPdu(Buffer.from(header(16), 'hex'))).toMatchObject({ status: 0x58, identifier: '' });
    expect(readPdu(Buffer.from(`${header(18)}4142`, 'hex'))).toMatchObject({ identifier: 'AB' });
  });

  it('with a string that is longer than any are malformed', () => {
    const whole = writePdu({
      command: 'bind_transceiver',
      sequence: 1,
      systemId: 'a'.repeat(256),
      password: '',
      systemType: '',
    });
    expect(readPdu(whole)).toMatchObject({ command: 'malformed', detail: 'a string is too long' });
  });
});

describe('another implementation', () => {
  const message: ShortMessage = {
    source: { ton: 5, npi: 0, address: 'Postillion' },
    destination: { ton: 1, npi: 1, address: '491510000001' },
    esmClass: 0,
    validityPeriod: '',
    registeredDelivery: 1,
    dataCoding: 8,
    octets: Buffer.from('041f04400438', 'hex'),
    receiptedMessageId: 'A1',
    messageState: 2,
    messagePayload: null,
  };

  it('reads what we write', () => {
    const read = new smpp.PDU(writePdu({ command: 'submit_sm', sequence: 9, message }));
    expect(read).toMatchObject({
      command: 'submit_sm',
      sequence_number: 9,
      source_addr_ton: 5,
      source_addr: 'Postillion',
      dest_addr_npi: 1,
      destination_addr: '491510000001',
      registered_delivery: 1,
      data_coding: 8,
      short_message: { message: 'При' },
      receipted_message_id: 'A1',
      message_state: 2,
    });
  });

  it('writes what we read', () => {
    const written = new smpp.PDU('deliver_sm', {
      sequence_number: 9,
      source_addr_ton: 5,
      source_addr: 'Postillion',
      dest_addr_ton: 1,
      dest_addr_npi: 1,
      destination_addr: '491510000001',
      registered_delivery: 1,
      data_coding: 8,
      short_message: { message: 'При' },
      receipted_message_id: 'A1',
      message_state: 2,
      sc_interface_version: 0x34,
    }).toBuffer();
    expect(readPdu(written)).toEqual({ command: 'deliver_sm', sequence: 9, message });
  });

  it('writes long payloads that we read', () => {
    const payload = Buffer.alloc(10_000, 'x');
    const written = new smpp.PDU('deliver_sm', { data_coding: 3, message_payload: payload }).toBuffer();
    expect(readPdu(written)).toMatchObject({ message: { messagePayload: payload } });
  });
});
