import type { MessageKeeper } from '../messages/messages.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';

/** Campaigns that are not over keep their messages. They are found by the index campaigns_under_way. */
export const campaignsUnderWay: MessageKeeper = {
  isKept: (organizationId, messageId) =>
    toPredicate(
      `exists (
         select
         from campaigns c
         where c.organization_id = ${organizationId} and c.message_id = ${messageId}
           and c.status in ('queued', 'sending', 'paused') and c.deleted_at is null
       )`,
    ),
  areAnyKept: (isInRange) =>
    toPredicate(
      `exists (
         select
         from campaigns
         where status in ('queued', 'sending', 'paused') and deleted_at is null and ${isInRange}
       )`,
    ),
};
