import type { Log } from '../../../../platform/log.ts';
import type { SmsIntake } from '../../provider.ts';
import { InboundTexts, isText } from './inbound.ts';
import type { ShortMessage } from './pdu.ts';
import { isAcknowledgement, isReceipt, readReceipt } from './receipts.ts';
import type { ReceiptTools } from './receipts.ts';
import { statuses } from './statuses.ts';

/** Receipts and texts that the message centre delivers to us. It forgets each as soon as we acknowledge it. */

export type Deliveries = {
  /** Resolves with the command_status to answer, once its content is stored or could not be. */
  take: (message: ShortMessage) => Promise<number>;
  /** Resolves when nothing is being stored any more. */
  whenIdle: () => Promise<void>;
};

/** Providers have a window as we do. Beyond this they are asked to deliver again later. */
const underWayMax = 1_000;

export function createDeliveries(tools: ReceiptTools & { log: Log; intake: SmsIntake }): Deliveries {
  const { clock, country, log, intake } = tools;
  const inbound = new InboundTexts(clock, country, (text) => intake.takeInbound(text));
  const underWay = new Set<Promise<number>>();

  const route = async (message: ShortMessage): Promise<void> => {
    if (isReceipt(message)) {
      const receipt = await readReceipt(tools, message);
      if (receipt === null) log.warn({ esmClass: message.esmClass }, 'smpp: a receipt that cannot be read');
      else await intake.takeReceipt(receipt);
    } else if (isAcknowledgement(message)) {
      log.debug({ esmClass: message.esmClass }, 'smpp: an acknowledgement that was not asked for');
    } else if (isText(message)) {
      await inbound.add(message);
    } else {
      log.warn({ dataCoding: message.dataCoding }, 'smpp: a message that is no text');
    }
  };

  const takeOne = async (message: ShortMessage): Promise<number> => {
    try {
      await route(message);
      return statuses.ok;
    } catch (error) {
      log.warn({ err: error }, 'smpp: what was delivered could not be stored');
      return statuses.tryAgain;
    }
  };

  return {
    take: async (message) => {
      if (underWay.size >= underWayMax) return statuses.tryAgain;
      const taking = takeOne(message);
      underWay.add(taking);
      const status = await taking;
      underWay.delete(taking);
      return status;
    },
    whenIdle: async () => {
      inbound.flush();
      await Promise.all(underWay);
    },
  };
}
