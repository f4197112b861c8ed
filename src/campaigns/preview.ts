import { now } from '../platform/clock.ts';
import { overloaded, PublicError } from '../platform/http/errors.ts';
import { isStatementTimeout, type Transaction } from '../platform/postgres/database.ts';
import { tryLockPreview } from '../segments/segments.ts';
import * as answers from './answer-store.ts';
import type { Forecast, Sample } from './channel.ts';
import * as engine from './engine-store.ts';
import type { CampaignReference } from './lifecycle.ts';
import { type LoadedSample, loadSample, type SampleTools } from './sampling.ts';

/** What would happen to a campaign if it were sent now. Nothing of it is stored. */
export type Preview = {
  issues: readonly string[];
  audience: engine.FrozenAudience;
  missingVariables: { name: string; contacts: number }[] | null;
  /** Null where the channel foresees nothing. */
  forecast: Forecast | null;
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
  const counted = await countInTime(tools, reference, loaded);
  if (counted instanceof PublicError) return counted;
  const { preparation } = loaded;
  return {
    ...counted,
    issues: preparation.kind === 'ready' ? listUnfilled(reference, counted) : preparation.issues,
    sampleContactId: preparation.kind === 'ready' ? loaded.contactId : null,
    sample: await makeSample(tools, reference, loaded),
  };
}

/** Of a channel that sends no copy without all of its values: the placeholders for which nobody has one. */
function listUnfilled(
  { channel }: CampaignReference,
  { audience: { audience }, missingVariables }: Counted,
): string[] {
  if (channel.needsAllValues !== true || audience === 0) return [];
  return (missingVariables ?? [])
    .filter(({ contacts }) => contacts >= audience)
    .map(({ name }) => `neither a contact nor variables has a value for {{${name}}}`);
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

/** The time limit for each of the counts: longer than a person would wait. */
const countTimeoutMs = 10_000;

type Counted = Pick<Preview, 'audience' | 'missingVariables' | 'forecast'>;

async function countInTime(
  tools: SampleTools,
  reference: CampaignReference,
  loaded: LoadedSample,
): Promise<Counted | PublicError> {
  const { organizationId } = reference;
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction) => {
      if (!(await tryLockPreview(transaction, organizationId)))
        return overloaded('Another preview of the organization is running. Try again when it is done.');
      await engine.allowForLargeAudience(transaction, countTimeoutMs);
      const at = now(tools.clock);
      const meant = { organizationId, channel: reference.channel, sets: loaded.campaign, at };
      const audience = await engine.countAudience(transaction, meant);
      return {
        audience,
        missingVariables: await countMissing(transaction, meant, loaded),
        forecast: await foresee(tools, transaction, meant, { ...loaded, audience: audience.audience }),
      };
    });
  } catch (cause) {
    if (!isStatementTimeout(cause)) throw cause;
    return overloaded('Counting the audience takes too long at the moment.');
  }
}

async function foresee(
  { clock }: SampleTools,
  transaction: Transaction,
  meant: engine.Meant & Pick<CampaignReference, 'channel'>,
  { preparation, audience }: LoadedSample & { audience: number },
): Promise<Forecast | null> {
  const { organizationId, channel } = meant;
  if (channel.foresee === undefined) return null;
  return channel.foresee(transaction, {
    ...{ organizationId, audience, at: now(clock) },
    message: preparation.kind === 'ready' ? preparation.message : null,
    countBeginningWith: (text) =>
      unlessTooLong(transaction, () => answers.countBeginningWith(transaction, meant, text)),
  });
}

/** Null if it takes too long; the rest of the preview is returned all the same. */
async function unlessTooLong<Result>(
  transaction: Transaction,
  count: () => Promise<Result>,
): Promise<Result | null> {
  await answers.savePoint(transaction);
  try {
    return await count();
  } catch (cause) {
    if (!isStatementTimeout(cause)) throw cause;
    await answers.returnToSavePoint(transaction);
    return null;
  }
}

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
  const counted = await unlessTooLong(transaction, () =>
    answers.countWithoutValue(transaction, meant, asked),
  );
  if (counted === null) return null;
  const { contacts: all, missing } = counted;
  return (
    names
      // No contact has a value for a name that is neither a field nor a property, so it is reported even for an empty
      // audience.
      .map((name) => ({ name, contacts: missing.get(name) ?? all, isHadByNobody: !missing.has(name) }))
      .filter(({ contacts, isHadByNobody }) => contacts > 0 || isHadByNobody)
      .map(({ name, contacts }) => ({ name, contacts }))
  );
}
