import { Type } from 'typebox';
import {
  badRequest,
  conflict,
  defineError,
  notFound,
  PublicError,
  resourceNotFound,
  serviceUnavailable,
} from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { answeredMaxMs, askForCheck, type AskingTools } from './asking.ts';
import { showDomain } from './domain-record.ts';
import type { InstanceHosts } from './records.ts';
import { type DomainTools, registerDomain } from './registration.ts';
import { domainBody, domainRecord } from './schema.ts';
import * as store from './store.ts';

const domainUnavailable = defineError(
  400,
  'domain_unavailable',
  'The domain, or one above or below it, is verified by another organization.',
);
const domainLimitReached = defineError(
  400,
  'domain_limit_reached',
  'The plan allows no more sending domains.',
);

export type DomainRouteTools = DomainTools &
  AskingTools & {
    hosts: InstanceHosts;
    /** Told after every registration, so that the periodic check knows of it. */
    onRegistered: () => void;
  };

export function domainRoutes(tools: DomainRouteTools): Route[] {
  const { database, hosts } = tools;
  const tag = 'Sending domains';
  return [
    defineRoute({
      method: 'POST',
      path: '/email/domains',
      operationId: 'registerDomain',
      scope: 'domains:write',
      tag,
      summary: 'Register a sending domain',
      description:
        'Publish the records of the response in the DNS. They are checked every minute at first, or at once by the verify operation. If the organization has the domain already, it is returned unchanged.',
      body: domainBody,
      success: { statusCode: 200, schema: domainRecord, when: 'The domain and its DNS records.' },
      errors: [domainUnavailable, domainLimitReached, conflict],
      handle: async ({ caller: { organizationId }, body }) => {
        const outcome = await registerDomain(tools, organizationId, body);
        switch (outcome.kind) {
          case 'registered':
            tools.onRegistered();
            return json(showDomain(outcome.domain, hosts));
          case 'unavailable':
            throw unavailable();
          case 'limit_reached':
            throw new PublicError(
              domainLimitReached,
              'The limit of sending domains is reached. Delete one, or ask for a larger plan.',
            );
          case 'busy':
            throw new PublicError(
              conflict,
              'Another registration of the organization is in progress. Register one domain at a time.',
            );
        }
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/email/domains',
      operationId: 'listDomains',
      scope: 'domains:read',
      tag,
      summary: 'List sending domains',
      query: Type.Object(paginationParameters, { additionalProperties: false }),
      success: { statusCode: 200, schema: listOf(domainRecord), when: 'A page of domains.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listDomains(transaction, organizationId, page),
        );
        return json(toList(rows, page, (row) => showDomain(row, hosts)));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/email/domains/:id',
      operationId: 'getDomain',
      scope: 'domains:read',
      tag,
      summary: 'Read a sending domain and the state of its DNS records',
      params: idParameter,
      success: { statusCode: 200, schema: domainRecord, when: 'The domain, as of the last check.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) =>
        json(showDomain(await findOwnDomain(tools, { organizationId, id }), hosts)),
    }),
    defineRoute({
      method: 'DELETE',
      path: '/email/domains/:id',
      operationId: 'deleteDomain',
      scope: 'domains:write',
      tag,
      summary: 'Delete a sending domain',
      description:
        'Its addresses can no longer be used as senders. Emails that still wait for delivery fail.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('domain'), when: 'The domain is deleted.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const isDeleted = await database.asOrganizations([organizationId], (transaction) =>
          store.deleteDomain(transaction, { organizationId, id }),
        );
        if (!isDeleted) throw resourceNotFound();
        return json({ object: 'domain', id, deleted: true });
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/email/domains/:id/verify',
      operationId: 'verifyDomain',
      addsStorage: false,
      scope: 'domains:write',
      tag,
      summary: 'Check the DNS records of a domain now',
      description:
        'A worker looks the records up, and the request waits for it: mostly for a moment, and for 25 seconds at most. After that the answer is 503, and the check is made as soon as a worker can. A domain that is verified already is returned unchanged.',
      params: idParameter,
      success: { statusCode: 200, schema: domainRecord, when: 'The domain after the check.' },
      errors: [domainUnavailable, notFound, serviceUnavailable],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const domain = await findOwnDomain(tools, { organizationId, id });
        if (domain.status === 'verified') return json(showDomain(domain, hosts));
        const outcome = await askForCheck(tools, { organizationId, id });
        switch (outcome.kind) {
          case 'checked':
            return json(showDomain(outcome.domain, hosts));
          case 'unavailable':
            throw unavailable();
          case 'gone':
            throw resourceNotFound();
          case 'late':
            throw new PublicError(
              serviceUnavailable,
              `The domain was not checked within ${answeredMaxMs / 1_000} seconds. It will be as soon as possible: read it later, or try again.`,
              { 'retry-after': '10' },
            );
        }
      },
    }),
  ];
}

async function findOwnDomain(tools: DomainRouteTools, domain: store.DomainKey): Promise<store.DomainRow> {
  const row = await tools.database.asOrganizations([domain.organizationId], (transaction) =>
    store.findDomain(transaction, domain),
  );
  if (row === null) throw resourceNotFound();
  return row;
}

function unavailable(): PublicError {
  return new PublicError(
    domainUnavailable,
    'The domain, or one above or below it, is verified by another organization.',
  );
}
