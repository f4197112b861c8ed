import type { ToldOfChatApp } from '../channels/chatapp/provider.ts';
import { createReportIntake } from '../messages/messages.ts';
import type { Clock } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';

/** What providers of chat-app messages tell: statuses, which are reports as on every channel. */

export type ChatAppIntakeTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  /** Which provider tells, by its name in the registry. */
  provider: string;
  onReported: () => void;
};

/** Stores what was told; rejects if it cannot be stored. */
export type ChatAppIntake = (told: ToldOfChatApp & { organizationId: string }) => Promise<void>;

export function createChatAppIntake(tools: ChatAppIntakeTools): ChatAppIntake {
  const { provider, onReported } = tools;
  const report = createReportIntake({ ...tools, onTaken: onReported });
  return async (told) => {
    if (told.kind === 'status') await report({ channel: 'chatapp', provider, report: told.report });
  };
}
