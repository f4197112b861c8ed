import type { DeferReason } from '../../../outcome.ts';
import type { SmsFailure } from '../../provider.ts';

/**
 * What a command_status (SMPP 3.4 §5.1.3, and what 5.0 §4.7.6 adds) says about the text that was to be submitted.
 * `rejected` is what would be refused again; what is not listed, as every code of a provider's own from 0x400 on, is
 * temporary and `other`. What is about us and not about the text (we are not bound, the service is away) is
 * `provider_unavailable`.
 */
export type StatusMeaning =
  | { name: string; kind: 'deferred'; reason: DeferReason<SmsFailure> }
  | { name: string; kind: 'rejected'; reason: SmsFailure };

export const statuses = {
  ok: 0x00,
  invalidLength: 0x02,
  invalidCommand: 0x03,
  notBound: 0x04,
  queueFull: 0x14,
  throttled: 0x58,
  /** "Temporary application error": asks the message centre to deliver again. */
  tryAgain: 0x64,
} as const;

const deferred: readonly (readonly [code: number, name: string, reason: DeferReason<SmsFailure>])[] = [
  [0x03, 'ESME_RINVCMDID', 'provider_unavailable'],
  [0x04, 'ESME_RINVBNDSTS', 'provider_unavailable'],
  [0x05, 'ESME_RALYBND', 'provider_unavailable'],
  [0x08, 'ESME_RSYSERR', 'other'],
  [0x0d, 'ESME_RBINDFAIL', 'provider_unavailable'],
  [0x0e, 'ESME_RINVPASWD', 'provider_unavailable'],
  [0x0f, 'ESME_RINVSYSID', 'provider_unavailable'],
  [0x14, 'ESME_RMSGQFUL', 'rate_limited'],
  [0x45, 'ESME_RSUBMITFAIL', 'other'],
  [0x53, 'ESME_RINVSYSTYP', 'provider_unavailable'],
  [0x58, 'ESME_RTHROTTLED', 'rate_limited'],
  [0x64, 'ESME_RX_T_APPN', 'other'],
  [0xfe, 'ESME_RDELIVERYFAILURE', 'other'],
  [0xff, 'ESME_RUNKNOWNERR', 'other'],
  [0x102, 'ESME_RSERTYPUNAVAIL', 'provider_unavailable'],
];

const rejected: readonly (readonly [code: number, name: string, reason: SmsFailure])[] = [
  [0x01, 'ESME_RINVMSGLEN', 'invalid_message'],
  [0x02, 'ESME_RINVCMDLEN', 'invalid_message'],
  [0x06, 'ESME_RINVPRTFLG', 'invalid_message'],
  [0x07, 'ESME_RINVREGDLVFLG', 'invalid_message'],
  [0x0a, 'ESME_RINVSRCADR', 'sender_rejected'],
  [0x0b, 'ESME_RINVDSTADR', 'unknown_subscriber'],
  [0x15, 'ESME_RINVSERTYP', 'sender_rejected'],
  [0x33, 'ESME_RINVNUMDESTS', 'invalid_message'],
  [0x40, 'ESME_RINVDESTFLAG', 'invalid_message'],
  [0x42, 'ESME_RINVSUBREP', 'invalid_message'],
  [0x43, 'ESME_RINVESMCLASS', 'invalid_message'],
  [0x48, 'ESME_RINVSRCTON', 'sender_rejected'],
  [0x49, 'ESME_RINVSRCNPI', 'sender_rejected'],
  [0x50, 'ESME_RINVDSTTON', 'invalid_message'],
  [0x51, 'ESME_RINVDSTNPI', 'invalid_message'],
  [0x54, 'ESME_RINVREPFLAG', 'invalid_message'],
  [0x61, 'ESME_RINVSCHED', 'invalid_message'],
  [0x62, 'ESME_RINVEXPIRY', 'invalid_message'],
  [0x63, 'ESME_RINVDFTMSGID', 'invalid_message'],
  [0x65, 'ESME_RX_P_APPN', 'other'],
  [0x66, 'ESME_RX_R_APPN', 'other'],
  [0xc0, 'ESME_RINVTLVSTREAM', 'invalid_message'],
  [0xc1, 'ESME_RTLVNOTALLWD', 'invalid_message'],
  [0xc2, 'ESME_RINVTLVLEN', 'invalid_message'],
  [0xc3, 'ESME_RMISSINGTLV', 'invalid_message'],
  [0xc4, 'ESME_RINVTLVVAL', 'invalid_message'],
  [0x100, 'ESME_RSERTYPUNAUTH', 'sender_rejected'],
  [0x101, 'ESME_RPROHIBITED', 'sender_rejected'],
  [0x103, 'ESME_RSERTYPDENIED', 'sender_rejected'],
  [0x104, 'ESME_RINVDCS', 'invalid_message'],
];

const meanings = new Map<number, StatusMeaning>([
  ...deferred.map(([code, name, reason]) => [code, { name, kind: 'deferred', reason }] as const),
  ...rejected.map(([code, name, reason]) => [code, { name, kind: 'rejected', reason }] as const),
]);

/** What a command_status other than zero means. */
export function readStatus(status: number): StatusMeaning {
  return (
    meanings.get(status) ?? {
      name: `command_status 0x${status.toString(16).padStart(8, '0')}`,
      kind: 'deferred',
      reason: 'other',
    }
  );
}
