import { createECDH, generateKeyPairSync, randomBytes } from 'node:crypto';
import { connect } from 'node:http2';
import https from 'node:https';
import webPush from 'web-push';
import { composeForApns, composeForFcm, type PushContent } from '../src/channels/push/notification.ts';
import { type CredentialsContent, makeVapidPair, setCredentials } from '../src/devices/devices.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { certificateForTests } from '../test/support/certificate-for-tests.ts';
import { deliver, type DeliveryRun, holdSlices } from './deliver.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, startModule } from './processes.ts';

/**
 * From the queue to the services of the platforms, which are one TLS peer in another process that answers after 50 ms:
 * a campaign to one device of each contact, every hand-off announced and every outcome written. The baselines record
 * nothing: the `web-push` package in a loop for browsers, and a bare `node:http2` session with a thousand streams for
 * FCM and APNs, whose requests are made ahead.
 */
const roundsCount = 3;
const devicesCount = 20_000;
const warmUpCount = 4_000;
/** A loop of `web-push` needs half a minute for as many as are delivered, and is no slower with fewer. */
const webPushCount = 5_000;
/** As many connections as `web-push` is worth: with fewer it waits for answers, and with more it is slower. */
const webPushConnections = 128;
const streamsMax = 1_000;

type Platform = 'web' | 'ios' | 'android';
const platforms: readonly Platform[] = ['web', 'ios', 'android'];

const content: PushContent = {
  title: 'Your parcel is here',
  body: 'It waits for you at the corner shop until Saturday evening, with its number 4711.',
  imageUrl: null,
  iconUrl: null,
  deepLink: 'acme://parcels/4711',
  androidChannelId: null,
  priority: 'high',
  actionButtons: [],
  dataPayload: { parcel: '4711' },
};

/** Of every browser here: what is measured does not depend on them. */
const browser = createECDH('prime256v1');
browser.generateKeys();
const keys = {
  p256dh: browser.getPublicKey('base64url'),
  auth: randomBytes(16).toString('base64url'),
};

export async function benchPush(): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const peer = startModule('bench/push-peer-process.ts', []);
    const { port } = (await peer.nextLine((line) => 'port' in line)) as { port: number };
    const origin = `https://127.0.0.1:${port}`;
    await giveCredentials(installation);
    const worker = startModule('bench/push-worker-process.ts', [installation.dataDirectory, origin]);
    await worker.nextLine((line) => line.ready === true);
    for (const platform of platforms) {
      const send = (count: number) =>
        deliver(installation, worker, {
          measured: platform,
          seed: (target, wanted) => seedPushes(target, platform, origin, wanted),
          count,
          endStatus: 'sent',
        });
      // Both run on compiled code: a cold loop takes twice the time.
      await measureBaseline(platform, origin, warmUpCount);
      await send(warmUpCount);
      const runs: { baseline: DeliveryRun[]; own: DeliveryRun[] } = { baseline: [], own: [] };
      for (let round = 0; round < roundsCount; round += 1) {
        runs.baseline.push(
          await measureBaseline(platform, origin, platform === 'web' ? webPushCount : devicesCount),
        );
        runs.own.push(await send(devicesCount));
      }
      report(platform, runs);
    }
    await worker.stop();
    await peer.stop();
  } finally {
    await installation.remove();
  }
}

async function giveCredentials({ database, organizationId, secrets }: BenchInstallation): Promise<void> {
  const pem = (key: ReturnType<typeof generateKeyPairSync>['privateKey']) =>
    key.export({ type: 'pkcs8', format: 'pem' }).toString();
  const all: readonly CredentialsContent[] = [
    makeVapidPair(),
    {
      platform: 'ios',
      keyId: 'ABCDEFGHIJ',
      teamId: 'KLMNOPQRST',
      topic: 'com.example.app',
      privateKey: pem(generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey),
    },
    {
      platform: 'android',
      projectId: 'bench',
      clientEmail: 'push@bench.iam.gserviceaccount.com',
      privateKeyId: '1',
      privateKey: pem(generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey),
    },
  ];
  const tools = { database, clock: systemClock, newId: createIds(systemClock), secrets };
  for (const credentials of all)
    await setCredentials(tools, organizationId, credentials, { replacesPair: false });
}

const accounts: Readonly<Record<Platform, (origin: string) => string>> = {
  web: (origin) => `web ${new URL(origin).host}`,
  ios: () => 'ios production',
  android: () => 'android',
};

/** Contacts with a device each, and a campaign's message to all of them. */
async function seedPushes(
  installation: BenchInstallation,
  platform: Platform,
  origin: string,
  count: number,
): Promise<void> {
  const { database, organizationId } = installation;
  await database.rows(unpreparedStatement('delete from devices'));
  await database.rows(unpreparedStatement('delete from contacts'));
  const messageId = createIds(systemClock)();
  await database.rows(
    unpreparedStatement(
      `insert into contacts (organization_id, id, external_id, created_at, updated_at)
       select $1, uuidv7(), 'person-' || n, now(), now() from generate_series(1, $2::integer) n`,
    ),
    [organizationId, count],
  );
  const isWeb = platform === 'web';
  await database.rows(
    unpreparedStatement(
      `insert into devices (organization_id, id, installation_id, contact_id, platform, token, token_sha256,
         apns_environment, p256dh_key, auth_key, vapid_public_key, status, opted_out, secret_sha256, sdk_version,
         registered_at, created_at, updated_at)
       select $1, uuidv7(), c.external_id, c.id, $2, t.token, sha256(t.token::bytea),
         case when $2 = 'ios' then 'production' end, $4, $5, $6, 'ACTIVE', false, sha256(c.id::text::bytea),
         case when $2 = 'android' then '1.0' end, now(), now(), now()
       from contacts c
       cross join lateral (select $3 || encode(sha256(c.id::text::bytea), 'hex') as token) t
       where c.organization_id = $1`,
    ),
    [
      organizationId,
      platform,
      isWeb ? `${origin}/` : '',
      isWeb ? keys.p256dh : null,
      isWeb ? keys.auth : null,
      isWeb ? 'any' : null,
    ],
  );
  await database.rows(
    unpreparedStatement(
      `with new_message as (
         insert into messages (organization_id, id, channel, class, sender, subject, subject_key, details,
           recipient_count, created_at, updated_at)
         values ($1, $2, 'push', 'campaign', '', $3, 'news', '{}', $4, now(), now())
       )
       insert into message_contents (organization_id, message_id, content) values ($1, $2, $5)`,
    ),
    [
      organizationId,
      messageId,
      content.title,
      count,
      JSON.stringify({
        title: content.title,
        body: content.body,
        deep_link: content.deepLink,
        priority: content.priority,
        data_payload: content.dataPayload,
      }),
    ],
  );
  await database.rows(
    unpreparedStatement(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, variables, status_at)
       select organization_id, $2, row_number() over (), 'to', $3 || ' ' || id, contact_id, '{}', now()
       from devices
       where organization_id = $1`,
    ),
    [organizationId, messageId, accounts[platform](origin)],
  );
  await holdSlices(installation, messageId, 'push');
}

function measureBaseline(platform: Platform, origin: string, count: number): Promise<DeliveryRun> {
  switch (platform) {
    case 'web':
      return sendByWebPush(origin, count);
    case 'ios':
      return sendByHttp2(origin, '/3/device/', composeForApns(anyId, content), count);
    case 'android': {
      const message = { token: 'a'.repeat(64), ...composeForFcm(anyId, content, true) };
      return sendByHttp2(
        origin,
        '/v1/projects/bench/messages:send',
        Buffer.from(JSON.stringify({ message })),
        count,
      );
    }
  }
}

const anyId = '01980000-0000-7000-8000-000000000000';

async function measure(measured: string, count: number, send: () => Promise<void>): Promise<DeliveryRun> {
  const ownBeforeUs = cpuUs(process.pid) ?? Number.NaN;
  const startedAtMs = performance.now();
  await send();
  const perSecond = count / ((performance.now() - startedAtMs) / 1_000);
  const workerUs = ((cpuUs(process.pid) ?? Number.NaN) - ownBeforeUs) / count;
  return { measured, perSecond, workerUs, postgresUs: null };
}

function sendByWebPush(origin: string, count: number): Promise<DeliveryRun> {
  const agent = new https.Agent({
    keepAlive: true,
    maxSockets: webPushConnections,
    ca: certificateForTests,
  });
  const payload = JSON.stringify(content);
  const { publicKey, privateKey } = webPush.generateVAPIDKeys();
  const options = {
    agent,
    TTL: 60,
    vapidDetails: { subject: 'https://push.example.com', publicKey, privateKey },
  };
  let sent = 0;
  const sendOneByOne = async () => {
    while (sent < count) {
      sent += 1;
      await webPush.sendNotification({ endpoint: `${origin}/${sent}`, keys }, payload, options);
    }
  };
  return measure('the web-push package, in a loop', count, async () => {
    await Promise.all(Array.from({ length: webPushConnections }, sendOneByOne));
    agent.destroy();
  });
}

function sendByHttp2(origin: string, path: string, body: Buffer, count: number): Promise<DeliveryRun> {
  return measure('a bare node:http2 session', count, async () => {
    const session = connect(origin, { ca: certificateForTests, maxSessionMemory: 256 });
    await new Promise((resolve) => session.once('remoteSettings', resolve));
    let sent = 0;
    const sendOne = () =>
      new Promise<void>((resolve, reject) => {
        const stream = session.request({
          ':method': 'POST',
          ':path': path,
          authorization: 'bearer of the benchmark',
          'content-type': 'application/json',
        });
        stream.on('error', reject);
        stream.on('data', () => undefined);
        stream.on('close', () => {
          resolve();
        });
        stream.end(body);
      });
    const sendOneByOne = async () => {
      while (sent < count) {
        sent += 1;
        await sendOne();
      }
    };
    await Promise.all(Array.from({ length: streamsMax }, sendOneByOne));
    session.destroy();
  });
}

const names: Readonly<Record<Platform, string>> = { web: 'Web Push', ios: 'APNs', android: 'FCM' };

function report(platform: Platform, runs: Readonly<Record<'baseline' | 'own', DeliveryRun[]>>): void {
  const baseline = median(runs.baseline.map(({ perSecond }) => perSecond));
  console.log(
    `\npush: ${names[platform]}, from the queue to a service 50 ms away, medians of interleaved rounds`,
  );
  console.table(
    Object.entries(runs).map(([kind, all]) => {
      const perSecond = median(all.map((run) => run.perSecond));
      return {
        name: kind === 'own' ? 'a campaign, outcomes written' : all[0]?.measured,
        'per second': Math.round(perSecond),
        'to baseline': (perSecond / baseline).toFixed(2),
        'sender µs': Math.round(median(all.map(({ workerUs }) => workerUs ?? Number.NaN))),
        'PostgreSQL µs': Math.round(median(all.map(({ postgresUs }) => postgresUs ?? Number.NaN))),
      };
    }),
  );
}
