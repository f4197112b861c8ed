import type { Command } from 'commander';
import { type EventImportOutcome, importEvents } from '../events/events.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { addImportCommand, type ImportArguments } from './imports.ts';
import { formatCount } from './progress.ts';

/** `events import`: as `contacts import`, of what contacts did. */
export function addEventCommands(group: Command): void {
  addImportCommand<ImportArguments, Exclude<EventImportOutcome, { kind: 'refused' }>>(group, {
    description: 'Store the events of a CSV file, or of a file with a JSON object a line.',
    mapped: 'what a column holds',
    options: [],
    importRows: (installation, request) => {
      // By a waker of its own, which does not wait; parts are far enough apart.
      const onContactsChanged = () => {
        createWaker(installation, 'segments')();
      };
      return importEvents({ ...installation, onContactsChanged }, request);
    },
    describe: ({ counts: { stored, storedBefore } }) => ({
      json: { stored, stored_before: storedBefore },
      counted: [`${formatCount(stored)} stored`, `${formatCount(storedBefore)} stored before`],
      sentences: [],
      repeated: 'nothing is stored twice',
    }),
  });
}
