import { type Clock, now } from '../platform/clock.ts';
import { PublicError, resourceNotFound, validationError } from '../platform/http/errors.ts';
import type { Route, RouteResponse } from '../platform/http/route.ts';
import type { RuleFacts, Validation } from '../platform/http/validation.ts';
import type { Fields } from '../sandbox/routes.ts';

type InsideRequest = { params?: Fields; query?: Fields; body?: Fields };

export type InsideClientTools = {
  routes: readonly Route[];
  validation: Validation;
  ruleSettings: () => RuleFacts['settings'];
  clock: Clock;
};

/** Asks a route what a client would ask it, without a key: who asks has been found out by other means. */
export function createInsideClient({ routes, validation, ruleSettings, clock }: InsideClientTools) {
  return async (
    organizationId: string,
    operationId: string,
    { params = {}, query = {}, body = {} }: InsideRequest,
  ): Promise<unknown> => {
    const route = routes.find((one) => one.operationId === operationId);
    if (route === undefined) throw new Error(`there is no operation ${operationId}`);
    if (route.params !== null && validation.compile(route.params)(params).length > 0)
      throw resourceNotFound();
    const facts = { at: now(clock), settings: ruleSettings() };
    const issues = route.body === null ? [] : validation.compile(route.body)(body, facts);
    if (issues.length > 0) throw new PublicError(validationError, issues.join(', '));
    const caller = { organizationId };
    return readResponse(
      await route.handle({
        caller,
        params,
        query,
        body,
        prepared: null,
        idempotencyKey: null,
        facts,
        traceId: null,
      }),
    );
  };
}

function readResponse(response: RouteResponse): unknown {
  switch (response.kind) {
    case 'json':
      return response.body;
    case 'written':
      return JSON.parse(Buffer.from(response.json).toString('utf8'));
    case 'stored':
      return JSON.parse(response.response.text);
  }
}
