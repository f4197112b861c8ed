import { expect, test } from 'vitest';
import type { CampaignRecipient } from '../messages/messages.ts';
import { emailCampaigns } from '../email/campaigns.ts';
import { explain, type Facts, outcomes } from './explanation.ts';
import { pushCampaigns } from '../push/campaigns.ts';
import { smsCampaigns } from '../sms/campaigns.ts';

const at = (day: number) => new Date(Date.UTC(2026, 10, day));

const { words } = emailCampaigns;

const campaign: Facts['campaign'] = {
  status: 'sending',
  scheduledAt: null,
  frozenAt: at(10),
  cancelledAt: null,
  pauseReason: null,
  failureReason: null,
  isPartlyFrozen: false,
  isCutOff: false,
};

const standing: NonNullable<Facts['standing']> = {
  createdAt: at(1),
  includedBy: [{ kind: 'list', name: 'News' }],
  excludedBy: [],
  hasAddress: true,
  isUnsubscribed: false,
  suppression: null,
};

const recipient: CampaignRecipient = {
  ordinal: 0,
  contact_id: '0198c0de-0000-7000-8000-000000000001',
  device_id: null,
  address: 'ann@example.com',
  status: 'sent',
  fate: 'pending',
  shownStatus: 'pending',
  status_at: at(11),
  drop_reason: null,
  handed_off_at: null,
  uncertain: false,
  failure_type: null,
  failure_class: null,
  smtp_code: null,
  enhanced_code: null,
  diagnostic: null,
  remote: null,
  opened_at: null,
  clicked_at: null,
};

function reasonFor(facts: Partial<Facts>): string {
  return explain({ words, campaign, standing, recipient: null, waiting: null, ...facts }).reason;
}

test('a refusal names who refused, and how', () => {
  const refused: CampaignRecipient = {
    ...recipient,
    shownStatus: 'bounced',
    failure_type: 'hard',
    failure_class: 'mailbox_not_found',
    smtp_code: 550,
    enhanced_code: '5.1.1',
    diagnostic: 'No such user',
    remote: 'mx.example.com',
  };
  expect(reasonFor({ recipient: refused })).toBe(
    'Is in the list “News”. Was refused on 2026-11-11T00:00:00.000Z because of the address, by mx.example.com (hard, mailbox_not_found): “550 5.1.1 No such user”.',
  );
});

test('whoever waits is told how many are before it, and why nothing moves', () => {
  const paused = { ...campaign, status: 'paused', pauseReason: 'quota_exceeded' } as const;
  expect(reasonFor({ campaign: paused, recipient, waiting: { countBefore: 12_304 } })).toBe(
    'Is in the list “News”. Waits to be handed off; 12,304 are before it. The campaign is paused, since the quota is used up.',
  );
});

test('a suppression is a reason for having been left out only if it is older than the audience', () => {
  const suppressedOn = (day: number) =>
    reasonFor({ standing: { ...standing, suppression: { reason: 'complaint', createdAt: at(day) } } });
  expect(suppressedOn(9)).toContain('Was excluded when the audience was frozen');
  expect(suppressedOn(11)).toContain('Was not in the audience when it was frozen');
});

test('a text arrives on a phone, and until that is known nobody claims it', () => {
  const sms = { words: smsCampaigns.words };
  const handedOff: CampaignRecipient = { ...recipient, handed_off_at: at(11) };
  const reasonOf = (more: Partial<CampaignRecipient>) =>
    reasonFor({ ...sms, recipient: { ...handedOff, ...more } });
  expect(reasonOf({ shownStatus: 'sent' })).toContain(
    'and the carrier took it; whether it arrived is not known yet.',
  );
  expect(reasonOf({ shownStatus: 'sent', uncertain: true })).toContain('the connection broke');
  expect(reasonOf({ shownStatus: 'delivered' })).toContain('and it arrived on the phone.');
  expect(reasonOf({ shownStatus: 'delayed' })).toContain(
    'by the carrier, and will be tried again for up to a day.',
  );
});

test('nothing comes before the hand-off that it followed, whatever the clock of a carrier says', () => {
  const arrived: CampaignRecipient = {
    ...recipient,
    shownStatus: 'delivered',
    handed_off_at: new Date(at(11).getTime() + 700),
    status_at: at(11),
  };
  const { steps } = explain({
    words: smsCampaigns.words,
    campaign,
    standing,
    recipient: arrived,
    waiting: null,
  });
  expect(steps.map(({ text }) => text)).toEqual([
    'The audience was frozen, with this contact in it.',
    'Was handed off.',
    'It arrived on the phone.',
  ]);
  expect(steps.at(-1)!.at).toEqual(at(11));
});

test('of many sets the first are named', () => {
  const includedBy = Array.from({ length: 7 }, (_, index) => ({ kind: 'tag', name: `T${index}` }) as const);
  expect(reasonFor({ recipient, standing: { ...standing, includedBy } })).toContain(
    'Is in the tag “T0”, the tag “T1”, the tag “T2”, the tag “T3”, the tag “T4” and 2 more.',
  );
});

test.each([emailCampaigns, smsCampaigns, pushCampaigns])(
  'on $channel every status and every drop has a sentence, whatever else is known',
  (channel) => {
    const dropReasons = [
      'invalid_domain',
      'no_mx',
      'null_mx',
      'disposable',
      'suppressed',
      'unreachable',
      'duplicate',
      'unsubscribed',
      'no_address',
      'contact_deleted',
    ] as const;
    const shown = outcomes.flatMap((outcome) =>
      outcome === 'excluded' || outcome === 'not_in_audience' ? [] : [{ shownStatus: outcome }],
    );
    const drops = dropReasons.map((reason) => ({ shownStatus: 'dropped', drop_reason: reason }) as const);
    for (const fate of [...shown, ...drops]) {
      for (const given of [standing, { ...standing, includedBy: [] }, null]) {
        if (fate.shownStatus === 'dropped' && !('drop_reason' in fate)) continue;
        const { reason, steps } = explain({
          words: channel.words,
          campaign,
          standing: given,
          recipient: { ...recipient, ...fate },
          waiting: null,
        });
        expect(reason).toMatch(/^[A-Z].*\. [A-Z].*[a-z”Z]\.$/);
        expect(steps.every(({ text }) => text.endsWith('.'))).toBe(true);
      }
    }
  },
);

test('before the audience is frozen, it says what would become of somebody', () => {
  const draft = { ...campaign, status: 'draft', frozenAt: null } as const;
  expect(reasonFor({ campaign: draft })).toBe(
    'Is in the list “News”, and would get it. The campaign is a draft.',
  );
  expect(reasonFor({ campaign: draft, standing: { ...standing, isUnsubscribed: true } })).toBe(
    'Would be excluded: is unsubscribed from email.',
  );
  const failed = { ...draft, status: 'failed', failureReason: 'Not ready when its time came.' } as const;
  expect(explain({ words, campaign: failed, standing, recipient: null, waiting: null })).toMatchObject({
    outcome: 'failed',
    reason: 'The campaign failed before it was sent to any contact. Not ready when its time came.',
  });
});

test('of a campaign that had begun before all were chosen, nobody is told that it went to nobody', () => {
  const begun = { ...campaign, frozenAt: null, isPartlyFrozen: true } as const;
  const cancelled = { ...begun, status: 'cancelled', cancelledAt: at(12) } as const;
  expect(reasonFor({ campaign: cancelled })).toBe(
    'The campaign was cancelled on 2026-11-12T00:00:00.000Z before this contact could be chosen.',
  );
  const failed = { ...begun, status: 'failed', failureReason: 'The sender is gone.' } as const;
  expect(reasonFor({ campaign: failed })).toBe(
    'The campaign failed before this contact could be chosen. The sender is gone.',
  );
});

test('whoever had no turn when the campaign was cancelled is told so', () => {
  const cancelled = { ...campaign, status: 'cancelled', cancelledAt: at(12), isCutOff: true } as const;
  expect(reasonFor({ campaign: cancelled })).toBe(
    'Is in the list “News”. The campaign was cancelled on 2026-11-12T00:00:00.000Z before its turn.',
  );
});
