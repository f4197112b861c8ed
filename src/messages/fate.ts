import type { FailureClass } from '../channels/outcome.ts';
import type { FateRow } from './store.ts';

/** The fields of a recipient's outcome, for messages of all channels. */
export function showFate(row: FateRow) {
  return {
    uncertain: row.uncertain,
    bounce:
      row.failure_type === null
        ? null
        : {
            type: row.failure_type,
            class: row.failure_class as FailureClass, // Written by deliver.ts from the same union.
            smtp_code: row.smtp_code,
            enhanced_code: row.enhanced_code,
            diagnostic: row.diagnostic,
            remote_mta: row.remote,
          },
    opened_at: row.opened_at?.toISOString() ?? null,
    clicked_at: row.clicked_at?.toISOString() ?? null,
  };
}
