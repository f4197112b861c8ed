import type { RecipientKey } from '../../channels/outcome.ts';
import type {
  CallbackReading,
  CallbackRequest,
  CallbackTools,
  ProviderApp,
  ProviderCallback,
  ProviderCallbacks,
} from '../../channels/provider-callbacks.ts';
import { type Installation, publicUrlOf } from '../../installation/installation.ts';
import { readReportToken, writeReportToken } from '../../messages/messages.ts';
import { PublicError } from '../../platform/http/errors.ts';
import { respondPart } from '../../platform/http/page-response.ts';
import type { PageRate, PageRequest, PageResponse, WebPage } from '../../platform/http/route.ts';
import { type AppLookup, createAppLookup } from './app-lookup.ts';

/** The provider in use, and where its reports go. */
export type CallbackSource<Told> = {
  /** Its name in the registry. */
  name: string;
  callbacks: ProviderCallbacks<Told>;
  /** Resolves when it is stored; rejects if it cannot be. */
  take: (told: Told) => Promise<void>;
  /** The app of an organization, by the token that this installation made for it. Absent where no provider has any. */
  findApp?: (token: string) => Promise<ProviderApp | null>;
};

/** What the provider of that name needs so that its reports come to this installation. */
export function callbackToolsOf({ config, secrets }: Installation, name: string): CallbackTools {
  const writeToken = (reference: RecipientKey) => writeReportToken(secrets, reference);
  return {
    writeToken,
    callbackUrl: (path, reference) =>
      `${publicUrlOf(config)}${callbackPath(name, path)}${writeToken(reference)}`,
  };
}

/** The pages to which the provider posts its reports, and those that it asks whether they are ours. */
export function callbackPages<Told>(
  installation: Installation,
  { findApp, ...reporting }: CallbackSource<Told>,
): WebPage[] {
  const lookUp = createAppLookup(installation, findApp ?? (() => Promise.resolve(null)));
  const source = { ...reporting, lookUp };
  return source.callbacks.list.flatMap((callback) => {
    const { greet } = callback;
    const page = callbackPage(installation, source, callback);
    return greet === undefined ? [page] : [greetingPage(installation, source, { ...callback, greet }), page];
  });
}

type Source<Told> = Omit<CallbackSource<Told>, 'findApp'> & { lookUp: AppLookup };

function callbackPage<Told>(
  installation: Installation,
  source: Source<Told>,
  callback: ProviderCallback<Told>,
): WebPage {
  const page = {
    method: 'POST',
    path: callbackPath(source.name, callback.path),
    isCallback: true,
    rate: callbackRate,
    ...(callback.path.endsWith(':token') && {
      refuse: (request: PageRequest) => refuseUnknownToken(installation, source, request),
    }),
  } as const;
  const commonOf = (request: PageRequest) => toCallbackRequest(installation, source, callback.path, request);
  if (callback.formBytesMax !== undefined) {
    const { formBytesMax, read } = callback;
    const handle = (request: PageRequest) =>
      takeTold(installation, source, callback, () => read({ ...commonOf(request), form: request.form }));
    return { ...page, formBytesMax, handle };
  }
  const { rawBytesMax, read } = callback;
  const handle = (request: PageRequest) =>
    takeTold(installation, source, callback, () => read({ ...commonOf(request), body: request.body }));
  return { ...page, rawBytesMax, handle };
}

/** Meta reports three times on each of 80 messages a second, and repeats for days what was refused. */
const callbackRate: PageRate = { by: 'token', perMinute: 18_000 };

/** Whoever knows no token of ours has nothing to tell, and does not get to send its body. */
async function refuseUnknownToken<Told>(
  { log, secrets }: Installation,
  { name, callbacks: { provider }, lookUp }: Source<Told>,
  request: PageRequest,
): Promise<PageResponse | null> {
  if (readReportToken(secrets, request.params.token ?? '') !== null) return null;
  try {
    return (await appFinder(lookUp, request)()) === null ? respond(403) : null;
  } catch (cause) {
    if (cause instanceof PublicError) throw cause;
    log.warn({ err: cause, provider: name }, `whose report of ${provider} it is could not be read`);
    return respond(503);
  }
}

function greetingPage<Told>(
  { log }: Installation,
  { name, callbacks: { provider }, lookUp }: Source<Told>,
  { path, greet }: Required<Pick<ProviderCallback<Told>, 'path' | 'greet'>>,
): WebPage {
  return {
    method: 'GET',
    path: callbackPath(name, path),
    rate: callbackRate,
    handle: async (request) => {
      try {
        const greeting = await greet({ query: request.query, findApp: appFinder(lookUp, request) });
        return greeting === null ? respond(403) : respond(200, greeting);
      } catch (cause) {
        if (cause instanceof PublicError) throw cause;
        log.warn({ err: cause, provider: name }, `a question of ${provider} could not be answered`);
        return respond(503);
      }
    },
  };
}

function appFinder(
  lookUp: AppLookup,
  { params: { token = '' }, site }: PageRequest,
): () => Promise<ProviderApp | null> {
  return async () => (token === '' ? null : lookUp(token, site));
}

function toCallbackRequest<Told>(
  { config, secrets }: Installation,
  { name, lookUp }: Source<Told>,
  path: string,
  request: PageRequest,
): CallbackRequest {
  const { token = '' } = request.params;
  const readToken = (given: string) => readReportToken(secrets, given);
  return {
    // As the provider was given it: some sign the address too.
    url: `${publicUrlOf(config)}${callbackPath(name, path.replace(':token', token))}`,
    header: request.header,
    reference: readToken(token),
    readToken,
    findApp: appFinder(lookUp, request),
  };
}

function callbackPath(name: string, path: string): string {
  return path === '' ? `/callbacks/${name}` : `/callbacks/${name}/${path}`;
}

async function takeTold<Told>(
  { log }: Installation,
  { name, callbacks: { provider }, take }: Source<Told>,
  { takenStatus = 204 }: Pick<ProviderCallback<Told>, 'takenStatus'>,
  read: () => CallbackReading<Told> | Promise<CallbackReading<Told>>,
): Promise<PageResponse> {
  try {
    const told = await read();
    if (told === 'forged') return respond(403);
    if (told === 'unreadable') {
      log.warn({ provider: name }, `a report of ${provider} could not be read`);
      return respond(400);
    }
    await takeAll(told, take);
    return respond(takenStatus);
  } catch (cause) {
    // Providers repeat requests that were answered with 5xx, some only if they are set up to do so.
    log.warn({ err: cause, provider: name }, `a report of ${provider} could not be stored`);
    return respond(503);
  }
}

/** With more at once, a body with very many reports would exceed what an intake holds, and be refused each time. */
const takenAtOnceMax = 1_000;

async function takeAll<Told>(told: readonly Told[], take: CallbackSource<Told>['take']): Promise<void> {
  for (let start = 0; start < told.length; start += takenAtOnceMax)
    await Promise.all(told.slice(start, start + takenAtOnceMax).map(take));
}

function respond(statusCode: number, text = ''): PageResponse {
  return { ...respondPart('text/plain; charset=utf-8', text, { cacheControl: 'no-store' }), statusCode };
}
