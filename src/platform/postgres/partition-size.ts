/** How much time a partition holds; smaller ones for more rows, so that the indexes of the present fit into memory. */
export const partitionSizes = ['month', 'week', 'day'] as const;

export type PartitionSize = (typeof partitionSizes)[number];

/**
 * Tables whose partitions are days whatever the setting says: what they hold is deleted after so many days, and a day is
 * dropped at once.
 */
export const tablesByDay: ReadonlySet<string> = new Set([
  'request_log',
  'webhook_attempts',
  'webhook_deliveries',
  'webhook_events',
]);
