import {
  type Acceptor,
  missingVariablesHeader,
  monthlyQuotaExceeded,
  sendingSuspended,
  tellMissingVariables,
  tellWarnings,
} from '../messages/messages.ts';
import {
  badRequest,
  notFound,
  PublicError,
  resourceNotFound,
  serviceUnavailable,
} from '../platform/http/errors.ts';
import { readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, listOf } from '../platform/http/shapes.ts';
import {
  explanationRecord,
  previewBody,
  previewRecord,
  recipientParameters,
  recipientQuery,
  recipientRecord,
  testBody,
  testRecord,
} from './answer-schema.ts';
import type { CampaignChannel } from './channel.ts';
import { explainRecipient, type ExplainTools, showExplanation } from './explaining.ts';
import { oversightsHeader } from './oversights.ts';
import { type Preview, previewCampaign } from './preview.ts';
import { listRecipients } from './recipients.ts';
import type { SampleTools } from './sampling.ts';
import { sendTest } from './test-sending.ts';

export type AnswerRouteTools = SampleTools & ExplainTools & { acceptor: Acceptor };

/** Routes that answer questions about a campaign: who gets it, why a contact did not, and how it will look. */
export function answerRoutes(tools: AnswerRouteTools, channel: CampaignChannel): Route[] {
  return [...recipientRoutes(tools, channel), ...sampleRoutes(tools, channel)];
}

function recipientRoutes(tools: AnswerRouteTools, channel: CampaignChannel): Route[] {
  const { path, tag, noun } = channel;
  return [
    defineRoute({
      method: 'GET',
      path: `${path}/:id/recipients`,
      operationId: `list${noun}Recipients`,
      scope: 'campaigns:read',
      tag,
      summary: 'List the recipients of a campaign',
      description:
        'Newest contact first; `after` and `before` are ids of contacts. A list filtered by status shows a change about a second later.',
      params: idParameter,
      query: recipientQuery,
      success: {
        statusCode: 200,
        schema: listOf(recipientRecord(channel)),
        when: 'A page of recipients; empty until the audience is frozen.',
      },
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, params: { id }, query }) => {
        const page = readPage(query);
        const wanted = { status: query.status ?? null, page };
        const rows = await listRecipients(tools, { organizationId, channel, id }, wanted);
        if (rows === null) throw resourceNotFound();
        return json(toList(rows, page, (row) => row));
      },
    }),
    defineRoute({
      method: 'GET',
      path: `${path}/:id/recipients/:contact_id`,
      operationId: `explain${noun}Recipient`,
      scope: 'campaigns:read',
      tag,
      summary: 'Explain why a contact got a campaign, or did not',
      description:
        'For a contact of the audience, the explanation is complete. For a contact that was not in the audience when it was frozen, it says what can be known now. Before that, it says what would happen to the contact.',
      params: recipientParameters,
      success: { statusCode: 200, schema: explanationRecord(channel), when: 'What happened, and why.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id, contact_id: contactId } }) => {
        const explained = await explainRecipient(tools, { organizationId, channel, id }, contactId);
        if (explained === null) throw resourceNotFound();
        const { place, explanation } = explained;
        return json({ contact_id: contactId, ...place, ...showExplanation(explanation) });
      },
    }),
  ];
}

function sampleRoutes(tools: AnswerRouteTools, channel: CampaignChannel): Route[] {
  const { path, tag, noun } = channel;
  return [
    defineRoute({
      method: 'POST',
      path: `${path}/:id/preview`,
      operationId: `preview${noun}`,
      addsStorage: false,
      scope: 'campaigns:read',
      tag,
      summary: 'Count the audience of a campaign and show a copy, without sending anything',
      description:
        'As the campaign would be sent now. Reads the whole audience during the request. An organization can run one preview at a time.',
      params: idParameter,
      body: previewBody,
      isBodyOptional: true,
      success: {
        statusCode: 200,
        schema: previewRecord(channel),
        when: 'What would be sent, and to how many contacts.',
      },
      errors: [notFound, serviceUnavailable],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const contactId = body.contact_id ?? null;
        const preview = await previewCampaign(tools, { organizationId, channel, id }, { contactId });
        if (preview === null) throw resourceNotFound();
        if (preview instanceof PublicError) throw preview;
        return json(showPreview(preview));
      },
    }),
    defineRoute({
      method: 'POST',
      path: `${path}/:id/test`,
      operationId: `test${noun}`,
      scope: 'campaigns:send',
      tag,
      summary: 'Send a campaign to a few addresses of your own',
      description:
        'Each address gets a transactional message of its own, which the statistics of the campaign do not count. The campaign may have any status. If the quota is used up on the way, `ids` has the messages that were accepted.',
      params: idParameter,
      body: testBody(channel),
      success: {
        statusCode: 202,
        schema: testRecord,
        when: 'Accepted for delivery.',
        headers: { ...missingVariablesHeader, ...oversightsHeader },
      },
      errors: [badRequest, notFound, sendingSuspended, monthlyQuotaExceeded, serviceUnavailable],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const wanted = { to: body.to, contactId: body.contact_id ?? null };
        const sent = await sendTest(tools, { organizationId, channel, id }, wanted);
        if (sent instanceof PublicError) throw sent;
        const headers = {
          ...tellMissingVariables(sent.missingVariables),
          ...tellWarnings(sent.oversights),
        };
        return json({ ids: sent.ids }, headers);
      },
    }),
  ];
}

function showPreview({ issues, audience, missingVariables, forecast, sampleContactId, sample }: Preview) {
  return {
    ready: issues.length === 0,
    issues,
    audience: audience.audience,
    excluded: {
      unsubscribed: audience.unsubscribed,
      suppressed: audience.suppressed,
      no_address: audience.noAddress,
      duplicate: audience.duplicate,
    },
    candidates: audience.candidates,
    missing_variables: missingVariables,
    ...(forecast !== null && { estimated_days: forecast.days }),
    sample_contact_id: sampleContactId,
    ...sample.record,
    warnings: [...(forecast?.warnings ?? []), ...sample.warnings],
  };
}
