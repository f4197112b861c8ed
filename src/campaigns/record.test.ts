import { expect, test } from 'vitest';
import { emailCampaigns } from '../email/campaigns.ts';
import { showCampaign } from './record.ts';

type Row = Parameters<typeof showCampaign>[1];
type Sums = NonNullable<Parameters<typeof showCampaign>[2]['sums']>;

const at = (minute: number) => new Date(Date.UTC(2026, 10, 20, 12, minute));

const row: Row = {
  organization_id: '01930000-0000-7000-8000-000000000001',
  channel: 'email',
  id: '01930000-0000-7000-8000-000000000002',
  name: 'News',
  status: 'cancelled',
  content: {},
  list_ids: [],
  tag_ids: [],
  segment_ids: [],
  exclude_list_ids: [],
  exclude_tag_ids: [],
  exclude_segment_ids: [],
  scheduled_at: null,
  queued_at: at(0),
  started_at: null,
  completed_at: null,
  cancelled_at: at(1),
  pause_reason: null,
  failure_reason: null,
  message_id: '01930000-0000-7000-8000-000000000003',
  frozen_at: at(0),
  frozen_through: null,
  first_frozen_through: null,
  rest_frozen_at: null,
  expanded: 10,
  audience: 10,
  excluded_unsubscribed: 0,
  excluded_suppressed: 0,
  excluded_no_address: 0,
  excluded_duplicate: 0,
  created_at: at(0),
  updated_at: at(1),
};

const sums = (handedOff: number): Sums => ({
  handedOff,
  delayed: 0,
  delivered: handedOff,
  bounced: 0,
  failed: 0,
  complained: 0,
  unsubscribed: 0,
  opened: 0,
  clicked: 0,
  dropped: 0,
  uncertain: 0,
  unconfirmed: 0,
});

const startOf = (more: Partial<Row>, handedOff: number) =>
  showCampaign(
    emailCampaigns,
    { ...row, ...more },
    { sums: sums(handedOff), conversions: undefined },
    { isListed: true },
  ).started_at;

test('a campaign whose mail was in flight at its end has a start, although that was counted afterwards', () => {
  expect(startOf({}, 1)).toBe(at(1).toISOString());
  expect(startOf({ status: 'failed', cancelled_at: null, completed_at: at(2) }, 3)).toBe(at(2).toISOString());
  expect(startOf({ started_at: at(0) }, 3)).toBe(at(0).toISOString());
});

test('a campaign of which nothing was handed off has none', () => {
  expect(startOf({}, 0)).toBeNull();
  expect(startOf({ status: 'failed', cancelled_at: null, completed_at: at(2) }, 0)).toBeNull();
});
