import type { RecipientKey } from '../../channels/outcome.ts';
import type {
  CallbackReading,
  CallbackRequest,
  CallbackTools,
  ProviderCallback,
  ProviderCallbacks,
} from '../../channels/provider-callbacks.ts';
import { type Installation, publicUrlOf } from '../../installation/installation.ts';
import { readReportToken, writeReportToken } from '../../messages/messages.ts';
import { respondPart } from '../../platform/http/page-response.ts';
import type { PageRequest, PageResponse, WebPage } from '../../platform/http/route.ts';

/** The provider in use, and where its reports go. */
export type CallbackSource<Told> = {
  /** Its name in the registry. */
  name: string;
  callbacks: ProviderCallbacks<Told>;
  /** Resolves when it is stored; rejects if it cannot be. */
  take: (told: Told) => Promise<void>;
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

/** The pages to which the provider posts its reports. */
export function callbackPages<Told>(installation: Installation, source: CallbackSource<Told>): WebPage[] {
  return source.callbacks.list.map((callback) => callbackPage(installation, source, callback));
}

function callbackPage<Told>(
  installation: Installation,
  source: CallbackSource<Told>,
  callback: ProviderCallback<Told>,
): WebPage {
  const page = { method: 'POST', path: callbackPath(source.name, callback.path) } as const;
  const respondTo = (request: PageRequest, read: (common: CallbackRequest) => CallbackReading<Told>) =>
    takeTold(
      installation,
      source,
      read(toCallbackRequest(installation, source.name, callback.path, request)),
    );
  if (callback.formBytesMax !== undefined) {
    const { formBytesMax, read } = callback;
    const handle = (request: PageRequest) =>
      respondTo(request, (common) => read({ ...common, form: request.form }));
    return { ...page, formBytesMax, handle };
  }
  const { rawBytesMax, read } = callback;
  const handle = (request: PageRequest) =>
    respondTo(request, (common) => read({ ...common, body: request.body }));
  return { ...page, rawBytesMax, handle };
}

function toCallbackRequest(
  { config, secrets }: Installation,
  name: string,
  path: string,
  { params: { token = '' }, header }: PageRequest,
): CallbackRequest {
  const readToken = (given: string) => readReportToken(secrets, given);
  return {
    // As the provider was given it: some sign the address too.
    url: `${publicUrlOf(config)}${callbackPath(name, path.replace(':token', token))}`,
    header,
    reference: readToken(token),
    readToken,
  };
}

function callbackPath(name: string, path: string): string {
  return `/callbacks/${name}/${path}`;
}

async function takeTold<Told>(
  { log }: Installation,
  { name, callbacks: { provider }, take }: CallbackSource<Told>,
  told: CallbackReading<Told>,
): Promise<PageResponse> {
  if (told === 'forged') return respond(403);
  if (told === 'unreadable') {
    log.warn({ provider: name }, `a report of ${provider} could not be read`);
    return respond(400);
  }
  try {
    await takeAll(told, take);
    return respond(204);
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

function respond(statusCode: number): PageResponse {
  return { ...respondPart('text/plain; charset=utf-8', '', { cacheControl: 'no-store' }), statusCode };
}
