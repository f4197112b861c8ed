import path from 'node:path';
import { projectDirectory } from '../config.ts';
import { alertRoutes } from '../alerts/routes.ts';
import { audienceRoutes } from '../audience/routes.ts';
import { chatAppRoutes } from '../chatapp/chatapp.ts';
import { chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import {
  createKeyring,
  type Grant,
  hasOrganizations,
  type Keyring,
  type Scope,
} from '../accounts/accounts.ts';
import { campaignRoutes } from '../campaigns/routes.ts';
import { chatTemplateRoutes } from '../chat-templates/routes.ts';
import { createDeviceRing, type DeviceRing, deviceSecretHelp, liftOptOuts } from '../devices/devices.ts';
import { deviceRoutes, sdkPages } from '../devices/routes.ts';
import { documentationPages, fitNavigation, startPage } from '../documentation/documentation.ts';
import { domainRoutes } from '../domains/routes.ts';
import { createEmailSending, emailChannel } from '../email/email.ts';
import { eventRoutes } from '../events/routes.ts';
import {
  createEngagementRecorder,
  emailRoutes,
  type EngagementRecorder,
  engagementPages,
} from '../email/routes.ts';
import { hasSandbox, type Installation, publicUrlOf, sandboxAccessOf } from '../installation/installation.ts';
import { type Acceptor, createAcceptor, createHorizon, type ReadHorizon } from '../messages/messages.ts';
import { dateOf } from '../platform/clock.ts';
import type { Admission, Admit, CountedMore } from '../platform/http/admission.ts';
import { createBodyThread, inlineRunner, type TaskRunner } from '../platform/http/body-threads.ts';
import { forbidden, PublicError, rateLimitExceeded, unauthorized } from '../platform/http/errors.ts';
import { isKeyUsed, retentionMs } from '../platform/http/idempotency.ts';
import { createRateLimiter, type RateLimiter, type RateVerdict } from '../platform/http/rate-limit.ts';
import {
  type PageRequest,
  type RequestHolder,
  type Route,
  routeKey,
  scopeOfDevices,
  type WebPage,
} from '../platform/http/route.ts';
import {
  type HttpLimits,
  type HeldByRequests,
  type HttpServer,
  type HttpServerOptions,
  startHttpServer,
} from '../platform/http/server.ts';
import { createValidation, type Validation } from '../platform/http/validation.ts';
import { isReadOnly } from '../platform/postgres/condition.ts';
import { examineServingRoles } from '../platform/postgres/serving-role.ts';
import { examineTenantWall } from '../platform/postgres/tenant-wall.ts';
import { pendingMigrations } from '../platform/postgres/migrate.ts';
import { wholeShare } from '../platform/process-share.ts';
import { createPartListener, type PartListener } from '../platform/queue/part-listener.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { createThrottle } from '../platform/throttle.ts';
import { wordFor } from '../platform/wording.ts';
import { createRequestRecorder } from '../request-log/request-log.ts';
import { listWires } from '../compat/compat.ts';
import { requestLogRoutes } from '../request-log/routes.ts';
import { findReadFields } from '../segments/segments.ts';
import { segmentRoutes } from '../segments/routes.ts';
import { sandboxPages } from '../sandbox/routes.ts';
import { senderRoutes } from '../senders/routes.ts';
import { pushRoutes } from '../push/push.ts';
import { smsRoutes } from '../sms/routes.ts';
import { galleryPages, templateRoutes } from '../templates/routes.ts';
import { openGallery } from '../templates/templates.ts';
import { isWelcome } from '../sandbox/sandbox.ts';
import { webhookRoutes } from '../webhooks/routes.ts';
import { campaignChannels, messageChannels } from './channels.ts';
import { createEventDescribers } from './event-describers.ts';
import type { SubmissionListener } from '../submission/submission.ts';
import { startSubmission } from './submission.ts';
import { createSenderOf } from './webhook-sender.ts';
import { createWebhookTrial } from './webhook-trial.ts';
import { startListening } from './listening.ts';
import { createConditionWatch } from './monitoring/monitoring.ts';
import { threadEntryOf } from './thread-entry.ts';
import { chatAppCallbacks } from './providers/chatapp.ts';
import { emailCallbacks } from './providers/email.ts';
import { createPushTrial } from './push-trial.ts';
import { createReplies } from './replies.ts';
import { smsCallbacks } from './providers/sms.ts';
import { fieldRules, ruleSettingsOf } from './field-rules.ts';
import { textFormats } from './text-formats.ts';
import { programName } from '../platform/program-name.ts';

const galleryDirectory = path.join(projectDirectory, 'gallery');
const sdkDirectory = path.join(projectDirectory, 'dist', 'web-push');

/** What a server has running beside its routes. */
type RouteListTools = {
  loadGallery: ReturnType<typeof openGallery>;
  acceptor: Acceptor;
  runner: TaskRunner;
  numbered: PartListener;
  flushRequestLog: () => Promise<void>;
};

/** Every route of the API: what is served, documented and tested comes from this table. */
export function listRoutes(
  installation: Installation,
  {
    loadGallery = openGallery(galleryDirectory),
    acceptor = openAcceptor(installation),
    runner = inlineRunner,
    numbered = createPartListener(installation, 'webhook_events'),
    flushRequestLog = () => Promise.resolve(),
  }: Partial<RouteListTools> = {},
): Route[] {
  const { database, clock, newId, secrets } = installation;
  const wakeWorkers = createWaker(installation, 'deliveries');
  const readHorizon = readHorizonOf(installation);
  const wakeSegments = createWaker(installation, 'segments');
  const wakeClearing = createWaker(installation, 'clearing');
  const wakeDomainChecks = createWaker(installation, 'domains');
  const publicUrl = () => publicUrlOf(installation.config);
  const messageTools = { database, clock, newId, acceptor, readHorizon, onQueued: wakeWorkers };
  const campaignTools = {
    ...installation,
    readHorizon,
    acceptor,
    runner,
    publicUrl,
    onChanged: createWaker(installation, 'campaigns'),
  };
  return [
    ...emailRoutes({ ...messageTools, runner }),
    ...smsRoutes(messageTools),
    ...pushRoutes({
      ...messageTools,
      onContactsChanged: wakeSegments,
      onCampaignProgress: createThrottle(clock, countingMs, createWaker(installation, 'campaigns')),
    }),
    ...chatAppRoutes({ ...messageTools, secrets }),
    ...audienceRoutes({
      ...installation,
      onChanged: wakeSegments,
      onDeleted: wakeClearing,
      onErased: createWaker(installation, 'erasures'),
      onSubscribed: async (transaction, contact, channels) => {
        if (channels.includes('push')) await liftOptOuts({ clock, secrets }, transaction, contact);
      },
    }),
    ...segmentRoutes({ ...installation, onChanged: wakeSegments, onDeleted: wakeClearing }),
    ...Object.values(campaignChannels).flatMap((channel) =>
      channel === null ? [] : campaignRoutes(campaignTools, channel),
    ),
    ...templateRoutes({ ...installation, loadGallery, publicUrl, runner }),
    ...chatTemplateRoutes({
      ...installation,
      isAccountNeeded: () => !chatAppProviders[installation.config.chatAppProvider].isSandbox,
    }),
    ...domainRoutes({
      ...installation,
      checks: createPartListener(installation, 'domain_checks'),
      onAsked: wakeDomainChecks,
      onRegistered: wakeDomainChecks,
    }),
    ...senderRoutes({ database }),
    ...eventRoutes({
      ...installation,
      findReadFields,
      onContactsChanged: wakeSegments,
      onConverted: createThrottle(clock, creditingMs, createWaker(installation, 'conversions')),
    }),
    ...deviceRoutes({
      database,
      clock,
      newId,
      secrets,
      onChanged: wakeSegments,
    }),
    ...webhookRoutes({
      database,
      clock,
      newId,
      secrets,
      describers: createEventDescribers({ ...installation, readHorizon }),
      openSender: openOnce(() => createSenderOf(installation)),
      onUntold: createWaker(installation, 'webhook_events'),
      numbered,
    }),
    ...alertRoutes({ database, clock }),
    ...requestLogRoutes({ database, clock, flush: flushRequestLog }),
  ];
}

function readHorizonOf(installation: Installation): ReadHorizon {
  const { clock } = installation;
  return createHorizon({ clock, installed: () => installation.config.keptDays });
}

/** One for all ways in, so that requests share transactions whichever way they came. */
function openAcceptor(installation: Installation): Acceptor {
  const { observers } = installation;
  const wakeWorkers = createWaker(installation, 'deliveries');
  return createAcceptor({
    ...installation,
    readHorizon: readHorizonOf(installation),
    channels: messageChannels,
    onQueued: wakeWorkers,
    ...(observers && { onAccepted: observers.onAccepted }),
    takeTurnToNotify: wakeWorkers.takeTurn,
  });
}

/** Opened when it is first asked for, and kept; one that could not be is opened again. */
function openOnce<Opened>(open: () => Promise<Opened>): () => Promise<Opened> {
  let opened: Promise<Opened> | null = null;
  return () => {
    opened ??= open().catch((cause: unknown) => {
      opened = null;
      throw cause;
    });
    return opened;
  };
}

/** How late the counts of a campaign may be. More often would count the same recipients again and again. */
const countingMs = 1_000;

/** How late a worker hears of conversions, which are due some seconds after their events. */
const creditingMs = 1_000;

/** Every page outside of the API, among them those at which providers report. */
export async function listPages(
  installation: Installation,
  tools: {
    routes: readonly Route[];
    validation: Validation;
    loadGallery: ReturnType<typeof openGallery>;
    recorder: EngagementRecorder;
    onContactsChanged: () => void;
  },
): Promise<WebPage[]> {
  const { config, database } = installation;
  const { routes, validation, loadGallery, recorder, onContactsChanged } = tools;
  const access = sandboxAccessOf(installation);
  const isSandboxOpen = async (request: PageRequest) =>
    hasSandbox(config) && (await isWelcome(request, access));
  const insideTools = { routes, validation, ruleSettings: () => ruleSettingsOf(installation) };
  return [
    startPage(isSandboxOpen),
    ...documentationPages(isSandboxOpen),
    ...engagementPages({
      ...installation,
      recorder,
      onContactsChanged,
    }),
    ...(await emailCallbacks(installation)),
    ...(await smsCallbacks(installation)),
    ...(await chatAppCallbacks(installation)),
    ...galleryPages({
      readGallery: loadGallery,
      directory: galleryDirectory,
      fitPage: (html) => {
        const fitted = fitNavigation(html);
        return async (request) => fitted(await isSandboxOpen(request));
      },
    }),
    ...sdkPages(sdkDirectory),
    ...(hasSandbox(config)
      ? sandboxPages({
          database,
          access,
          publicUrl: config.publicUrl,
          pushTrial: createPushTrial(installation, insideTools),
          webhookTrial: createWebhookTrial(installation, insideTools),
          replies: createReplies(installation),
        })
      : []),
  ];
}

/** `submission` is null where no port for it is set. */
export type ApiServer = Omit<HttpServer, 'held'> & {
  submission: SubmissionListener | null;
  held: () => HeldByRequests & { submissions: number };
};

/**
 * Serves the API until it is stopped. Throws a ListenError if the port cannot be had. Servers of one process may share a
 * `validation`, and with it the schemas that are compiled.
 */
export async function startApi(
  installation: Installation,
  limits: Partial<HttpLimits> = {},
  validation = createValidation(textFormats, fieldRules),
  share = wholeShare,
): Promise<ApiServer> {
  const { config, log, clock, newId, database } = installation;
  const loadGallery = openGallery(galleryDirectory);
  const bodyThread = createBodyThread({
    entry: threadEntryOf('body-thread'),
    schemas: () => schemasOf(routes),
    log,
  });
  const numbered = createPartListener(installation, 'webhook_events');
  const requestLog = createRequestRecorder(
    { ...installation, ...(installation.observers && { onLogged: installation.observers.onLogged }) },
    { share },
  );
  const acceptor = openAcceptor(installation);
  const routes = listRoutes(installation, {
    loadGallery,
    acceptor,
    runner: bodyThread,
    numbered,
    flushRequestLog: requestLog.flush,
  });
  const keyring = createKeyring(installation, share);
  const rateLimiter = createRateLimiter(installation);
  const wakeSegments = createWaker(installation, 'segments');
  const onCampaignProgress = createThrottle(clock, countingMs, createWaker(installation, 'campaigns'));
  const recorder = createEngagementRecorder({
    ...installation,
    channel: emailChannel,
    onCampaignProgress,
    onContactsChanged: wakeSegments,
  });
  const serverOptions: HttpServerOptions = {
    host: config.host,
    port: config.port,
    trustedProxies: config.trustedProxies,
    log,
    clock,
    newId,
    routes,
    pages: await listPages(installation, {
      routes,
      validation,
      loadGallery,
      recorder,
      onContactsChanged: () => {
        wakeSegments();
        onCampaignProgress();
      },
    }),
    wires: listWires(routes),
    validation,
    ruleSettings: () => ruleSettingsOf(installation),
    bodyThread,
    admit: createDoorman(keyring, rateLimiter, createDeviceRing(installation)),
    secrets: installation.secrets,
    isKeyUsed: (key) =>
      database.asOrganizations([key.organizationId], (transaction) =>
        isKeyUsed(transaction, key, { expiredBefore: dateOf(clock.nowMs() - retentionMs) }),
      ),
    findUnreadiness: () => findUnreadiness(installation),
    findDegradations: createConditionWatch(installation),
    ...(installation.observers && { onAnswered: installation.observers.onAnswered }),
    note: requestLog.note,
    limits: { drainMs: config.drainMs, ...limits },
  };
  const { host, port } = config;
  const server = await startListening({ host, port, hostSetting: 'HOST', portSetting: 'PORT' }, () =>
    startHttpServer(serverOptions),
  );
  const submission = await startSubmission(installation, {
    ...serverOptions,
    note: requestLog.note,
    runner: bodyThread,
    sending: createEmailSending({ database, acceptor, runner: bodyThread }),
    lent: server.lent,
  }).catch(async (cause: unknown) => {
    await server.stop('at_once');
    throw cause;
  });
  return {
    ...server,
    submission,
    held: () => ({ ...server.held(), submissions: submission?.held() ?? 0 }),
    stop: async (how) => {
      // Requests that wait for events are answered, as all that were begun.
      numbered.stop();
      await Promise.all([submission?.stop(), server.stop(how)]);
      // What is kept in memory is written after the last request.
      await Promise.allSettled([
        bodyThread.stop(),
        keyring.flush(),
        rateLimiter.flush(),
        recorder.stop(),
        requestLog.stop(),
      ]);
    },
  };
}

/** Key, then rate limit, then scope. */
function createDoorman(keyring: Keyring, rateLimiter: RateLimiter, deviceRing: DeviceRing) {
  return async (request: Parameters<Admit>[0]): Promise<Admission> => {
    if (request.scope === scopeOfDevices) return admitDevice(deviceRing, request.authorization);
    const grant = await keyring.find(request.authorization, request.address);
    if (grant === 'unauthorized') return { rate: null, result: new PublicError(unauthorized, keyHelp) };
    if (grant === 'too_many_wrong_keys') {
      const error = new PublicError(
        rateLimitExceeded,
        'Too many wrong API keys. Wait before you try another.',
        {
          'retry-after': '60',
        },
      );
      return { rate: null, result: error };
    }
    // Not counted: whoever has stolen a key could use up what its owner may ask.
    if ('kind' in grant) {
      const result = new PublicError(forbidden, foreignAddressHelp);
      return { rate: null, result, holder: holderOf(grant.grant) };
    }
    const holder = holderOf(grant);
    const { organizationId, requestsPerWindow, eventsPerWindow, scopes, fullStorage } = grant;
    const [noun, limit] =
      request.countsAs === 'event'
        ? (['events', eventsPerWindow] as const)
        : (['requests', requestsPerWindow] as const);
    const count = (amount: number): CountedMore => {
      const rate = rateLimiter.count(organizationId, noun, limit, amount);
      return { rate, error: rate.isWithin ? null : exceed(rate, noun) };
    };
    const { rate, error } = request.countsAs === 'nothing' ? { rate: null, error: null } : count(1);
    if (error !== null) return { rate, result: error, holder };
    if (request.scope !== null && !scopes.has(request.scope as Scope)) {
      const result = new PublicError(forbidden, `The API key lacks the scope ${request.scope}.`);
      return { rate, result, holder };
    }
    return { rate, result: { organizationId, apiKeyId: grant.keyId, fullStorage }, holder, countMore: count };
  };
}

/**
 * Not counted as requests of the organization: a campaign makes a million devices report at once, and must leave it
 * able to ask.
 */
async function admitDevice(deviceRing: DeviceRing, secret: string): Promise<Admission> {
  const found = await deviceRing.find(secret);
  if (found === null) return { rate: null, result: new PublicError(unauthorized, deviceSecretHelp) };
  const { organizationId, device, rate } = found;
  return {
    rate,
    result: rate.isWithin ? { organizationId, device } : exceed(rate, 'requests'),
    holder: { organizationId, apiKey: null },
  };
}

function holderOf({ organizationId, keyId: id, keyName: name }: Grant): RequestHolder {
  return { organizationId, apiKey: { id, name } };
}

function exceed({ limit, resetSeconds }: RateVerdict, noun: 'requests' | 'events'): PublicError {
  return new PublicError(
    rateLimitExceeded,
    `The limit of ${limit} ${noun} in 60 seconds is reached. Try again in ${resetSeconds} ${wordFor(resetSeconds, 'second')}.`,
    { 'retry-after': `${resetSeconds}` },
  );
}

const foreignAddressHelp =
  'The API key may not be used from this address. "bin/postillion key list" shows the networks that it was made for.';

const keyHelp =
  'The API key is missing, invalid, expired or revoked. Send it as "Authorization: Bearer <key>".';

function schemasOf(routes: readonly Route[]) {
  return Object.fromEntries(
    routes.flatMap((route) => (route.body === null ? [] : [[routeKey(route), route.body]])),
  );
}

/** No organization's: the look-up only shows whether the role may read. */
const nobody = '00000000-0000-0000-0000-000000000000';

/** What keeps requests from being served, looked for as they would be: under the role of the second wall. */
export async function findUnreadiness({ database }: Pick<Installation, 'database'>): Promise<string | null> {
  try {
    const pending = await pendingMigrations(database);
    if (pending.length > 0) return 'the schema is not up to date';
    if (await isReadOnly(database))
      return 'the database takes no writes: it is a standby, or was closed to them';
    if (await database.isOutOfSpace()) return 'the database takes no writes: its disk is full';
    const wall = await examineTenantWall(database);
    if (wall.kind === 'unreachable')
      return `the role postillion_tenant may not use ${wall.tables.length} ${wordFor(wall.tables.length, 'table')}: run "${programName()} migrate"`;
    const roles = await examineServingRoles(database);
    if (roles.kind === 'unreachable')
      return `requests may not use ${roles.tables.length} ${wordFor(roles.tables.length, 'table')}: run "${programName()} migrate"`;
    // On the other pool of connections than what was asked before.
    await database.asOrganizationsByIndex([nobody], (transaction) => hasOrganizations(transaction));
    return null;
  } catch {
    return 'the database cannot be reached';
  }
}
