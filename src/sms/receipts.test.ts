import { expect, test } from 'vitest';
import { toProviderReport } from './receipts.ts';

const receipt = {
  providerMessageId: '4f2a',
  reference: null,
  to: null,
  senderName: null,
  diagnostic: 'No',
  failure: null,
} as const;

test.each([
  ['sent', null, 'sent', null],
  ['delivered', null, 'delivered', null],
  // The carrier has answered for the number.
  ['undelivered', 'blocked', 'bounced', 'blocked'],
  ['failed', 'unreachable', 'failed', 'unreachable'],
  // Whatever the provider gives as the reason.
  ['expired', 'other', 'failed', 'expired'],
] as const)(
  'a receipt that says %s for the reason %s is a report of %s for %s',
  (told, why, status, failure) => {
    const report = toProviderReport({
      ...receipt,
      status: told,
      failure: why,
      finding: 'a finding' as never,
    });
    expect(report).toEqual({ ...receipt, status, failure });
  },
);
