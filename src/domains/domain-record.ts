import { type Findings, listIssues, noFinding } from './findings.ts';
import { type InstanceHosts, listExpectedRecords } from './records.ts';
import type { DomainRecord } from './schema.ts';
import { type DomainRow, settingsOf } from './store.ts';

/** A domain as the API shows it: what to publish, and what of it was there at the last check. */
export function showDomain(row: DomainRow, hosts: InstanceHosts): DomainRecord {
  const settings = settingsOf(row);
  const expected = settings === null ? [] : listExpectedRecords(settings, hosts);
  const findings: Findings = row.findings;
  // None are left where settings of the installation have changed since the last check.
  const issues = row.degraded_since === null ? [] : listIssues(expected, findings);
  const isDegraded = issues.length > 0;
  return {
    id: row.id,
    name: row.name,
    status: row.status,
    records: expected.map(({ kind, type, name, value, priority, isRequired }) => {
      const { status, found, checkedAt } = findings[kind] ?? noFinding;
      return {
        record: kind,
        type,
        name,
        value,
        priority,
        required: isRequired,
        status,
        found: [...found],
        last_checked_at: checkedAt,
      };
    }),
    return_path_subdomain: row.return_path_subdomain,
    tracking_subdomain: row.tracking_subdomain,
    open_tracking: row.open_tracking,
    click_tracking: row.click_tracking,
    health: {
      state: isDegraded ? 'degraded' : 'ok',
      since: isDegraded ? (row.degraded_since?.toISOString() ?? null) : null,
      issues,
    },
    last_checked_at: row.last_checked_at?.toISOString() ?? null,
    verified_at: row.verified_at?.toISOString() ?? null,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
