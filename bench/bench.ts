import { benchAccept } from './accept.ts';
import { benchAudience } from './audience.ts';
import { benchBatch } from './batch.ts';
import { benchCampaign } from './campaign.ts';
import { benchChatApp } from './chatapp.ts';
import { benchDeliver } from './deliver.ts';
import { benchEventFreshness } from './event-freshness.ts';
import { benchEventLog } from './event-log.ts';
import { benchEventSegments } from './event-segments.ts';
import { benchEvents } from './events.ts';
import { benchHistory } from './history.ts';
import { benchImport } from './import.ts';
import { benchLargeBody } from './large-body.ts';
import { benchLists } from './lists.ts';
import { benchNodes } from './nodes.ts';
import { stopAllOnExit } from './processes.ts';
import { benchPush } from './push.ts';
import { benchSms } from './sms.ts';
import { benchSubmission } from './submission.ts';
import { benchTransactional } from './transactional.ts';
import { benchWebhooks } from './webhooks.ts';

/**
 * `npm run bench [NAME …] [--dkim]`: all benchmarks, or those that are named; with --dkim `deliver` signs what it
 * delivers. Each prints its ratio to a baseline.
 */
const benchmarks: Readonly<Record<string, (options: { isSigned: boolean }) => Promise<void>>> = {
  accept: benchAccept,
  audience: () => benchAudience({}),
  batch: benchBatch,
  campaign: benchCampaign,
  chatapp: benchChatApp,
  deliver: benchDeliver,
  events: benchEvents,
  'event-freshness': benchEventFreshness,
  'event-log': benchEventLog,
  'event-segments': () => benchEventSegments({}),
  history: benchHistory,
  import: benchImport,
  'large-body': benchLargeBody,
  lists: benchLists,
  nodes: benchNodes,
  push: benchPush,
  sms: benchSms,
  submission: benchSubmission,
  transactional: benchTransactional,
  webhooks: benchWebhooks,
};

const flags = process.argv.slice(2).filter((word) => word.startsWith('--'));
const wanted = process.argv.slice(2).filter((word) => !word.startsWith('--'));
const unknown = [
  ...wanted.filter((word) => benchmarks[word] === undefined),
  ...flags.filter((word) => word !== '--dkim'),
];
if (unknown.length > 0) {
  console.error(
    `No such benchmark: ${unknown.join(', ')}. There are: ${Object.keys(benchmarks).join(', ')} [--dkim].`,
  );
  process.exit(1);
}
stopAllOnExit();
for (const [name, run] of Object.entries(benchmarks)) {
  if (wanted.length === 0 || wanted.includes(name)) await run({ isSigned: flags.includes('--dkim') });
}
