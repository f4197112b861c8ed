import type { Acceptor } from '../messages/messages.ts';
import { badRequest, PublicError, resourceNotFound } from '../platform/http/errors.ts';
import { now } from '../platform/clock.ts';
import type { CampaignChannel, Oversight } from './channel.ts';
import type { CampaignReference } from './lifecycle.ts';
import { loadSample, type SampleTools } from './sampling.ts';

/**
 * Sends a campaign in its current state to a few addresses, as transactional messages that do not count in the
 * campaign's statistics. Returns the ids of the messages, one for each address. If some are refused, because of the
 * quota for instance, those accepted before are still sent; it is an error only if all are refused. `missingVariables`
 * are the placeholders that stay as written in these copies.
 */
export async function sendTest(
  tools: SampleTools & { acceptor: Acceptor },
  reference: CampaignReference,
  { to, contactId }: { to: readonly string[]; contactId: string | null },
): Promise<{ ids: string[]; missingVariables: string[]; oversights: Oversight[] } | PublicError> {
  const { organizationId, channel } = reference;
  const sample = await loadSample(tools, reference, contactId);
  if (sample instanceof PublicError) return sample;
  if (sample === null) return resourceNotFound();
  const { preparation, values, campaign } = sample;
  if (preparation.kind === 'not_ready')
    return new PublicError(
      badRequest,
      `The campaign is not ready to be sent: ${preparation.issues.join(', ')}.`,
    );
  // Whatever fails after the acceptance would have the request repeated, and the test sent twice.
  const oversights = await tools.database.asOrganizations([organizationId], (transaction) =>
    channel.findOversights(transaction, organizationId, campaign.content),
  );
  const copy = { values, publicUrl: tools.publicUrl(), at: now(tools.clock), organizationId };
  const submissions = await Promise.all(
    to.map((address) => channel.submitTest(tools, preparation.message, { ...copy, to: address })),
  );
  const outcomes = await Promise.all(
    submissions.map((submission) => tools.acceptor.accept(submission ?? unfit(channel), null)),
  );
  const ids = outcomes.flatMap((outcome) =>
    outcome.kind === 'response' ? [(JSON.parse(outcome.response.text) as { id: string }).id] : [],
  );
  const refused = outcomes.find((outcome) => outcome.kind === 'refused');
  if (ids.length === 0 && refused !== undefined) return refused.error;
  const { variableNames } = preparation.message;
  return {
    ids,
    missingVariables: variableNames.filter((name) => !Object.hasOwn(values, name)),
    oversights,
  };
}

function unfit({ words }: CampaignChannel): PublicError {
  return new PublicError(badRequest, `The campaign has ${words.unfit} with these values.`);
}
