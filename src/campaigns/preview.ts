import { now } from '../platform/clock.ts';
import { overloaded, PublicError } from '../platform/http/errors.ts';
import { type Database, isStatementTimeout, type Transaction } from '../platform/postgres/database.ts';
import { tryLockPreview } from '../segments/segments.ts';
import * as answers from './answer-store.ts';
import type { Sample } from './channel.ts';
import * as engine from './engine-store.ts';
import type { CampaignReference } from './lifecycle.ts';
import { type LoadedSample, loadSample, type SampleTools } from './sampling.ts';

/** What would happen to a campaign if it were sent now. Nothing of it is stored. */
export type Preview = {
  issues: readonly string[];
  audience: engine.FrozenAudience;
  missingVariables: { name: string; contacts: number }[] | null;
  sampleContactId: string | null;
  sample: Sample;
};

/** Null if the campaign does not exist. */
export async function previewCampaign(
  tools: SampleTools,
  reference: CampaignReference,
  { contactId }: { contactId: string | null },
): Promise<Preview | PublicError | null> {
  const loaded = await loadSample(tools, reference, contactId);
  if (loaded === null || loaded instanceof PublicError) return loaded;
  const counted = await countInTime(tools.database, reference, loaded);
  if (counted instanceof PublicError) return counted;
  const { preparation } = loaded;
  return {
    ...counted,
    issues: preparation.kind === 'ready' ? [] : preparation.issues,
    sampleContactId: preparation.kind === 'ready' ? loaded.contactId : null,
    sample: await makeSample(tools, reference, loaded),
  };
}

async function makeSample(
  tools: SampleTools,
  { channel }: CampaignReference,
  { preparation, values, awaitsSegment }: LoadedSample,
): Promise<Sample> {
  const warnings = awaitsSegment
    ? ['A segment is still being computed: its contacts are not all counted here.']
    : [];
  if (preparation.kind === 'not_ready') return { record: channel.emptySample, warnings };
  const copy = { values, publicUrl: tools.publicUrl(), at: now(tools.clock) };
  const sample = await channel.renderSample(tools.runner, preparation.message, copy);
  if (sample === null) {
    const unfit = `This copy cannot be sent: it has ${channel.words.unfit}.`;
    return { record: channel.emptySample, warnings: [...warnings, unfit] };
  }
  return { record: sample.record, warnings: [...warnings, ...sample.warnings] };
}

/** The time limit for each of the two counts: longer than a person would wait. */
const countTimeoutMs = 10_000;

type Counted = Pick<Preview, 'audience' | 'missingVariables'>;

async function countInTime(
  database: Database,
  reference: CampaignReference,
  loaded: LoadedSample,
): Promise<Counted | PublicError> {
  const { organizationId } = reference;
  try {
    return await database.asOrganizations([organizationId], async (transaction) => {
      if (!(await tryLockPreview(transaction, organizationId)))
        return overloaded('Another preview of the organization is running. Try again when it is done.');
      await engine.allowForLargeAudience(transaction, countTimeoutMs);
      const meant = { organizationId, channel: reference.channel, sets: loaded.campaign };
      const audience = await engine.countAudience(transaction, meant);
      return {
        audience,
        missingVariables: await countMissing(transaction, meant, loaded),
      };
    });
  } catch (cause) {
    if (!isStatementTimeout(cause)) throw cause;
    return overloaded('Counting the audience takes too long at the moment.');
  }
}

/** Null if it takes too long; the rest of the preview is returned all the same. */
async function countMissing(
  transaction: Transaction,
  meant: engine.Meant & Pick<CampaignReference, 'channel'>,
  { campaign, preparation, variables }: LoadedSample,
): Promise<Preview['missingVariables']> {
  if (preparation.kind === 'not_ready') return null;
  const defaults = meant.channel.defaultsOf(campaign.content);
  const hasDefault = (name: string) => Object.hasOwn(defaults, name);
  const names = preparation.message.variableNames.filter((name) => !hasDefault(name));
  if (names.length === 0) return [];
  const asked = {
    fields: variables.fields.filter((name) => !hasDefault(name)),
    properties: variables.properties.filter(({ key }) => !hasDefault(key)),
  };
  await answers.savePoint(transaction);
  try {
    const { contacts: all, missing } = await answers.countWithoutValue(transaction, meant, asked);
    return (
      names
        // No contact has a value for a name that is neither a field nor a property, so it is reported even for an empty
        // audience.
        .map((name) => ({ name, contacts: missing.get(name) ?? all, isHadByNobody: !missing.has(name) }))
        .filter(({ contacts, isHadByNobody }) => contacts > 0 || isHadByNobody)
        .map(({ name, contacts }) => ({ name, contacts }))
    );
  } catch (cause) {
    if (!isStatementTimeout(cause)) throw cause;
    await answers.returnToSavePoint(transaction);
    return null;
  }
}
