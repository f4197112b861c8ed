import { type Command, Option } from 'commander';
import {
  type AddressedChannel,
  addressedChannels,
  importSuppressions,
  suppressionFormats,
  type SuppressionImportOutcome,
  suppressionLists,
} from '../audience/audience.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { addImportCommand, type DescribedImport, type ImportArguments } from './imports.ts';
import { formatCount } from './progress.ts';

type SuppressionImportArguments = ImportArguments & {
  from: (typeof suppressionFormats)[number];
  list?: (typeof suppressionLists)[number];
  channel: AddressedChannel;
};

type EndedSuppressionImport = Exclude<SuppressionImportOutcome, { kind: 'refused' }>;

/** `suppression import`: what other providers have suppressed, as they give it. */
export function addSuppressionImport(group: Command): void {
  addImportCommand<SuppressionImportArguments, EndedSuppressionImport>(group, {
    description: 'Suppress the addresses of a file from another provider, CSV or JSON.',
    mapped: 'what a column holds: address, channel, reason, scope, note or created_at',
    options: [
      new Option('--from <provider>', 'where the file is from; csv for one of your own')
        .choices(suppressionFormats)
        .makeOptionMandatory(),
      new Option('--list <list>', 'which list it is, of a provider that has one for each reason').choices(
        suppressionLists,
      ),
      new Option('--channel <channel>', 'of the addresses in rows that name none')
        .choices(addressedChannels)
        .default('email'),
    ],
    importRows: (installation, request, { from: format, list = null, channel }) =>
      importSuppressions(installation, {
        ...request,
        format,
        list,
        channel,
        onChanged: () => {
          createWaker(installation, 'segments')();
        },
      }),
    describe: describeImport,
  });
}

function describeImport({
  counts: { created, unchanged, subscribedSince },
}: EndedSuppressionImport): DescribedImport {
  return {
    json: { created, unchanged, subscribed_since: subscribedSince },
    counted: [`${formatCount(created)} created`, `${formatCount(unchanged)} unchanged`],
    sentences: [
      subscribedSince > 0 &&
        `${formatCount(subscribedSince)} unsubscribed before they subscribed here, and stay subscribed.`,
    ],
    repeated: 'nothing is suppressed twice',
  };
}
