import { sendingSuspended, tellWarnings } from '../messages/messages.ts';
import { badRequest, conflict, notFound, PublicError, resourceNotFound } from '../platform/http/errors.ts';
import { type AcceptOutcome, toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route, type RouteResponse } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { answerRoutes, type AnswerRouteTools } from './answer-routes.ts';
import type { CampaignChannel } from './channel.ts';
import {
  cancelCampaign,
  type CampaignTools,
  createCampaign,
  deleteCampaign,
  resumeCampaign,
  sendCampaign,
  updateCampaign,
  type Written,
} from './lifecycle.ts';
import { oversightsHeader } from './oversights.ts';
import { showCampaign } from './record.ts';
import {
  campaignBody,
  type CampaignInput,
  campaignPatch,
  campaignQuery,
  campaignRecord,
  campaignReference,
  listedCampaignRecord,
  sendBody,
} from './schema.ts';
import * as store from './store.ts';
import { sumUp } from './sums.ts';

export type CampaignRouteTools = CampaignTools &
  AnswerRouteTools & {
    /** Called after a campaign was queued, scheduled or stopped. */
    onChanged: () => void;
  };

/** The routes of a channel's campaigns; they are the same on every channel. */
export function campaignRoutes(tools: CampaignRouteTools, channel: CampaignChannel): Route[] {
  return [...draftRoutes(tools, channel), ...moveRoutes(tools, channel), ...answerRoutes(tools, channel)];
}

function draftRoutes(tools: CampaignRouteTools, channel: CampaignChannel): Route[] {
  const { database } = tools;
  const { path, tag, noun } = channel;
  return [
    defineRoute({
      method: 'POST',
      path,
      operationId: `create${noun}`,
      scope: 'campaigns:write',
      tag,
      summary: 'Create a campaign',
      description:
        'Creates a draft, which needs only a name. Anything else that is missing is reported when it is sent.',
      body: campaignBody(channel),
      success: {
        statusCode: 201,
        schema: campaignReference,
        when: 'The id of the draft.',
        headers: oversightsHeader,
      },
      handle: async ({ caller: { organizationId }, body }) => {
        const written = await createCampaign(
          tools,
          { organizationId, channel },
          body as CampaignInput & { name: string },
        );
        return answerWritten(written);
      },
    }),
    defineRoute({
      method: 'GET',
      path,
      operationId: `list${noun}s`,
      scope: 'campaigns:read',
      tag,
      summary: 'List the campaigns',
      query: campaignQuery,
      success: {
        statusCode: 200,
        schema: listOf(listedCampaignRecord(channel)),
        when: 'A page of campaigns, without their bodies.',
      },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, status } = query;
        const filter = { ...(search !== undefined && { search }), ...(status !== undefined && { status }) };
        const { rows, sumsOf } = await database.asOrganizations([organizationId], async (transaction) => {
          const found = await store.listCampaigns(transaction, {
            organizationId,
            channel: channel.messages.name,
            filter,
            page,
          });
          return {
            rows: found,
            sumsOf: await sumUp(transaction, organizationId, found),
          };
        });
        return json(toList(rows, page, (row) => showCampaign(channel, row, sumsOf(row), { isListed: true })));
      },
    }),
    defineRoute({
      method: 'GET',
      path: `${path}/:id`,
      operationId: `get${noun}`,
      scope: 'campaigns:read',
      tag,
      summary: 'Read a campaign and its statistics',
      params: idParameter,
      success: { statusCode: 200, schema: campaignRecord(channel), when: 'The campaign.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const campaign = await database.asOrganizations([organizationId], async (transaction) => {
          const row = await store.findCampaign(transaction, {
            organizationId,
            channel: channel.messages.name,
            id,
          });
          if (row === null) return null;
          const sumsOf = await sumUp(transaction, organizationId, [row]);
          return showCampaign(channel, row, sumsOf(row), { isListed: false });
        });
        if (campaign === null) throw resourceNotFound();
        return json(campaign);
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: `${path}/:id`,
      operationId: `update${noun}`,
      scope: 'campaigns:write',
      tag,
      summary: 'Change a campaign',
      description:
        'Fields that are not given stay unchanged; null removes a value. Only drafts and scheduled campaigns can be changed, and a scheduled one must stay ready to be sent.',
      params: idParameter,
      body: campaignPatch(channel),
      success: { statusCode: 200, schema: campaignReference, when: 'Its id.', headers: oversightsHeader },
      errors: [notFound, badRequest],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        return answerWritten(await updateCampaign(tools, { organizationId, channel, id }, body));
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: `${path}/:id`,
      operationId: `delete${noun}`,
      scope: 'campaigns:write',
      tag,
      summary: 'Delete a campaign',
      description:
        'A campaign that is queued or sending must be cancelled first. Messages that were sent are not affected.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf(channel.object), when: 'The campaign is deleted.' },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const refusal = await deleteCampaign(tools, { organizationId, channel, id });
        if (refusal !== null) throw refusal;
        tools.onChanged();
        return json({ object: channel.object, id, deleted: true });
      },
    }),
  ];
}

function answerWritten(written: Written | PublicError): RouteResponse {
  if (written instanceof PublicError) throw written;
  return json({ id: written.id }, tellWarnings(written.oversights));
}

function moveRoutes(tools: CampaignRouteTools, channel: CampaignChannel): Route[] {
  const { path, tag, noun } = channel;
  const success = { statusCode: 200, schema: campaignReference, when: 'Its id.' } as const;
  return [
    defineRoute({
      method: 'POST',
      path: `${path}/:id/send`,
      operationId: `send${noun}`,
      scope: 'campaigns:send',
      tag,
      summary: 'Send or schedule a campaign',
      description:
        'Only drafts and scheduled campaigns can be sent; a scheduled one is sent at once, or at the new time. The content is fixed when sending begins, and the audience directly afterwards.',
      params: idParameter,
      body: sendBody,
      isIdempotent: true,
      success: { ...success, headers: oversightsHeader },
      errors: [badRequest, notFound, sendingSuspended, ...idempotencyErrors],
      handle: async ({ caller: { organizationId }, params: { id }, body, idempotencyKey }) => {
        const scheduledAt = body.scheduled_at ?? null;
        return answer(
          tools,
          await sendCampaign(tools, { organizationId, channel, id }, { scheduledAt, idempotencyKey }),
        );
      },
    }),
    defineRoute({
      method: 'POST',
      path: `${path}/:id/cancel`,
      operationId: `cancel${noun}`,
      addsStorage: false,
      scope: 'campaigns:send',
      tag,
      summary: 'Cancel a campaign',
      description:
        'The campaign must be scheduled, queued or sending. Only copies that are being handed off at this moment are still sent.',
      params: idParameter,
      isIdempotent: true,
      success,
      errors: [badRequest, notFound, ...idempotencyErrors],
      handle: async ({ caller: { organizationId }, params: { id }, idempotencyKey }) =>
        answer(tools, await cancelCampaign(tools, { organizationId, channel, id }, idempotencyKey)),
    }),
    defineRoute({
      method: 'POST',
      path: `${path}/:id/resume`,
      operationId: `resume${noun}`,
      addsStorage: false,
      scope: 'campaigns:send',
      tag,
      summary: 'Send a campaign that missed its schedule',
      params: idParameter,
      success,
      errors: [badRequest, notFound, sendingSuspended],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const refusal = await resumeCampaign(tools, { organizationId, channel, id });
        if (refusal !== null) throw refusal;
        tools.onChanged();
        return json({ id });
      },
    }),
  ];
}

function answer(tools: CampaignRouteTools, outcome: AcceptOutcome): RouteResponse {
  const response = toRouteResponse(outcome);
  tools.onChanged();
  return response;
}
