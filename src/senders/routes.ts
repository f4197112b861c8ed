import { Type } from 'typebox';
import { badRequest } from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { listOf } from '../platform/http/shapes.ts';
import type { Database } from '../platform/postgres/database.ts';
import { type SenderRecord, senderRecord } from './schema.ts';
import * as store from './store.ts';

export function senderRoutes({ database }: { database: Database }): Route[] {
  return [
    defineRoute({
      method: 'GET',
      path: '/sms/senders',
      operationId: 'listSmsSenders',
      scope: 'sms:read',
      tag: 'SMS senders',
      summary: 'List the approved senders',
      description:
        'Senders are added and approved by the operator. Those that are not approved are not shown.',
      query: Type.Object(paginationParameters, { additionalProperties: false }),
      success: { statusCode: 200, schema: listOf(senderRecord), when: 'A page of senders.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listApproved(transaction, organizationId, page),
        );
        return json(toList(rows, page, showSender));
      },
    }),
  ];
}

function showSender(row: store.SenderRow): SenderRecord {
  if (row.approved_at === null) throw new Error('a sender is shown that is not approved');
  return {
    id: row.id,
    name: row.name,
    type: row.type,
    status: 'approved',
    created_at: row.created_at.toISOString(),
    approved_at: row.approved_at.toISOString(),
  };
}
