import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import { createAllowedHosts } from '../platform/outbound/allowed-hosts.ts';
import { readDestination } from '../platform/outbound/destination.ts';
import { findHeaderProblem, isHeaderName } from './custom-headers.ts';

/** By this name the rules find what the operator opens of the network inside. */
export const webhookHostsSetting = 'webhook-hosts';

type EndpointFields = {
  kind: 'url' | 'poll';
  url: string;
  headers: Record<string, string>;
};

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const webhookRules: Record<'webhook-endpoint', FieldRule> = {
  'webhook-endpoint': defineRule<EndpointFields>((fields, isGiven, { settings }) => [
    ...findForeignFields(fields, isGiven),
    ...findUrlIssues(fields, settings[webhookHostsSetting] ?? []),
    ...findHeaderIssues(fields.headers ?? {}),
  ]),
};

const fieldsOfEndpoints = ['url', 'headers', 'secret', 'concurrency', 'format'] as const;

function findForeignFields({ kind }: Partial<EndpointFields>, isGiven: (name: string) => boolean): string[] {
  if (kind === 'url') return isGiven('url') ? [] : ['url is required where kind is url'];
  if (kind !== 'poll') return [];
  return fieldsOfEndpoints.filter(isGiven).map((field) => `${field} must not be given where kind is poll`);
}

/** A name that is none may be anything, and is not repeated. */
function findHeaderIssues(headers: Readonly<Record<string, string>>): string[] {
  return Object.entries(headers).flatMap(([name, value]) => {
    if (!isHeaderName(name)) return ['headers must have names of headers, of at most 100 characters'];
    const problem = findHeaderProblem(name, value);
    return problem === null ? [] : [`headers.${name} ${problem}`];
  });
}

function findUrlIssues({ url }: Partial<EndpointFields>, allowedHosts: readonly string[]): string[] {
  if (url === undefined) return [];
  const read = readDestination(url, createAllowedHosts(allowedHosts));
  return 'problem' in read ? [`url ${read.problem}`] : [];
}
