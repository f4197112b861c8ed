import type { AddressInfo } from 'node:net';
import smpp from 'smpp';
import type { Pdu, Session } from 'smpp';
import { certificateForTests, privateKeyForTests } from './certificate-for-tests.ts';

/**
 * A message centre on loopback, made of the npm library `smpp`, so that our own reading and writing of SMPP is
 * checked against another implementation. Its answers and receipts depend on the number of the text, or on a script.
 * It writes every text down before it answers.
 */

/** `lost` and `silent` have taken the text: the connection is cut, or nothing is said. */
export type SmscAnswer = 'accepted' | 'lost' | 'silent' | 'dropped_after_answer' | { status: number };

/** What a connection is bound as: a transmitter gets no deliveries, and a receiver may submit nothing. */
export type SmscRole = 'transmitter' | 'receiver' | 'transceiver';

export type SmscReceipt = {
  /** As appendix B of SMPP 3.4 has it: DELIVRD, UNDELIV, EXPIRED, REJECTD, … */
  stat: string;
  err?: string;
  /** `held` until `releaseReceipts`. */
  when?: 'after_answer' | 'before_answer' | 'held';
  times?: number;
};

export type SmscSubmit = {
  /** From 1, in the order of arrival. */
  number: number;
  /** Of the connection, from 1. */
  connection: number;
  from: string;
  to: string;
  fromPlan: string;
  toPlan: string;
  esmClass: number;
  dataCoding: number;
  isReceiptWanted: boolean;
  validityPeriod: unknown;
  text: string;
  /** The header that numbers the parts of a long text, in hexadecimal; null where there is none. */
  header: string | null;
  messageId: string;
};

export type SmscOptions = {
  port?: number;
  isSecure?: boolean;
  /** Null takes everybody. */
  credentials?: { systemId: string; password: string } | null;
  /** The command_status for the bind of that number, from 1; zero takes it, and 'silent' says nothing. */
  bind?: (bindNumber: number, role: SmscRole) => number | 'silent';
  /** Undefined leaves it to the number: see `smscNumbers`. */
  answer?: (submit: SmscSubmit) => SmscAnswer | Promise<SmscAnswer> | undefined;
  receipt?: (submit: SmscSubmit) => SmscReceipt | null | undefined;
  /** How it names a text, and how it does so in receipts. */
  messageId?: (number: number) => string;
  receiptId?: (messageId: string) => string;
  /** Puts what a receipt says into optional parameters, too. */
  hasReceiptParameters?: boolean;
  /** Called before the answer. */
  onSubmit?: (submit: SmscSubmit) => void;
  /** How many texts are kept for inspection; all are counted. */
  submitsKeptMax?: number;
};

export type SmscText = { from: string; to: string; text: string };

export type Smsc = {
  port: number;
  submits: SmscSubmit[];
  counts: {
    binds: number;
    submits: number;
    accepted: number;
    receiptsAnswered: number;
    underWayMost: number;
  };
  /** Every command that came, except submit_sm. */
  commands: string[];
  /** What was taken, each text put together from its parts. */
  texts: () => SmscText[];
  openConnections: () => number;
  /** Resolves when the condition holds; it is evaluated after every event here. */
  until: (isTrue: () => boolean) => Promise<void>;
  /** Delivers a message as soon as a connection is bound for that; resolves with the command_status of the answer. */
  deliver: (fields: Record<string, unknown>) => Promise<number>;
  releaseReceipts: () => void;
  /** Writes any octets to every connection. */
  write: (octets: Buffer) => void;
  /** Resolves when everything that was sent before, on any connection, has been read. */
  enquire: () => Promise<void>;
  unbind: () => Promise<void>;
  /** While true, everything is read and nothing answered. */
  isDeaf: boolean;
  /** Cuts all connections, or those that are bound in that role. */
  drop: (role?: SmscRole) => void;
  close: () => Promise<void>;
};

/** What becomes of texts, by number. */
export const smscNumbers = {
  accepted: '+491510000001',
  throttled: '+491510000002',
  queueFull: '+491510000003',
  invalidDestination: '+491510000004',
  systemError: '+491510000005',
  silent: '+491510000006',
  lost: '+491510000007',
  droppedAfterAnswer: '+491510000008',
  undelivered: '+491510000011',
  expired: '+491510000012',
  rejected: '+491510000013',
  heldReceipt: '+491510000014',
  receiptBeforeAnswer: '+491510000015',
  receiptTwice: '+491510000016',
} as const;

const answersByNumber: Readonly<Record<string, SmscAnswer>> = {
  [smscNumbers.throttled]: { status: 0x58 },
  [smscNumbers.queueFull]: { status: 0x14 },
  [smscNumbers.invalidDestination]: { status: 0x0b },
  [smscNumbers.systemError]: { status: 0x08 },
  [smscNumbers.silent]: 'silent',
  [smscNumbers.lost]: 'lost',
  [smscNumbers.droppedAfterAnswer]: 'dropped_after_answer',
};

const receiptsByNumber: Readonly<Record<string, SmscReceipt>> = {
  [smscNumbers.undelivered]: { stat: 'UNDELIV', err: '027' },
  [smscNumbers.expired]: { stat: 'EXPIRED', err: '004' },
  [smscNumbers.rejected]: { stat: 'REJECTD', err: '011' },
  [smscNumbers.heldReceipt]: { stat: 'DELIVRD', when: 'held' },
  [smscNumbers.receiptBeforeAnswer]: { stat: 'DELIVRD', when: 'before_answer' },
  [smscNumbers.receiptTwice]: { stat: 'DELIVRD', times: 2 },
};

const statesByWord: Readonly<Record<string, number>> = { DELIVRD: 2, EXPIRED: 3, UNDELIV: 5, REJECTD: 8 };

type Connection = { number: number; session: Session; role: SmscRole | null; underWay: number };

export async function startSmsc(options: SmscOptions = {}): Promise<Smsc> {
  const submits: SmscSubmit[] = [];
  const commands: string[] = [];
  const counts = { binds: 0, submits: 0, accepted: 0, receiptsAnswered: 0, underWayMost: 0 };
  const connections = new Set<Connection>();
  const heldReceipts: (() => void)[] = [];
  let expectations: { isTrue: () => boolean; resolve: () => void }[] = [];
  let connectionsCount = 0;

  const note = () => {
    const met = expectations.filter(({ isTrue }) => isTrue());
    expectations = expectations.filter((expectation) => !met.includes(expectation));
    for (const { resolve } of met) resolve();
  };

  const server = smpp.createServer(
    options.isSecure ? { key: privateKeyForTests, cert: certificateForTests } : {},
    (session) => {
      connectionsCount += 1;
      const connection: Connection = { number: connectionsCount, session, role: null, underWay: 0 };
      connections.add(connection);
      session.socket.setNoDelay(true);
      session.on('error', () => session.destroy());
      session.on('close', () => {
        connections.delete(connection);
        note();
      });
      session.on('pdu', (pdu: Pdu) => {
        if (pdu.command !== 'submit_sm' && commands.length < 10_000) commands.push(pdu.command);
        if (!smsc.isDeaf) take(connection, pdu);
        note();
      });
      note();
    },
  );

  function take(connection: Connection, pdu: Pdu): void {
    const { session } = connection;
    switch (pdu.command) {
      case 'bind_transmitter':
      case 'bind_receiver':
      case 'bind_transceiver': {
        counts.binds += 1;
        // The command is one of these three.
        const role = pdu.command.replace('bind_', '') as SmscRole;
        const { credentials = null } = options;
        const isKnown =
          credentials === null ||
          (pdu.system_id === credentials.systemId && pdu.password === credentials.password);
        const status = options.bind?.(counts.binds, role) ?? (isKnown ? 0 : 0x0e);
        if (status === 'silent') return;
        connection.role = status === 0 ? role : null;
        session.send(pdu.response({ command_status: status, system_id: 'smsc' }));
        return;
      }
      case 'submit_sm':
        if (connection.role === null || connection.role === 'receiver') {
          session.send(pdu.response({ command_status: 0x04 }));
        } else void takeSubmit(connection, pdu);
        return;
      case 'enquire_link':
        session.send(pdu.response());
        return;
      case 'unbind':
        connection.role = null;
        session.send(pdu.response());
        session.close();
        return;
      default:
    }
  }

  function isHearing(connection: Connection): boolean {
    return connections.has(connection) && connection.role !== null && connection.role !== 'transmitter';
  }

  function hearers(): Connection[] {
    return [...connections].filter(isHearing);
  }

  async function takeSubmit(connection: Connection, pdu: Pdu): Promise<void> {
    const { session } = connection;
    counts.submits += 1;
    connection.underWay += 1;
    counts.underWayMost = Math.max(counts.underWayMost, connection.underWay);
    const submit = readSubmit(pdu, counts.submits, connection.number, options);
    const scripted = options.answer?.(submit);
    const answer =
      (scripted instanceof Promise ? await scripted : scripted) ?? answersByNumber[submit.to] ?? 'accepted';
    connection.underWay -= 1;
    if (typeof answer !== 'object') {
      counts.accepted += 1;
      if (submits.length < (options.submitsKeptMax ?? 10_000)) submits.push(submit);
      options.onSubmit?.(submit);
    }
    const asked = options.receipt?.(submit);
    const receipt = asked === undefined ? (receiptsByNumber[submit.to] ?? { stat: 'DELIVRD' }) : asked;
    const isTold = receipt !== null && submit.isReceiptWanted && typeof answer !== 'object';
    if (isTold && receipt.when === 'before_answer') tell(connection, submit, receipt);
    if (typeof answer === 'object') {
      session.send(pdu.response({ command_status: answer.status }));
    } else if (answer === 'lost') {
      session.destroy();
    } else if (answer !== 'silent') {
      session.send(pdu.response({ message_id: submit.messageId }));
    }
    if (answer === 'dropped_after_answer') session.close();
    if (isTold && receipt.when === 'held') {
      heldReceipts.push(() => {
        tell(connection, submit, receipt);
      });
    } else if (isTold && receipt.when !== 'before_answer') {
      tell(connection, submit, receipt);
    }
    note();
  }

  /** On the connection that the text came on if that can be, or on another, as soon as there is one. */
  function tell(connection: Connection, submit: SmscSubmit, receipt: SmscReceipt): void {
    const { stat, err = '000', times = 1 } = receipt;
    const hearer = isHearing(connection) ? connection : hearers()[0];
    if (hearer === undefined) {
      void smsc
        .until(() => hearers().length > 0)
        .then(() => {
          tell(connection, submit, receipt);
        });
      return;
    }
    const id = options.receiptId?.(submit.messageId) ?? submit.messageId;
    const text = `id:${id} sub:001 dlvrd:001 submit date:2611220101 done date:2611220102 stat:${stat} err:${err} text:${submit.text.slice(0, 20)}`;
    for (let time = 0; time < times; time += 1) {
      hearer.session.deliver_sm(
        {
          source_addr_ton: 1,
          source_addr_npi: 1,
          source_addr: submit.to.replace('+', ''),
          destination_addr: submit.from,
          esm_class: 4,
          data_coding: 3,
          short_message: text,
          ...(options.hasReceiptParameters
            ? { receipted_message_id: id, message_state: statesByWord[stat] }
            : {}),
        },
        () => {
          counts.receiptsAnswered += 1;
        },
      );
    }
  }

  await new Promise<void>((resolve) => {
    server.listen(options.port ?? 0, '127.0.0.1', resolve);
  });
  const bound = () => [...connections].filter(({ role }) => role !== null).map(({ session }) => session);
  const smsc: Smsc = {
    port: (server.address() as AddressInfo).port,
    submits,
    counts,
    commands,
    isDeaf: false,
    texts: () => joinTexts(submits),
    openConnections: () => connections.size,
    until: (isTrue) =>
      isTrue()
        ? Promise.resolve()
        : new Promise((resolve) => {
            expectations.push({ isTrue, resolve });
          }),
    deliver: async (fields) => {
      await smsc.until(() => hearers().length > 0);
      return new Promise((resolve) => {
        hearers()[0]!.session.deliver_sm(fields, (answer) => {
          resolve(answer.command_status);
        });
      });
    },
    releaseReceipts: () => {
      for (const release of heldReceipts.splice(0)) release();
    },
    write: (octets) => {
      for (const session of bound()) session.socket.write(octets);
    },
    enquire: async () => {
      await Promise.all(
        bound().map(
          (session) =>
            new Promise<void>((resolve) => {
              session.enquire_link(() => {
                resolve();
              });
            }),
        ),
      );
    },
    unbind: () =>
      new Promise((resolve) => {
        bound()[0]!.unbind(() => {
          resolve();
        });
      }),
    drop: (dropped) => {
      for (const { role, session } of connections) {
        if (dropped === undefined || role === dropped) session.destroy();
      }
    },
    close: async () => {
      smsc.drop();
      await new Promise((resolve) => {
        server.close(resolve);
      });
    },
  };
  return smsc;
}

function readSubmit(
  pdu: Pdu,
  number: number,
  connection: number,
  { messageId = (count) => `M${count}` }: SmscOptions,
): SmscSubmit {
  // The library's own names and shapes.
  const fields = pdu as unknown as {
    source_addr: string;
    source_addr_ton: number;
    source_addr_npi: number;
    destination_addr: string;
    dest_addr_ton: number;
    dest_addr_npi: number;
    esm_class: number;
    data_coding: number;
    registered_delivery: number;
    validity_period: unknown;
    short_message: { message: string; udh?: Buffer[] };
  };
  const header = fields.short_message.udh?.map((element) => element.toString('hex')).join(' ') ?? null;
  return {
    number,
    connection,
    from: fields.source_addr,
    to: `+${fields.destination_addr}`,
    fromPlan: `${fields.source_addr_ton}/${fields.source_addr_npi}`,
    toPlan: `${fields.dest_addr_ton}/${fields.dest_addr_npi}`,
    esmClass: fields.esm_class,
    dataCoding: fields.data_coding,
    isReceiptWanted: (fields.registered_delivery & 1) === 1,
    validityPeriod: fields.validity_period,
    text: fields.short_message.message,
    header,
    messageId: messageId(number),
  };
}

/** As a phone would: parts with one sender, number and reference, when the last is there. */
function joinTexts(submits: readonly SmscSubmit[]): SmscText[] {
  const texts: SmscText[] = [];
  const open = new Map<string, (string | undefined)[]>();
  for (const { from, to, text, header } of submits) {
    const [, reference, count, number] = /^0003(..)(..)(..)$/.exec(header ?? '') ?? [];
    if (reference === undefined || count === undefined || number === undefined) {
      texts.push({ from, to, text });
      continue;
    }
    const key = [from, to, reference, count].join(' ');
    const parts = open.get(key) ?? Array.from<string | undefined>({ length: parseInt(count, 16) });
    open.set(key, parts);
    parts[parseInt(number, 16) - 1] = text;
    if (parts.includes(undefined)) continue;
    open.delete(key);
    texts.push({ from, to, text: parts.join('') });
  }
  return texts;
}
