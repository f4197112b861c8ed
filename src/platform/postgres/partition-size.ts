/** How much time a partition holds; smaller ones for more rows, so that the indexes of the present fit into memory. */
export const partitionSizes = ['month', 'week', 'day'] as const;

export type PartitionSize = (typeof partitionSizes)[number];
