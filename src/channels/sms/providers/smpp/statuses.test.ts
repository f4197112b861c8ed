import smpp from 'smpp';
import { describe, expect, it } from 'vitest';
import { readStatus } from './statuses.ts';

describe('readStatus', () => {
  it.each([
    ['ESME_RINVMSGLEN', 'rejected', 'invalid_message'],
    ['ESME_RINVCMDLEN', 'rejected', 'invalid_message'],
    ['ESME_RINVCMDID', 'deferred', 'provider_unavailable'],
    ['ESME_RINVBNDSTS', 'deferred', 'provider_unavailable'],
    ['ESME_RALYBND', 'deferred', 'provider_unavailable'],
    ['ESME_RINVPRTFLG', 'rejected', 'invalid_message'],
    ['ESME_RINVREGDLVFLG', 'rejected', 'invalid_message'],
    ['ESME_RSYSERR', 'deferred', 'other'],
    ['ESME_RINVSRCADR', 'rejected', 'sender_rejected'],
    ['ESME_RINVDSTADR', 'rejected', 'unknown_subscriber'],
    ['ESME_RBINDFAIL', 'deferred', 'provider_unavailable'],
    ['ESME_RINVPASWD', 'deferred', 'provider_unavailable'],
    ['ESME_RINVSYSID', 'deferred', 'provider_unavailable'],
    ['ESME_RMSGQFUL', 'deferred', 'rate_limited'],
    ['ESME_RINVSERTYP', 'rejected', 'sender_rejected'],
    ['ESME_RINVNUMDESTS', 'rejected', 'invalid_message'],
    ['ESME_RINVDESTFLAG', 'rejected', 'invalid_message'],
    ['ESME_RINVSUBREP', 'rejected', 'invalid_message'],
    ['ESME_RINVESMCLASS', 'rejected', 'invalid_message'],
    ['ESME_RSUBMITFAIL', 'deferred', 'other'],
    ['ESME_RINVSRCTON', 'rejected', 'sender_rejected'],
    ['ESME_RINVSRCNPI', 'rejected', 'sender_rejected'],
    ['ESME_RINVDSTTON', 'rejected', 'invalid_message'],
    ['ESME_RINVDSTNPI', 'rejected', 'invalid_message'],
    ['ESME_RINVSYSTYP', 'deferred', 'provider_unavailable'],
    ['ESME_RINVREPFLAG', 'rejected', 'invalid_message'],
    ['ESME_RTHROTTLED', 'deferred', 'rate_limited'],
    ['ESME_RINVSCHED', 'rejected', 'invalid_message'],
    ['ESME_RINVEXPIRY', 'rejected', 'invalid_message'],
    ['ESME_RINVDFTMSGID', 'rejected', 'invalid_message'],
    ['ESME_RX_T_APPN', 'deferred', 'other'],
    ['ESME_RX_P_APPN', 'rejected', 'other'],
    ['ESME_RX_R_APPN', 'rejected', 'other'],
    ['ESME_RINVTLVSTREAM', 'rejected', 'invalid_message'],
    ['ESME_RTLVNOTALLWD', 'rejected', 'invalid_message'],
    ['ESME_RINVTLVLEN', 'rejected', 'invalid_message'],
    ['ESME_RMISSINGTLV', 'rejected', 'invalid_message'],
    ['ESME_RINVTLVVAL', 'rejected', 'invalid_message'],
    ['ESME_RDELIVERYFAILURE', 'deferred', 'other'],
    ['ESME_RUNKNOWNERR', 'deferred', 'other'],
    ['ESME_RSERTYPUNAUTH', 'rejected', 'sender_rejected'],
    ['ESME_RPROHIBITED', 'rejected', 'sender_rejected'],
    ['ESME_RSERTYPUNAVAIL', 'deferred', 'provider_unavailable'],
    ['ESME_RSERTYPDENIED', 'rejected', 'sender_rejected'],
    ['ESME_RINVDCS', 'rejected', 'invalid_message'],
  ])('knows %s, by the code that others know it by, as %s for %s', (name, kind, reason) => {
    expect(readStatus(smpp.errors[name]!)).toEqual({ name, kind, reason });
  });

  it.each([0x09, 0x0c, 0x400, 0xffffffff])('puts off for %i, which is not documented', (status) => {
    expect(readStatus(status)).toMatchObject({ kind: 'deferred', reason: 'other' });
  });
});
