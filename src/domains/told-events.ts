import type { Connection } from '../platform/postgres/database.ts';
import { describeBy, type DescribeEvents, type EventType, logEvents } from '../webhooks/webhooks.ts';
import { showDomain } from './domain-record.ts';
import type { InstanceHosts } from './records.ts';
import { type DomainKey, findDomains } from './store.ts';

type DomainEventType = Extract<EventType, `domain.${string}`>;

/** Tells programs what became of a domain, in the transaction that writes it. */
export async function logDomain(
  connection: Connection,
  { organizationId, id }: DomainKey,
  type: DomainEventType,
  at: Date,
): Promise<void> {
  await logEvents(connection, [
    { organizationId, type, at, ofCampaign: false, subjectId: id, ordinal: null, facts: null },
  ]);
}

/** What programs are told of domains: their record as the API has it by then. */
export function createDomainDescriber(hosts: InstanceHosts): DescribeEvents {
  return describeBy(findDomains, (row) => ({ object: 'domain', ...showDomain(row, hosts) }));
}
