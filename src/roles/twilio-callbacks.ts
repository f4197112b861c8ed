import {
  readInboundCallback,
  readStatusCallback,
  verifyTwilioSignature,
} from '../channels/sms/providers/twilio/callbacks.ts';
import type { SmsIntake } from '../channels/sms/sms.ts';
import { readReportToken } from '../messages/messages.ts';
import { respondPart } from '../platform/http/page-response.ts';
import type { WebPage, PageRequest, PageResponse } from '../platform/http/route.ts';
import type { Log } from '../platform/log.ts';
import type { Secrets } from '../platform/secrets.ts';

export type TwilioCallbackTools = {
  authToken: string;
  /** As Twilio was given it, without a slash at the end: it signs the address that it was given. */
  publicUrl: string;
  secrets: Secrets;
  log: Log;
  intake: SmsIntake;
};

export const twilioPaths = { status: '/callbacks/twilio/status/', inbound: '/callbacks/twilio/inbound' };

/** A text of 1,600 characters, each of them three octets of nine, and some twenty other fields. */
const formBytesMax = 32_768;

/** Where Twilio tells what became of texts, and of texts that came in. Nothing is believed without its signature. */
export function twilioCallbacks(tools: TwilioCallbackTools): WebPage[] {
  return [
    {
      method: 'POST',
      path: `${twilioPaths.status}:token`,
      formBytesMax,
      handle: async (request) => {
        const { token = '' } = request.params;
        if (!isSigned(tools, request, `${twilioPaths.status}${token}`)) return respond(403);
        const reference = readReportToken(tools.secrets, token);
        const receipt = readStatusCallback(request.form);
        return take(tools, async () => {
          if (reference !== null && receipt !== null)
            await tools.intake.takeReceipt({ ...receipt, reference });
        });
      },
    },
    {
      method: 'POST',
      path: twilioPaths.inbound,
      formBytesMax,
      handle: async (request) => {
        if (!isSigned(tools, request, twilioPaths.inbound)) return respond(403);
        const inbound = readInboundCallback(request.form);
        return take(tools, async () => {
          if (inbound !== null) await tools.intake.takeInbound(inbound);
        });
      },
    },
  ];
}

function isSigned(
  { authToken, publicUrl }: TwilioCallbackTools,
  request: PageRequest,
  path: string,
): boolean {
  const { form, header } = request;
  return verifyTwilioSignature(authToken, `${publicUrl}${path}`, form, header('x-twilio-signature'));
}

/** Twilio tells again what was answered with 5xx, where its fallback says so. */
async function take({ log }: TwilioCallbackTools, work: () => Promise<void>): Promise<PageResponse> {
  try {
    await work();
    return respond(204);
  } catch (cause) {
    log.warn({ err: cause }, 'what Twilio told could not be stored');
    return respond(503);
  }
}

function respond(statusCode: number): PageResponse {
  return { ...respondPart('text/plain; charset=utf-8', '', { cacheControl: 'no-store' }), statusCode };
}
