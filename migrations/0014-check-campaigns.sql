-- Owner: messages, audience. Checks the rows that were there before 0013.
-- Locks: share update exclusive, which lets everybody read and write. The previous release: may run beside it.

alter table messages validate constraint messages_recipient_count_check;
alter table recipients validate constraint recipients_drop_reason_check;
alter table delivery_queue validate constraint delivery_queue_lane_check;
alter table holds validate constraint holds_held_kind_check;
