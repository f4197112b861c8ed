import { createECDH, randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { decrypt } from 'http_ece';
import { certificateForTests } from '../support/certificate-for-tests.ts';
import type { Installation, Sender } from './installation.ts';
import { checkAcceptance, type Expect, expectEmpty, expectInto, queueLeftovers } from './invariants.ts';
import type { Ledger, Send } from './load.ts';
import {
  type MessagesReport,
  type OnStart,
  runOnInstallation,
  sendWhileKilling,
  startAll,
} from './messages.ts';
import { composePath, isGonePath, type Line, type PushService, startPushService } from './push-service.ts';
import { createRandom, type Random } from './random.ts';
import { findOwnEnds } from './servers.ts';

/**
 * Pushes to browsers, while processes are killed and their push service cuts connections, resets streams, says GOAWAY,
 * puts pushes off, keeps answers back, and calls subscriptions gone.
 *
 * Each browser must have been told each push once, or once more for each ambiguity that is recorded; and what the
 * database says of it must agree with the log of the push service. Browsers share a key, by which what they were told is
 * read.
 */
export type PushPlan = { seed: number; notifications: number; kills: number };

/** A contact of an organization, with the browsers that it has registered. */
type Person = { sender: Sender; externalId: string; browsers: Browser[] };

type Browser = { deviceId: string; path: string };

export function runPush(plan: PushPlan, onStart: OnStart): Promise<MessagesReport> {
  return runOnInstallation(
    onStart,
    async (directory) => {
      const remote = await startPushService(path.join(directory, 'pushes.log'), plan.seed);
      const authorities = path.join(directory, 'authorities.pem');
      await writeFile(authorities, certificateForTests);
      return {
        remote,
        settings: {
          POSTILLION_PUSH_PROVIDER: 'direct',
          POSTILLION_WEB_PUSH_HOSTS: remote.host,
          NODE_EXTRA_CA_CERTS: authorities,
        },
      };
    },
    (installation, service) => killWhileSending(installation, service, plan),
  );
}

const perSecond = 125;

const browsersPerPerson = [1, 1, 2, 2, 3, 3] as const;
const browsersPerPersonMean = 2;
const peoplePerSender = 60;
const goneShare = 0.1;

async function killWhileSending(
  installation: Installation,
  service: PushService,
  plan: PushPlan,
): Promise<Omit<MessagesReport, 'evidence'>> {
  await startAll(installation);
  const random = createRandom(plan.seed, 'pushes');
  const browserKey = createBrowserKey();
  const peopleOf = (sender: Sender) => registerPeople(installation, service, browserKey, sender, random);
  const people = (await Promise.all(installation.senders.map(peopleOf))).flat();

  const startedAtMs = performance.now();
  const sends = Math.ceil(plan.notifications / browsersPerPersonMean);
  const draw = (name: string) => drawPush(pickFrom(people, random), name);
  const load = { name: 'push', sends, kills: plan.kills, perSecond, draw };
  const sent = await sendWhileKilling(installation, load, { seed: plan.seed, random });
  const seconds = Math.round((performance.now() - startedAtMs) / 1_000);

  const compared = { ledger: sent.ledger, people, browserKey };
  const findings = await compare(installation, compared, await service.readLog());
  return { ...findings, ...sent, seconds };
}

type BrowserKey = { p256dh: string; auth: string; open: (body: Buffer) => Buffer };

function createBrowserKey(): BrowserKey {
  const privateKey = createECDH('prime256v1');
  privateKey.generateKeys();
  const authSecret = randomBytes(16).toString('base64url');
  return {
    p256dh: privateKey.getPublicKey('base64url'),
    auth: authSecret,
    open: (body) => decrypt(body, { version: 'aes128gcm', privateKey, authSecret }),
  };
}

/** Contacts of the same names in every organization, each with its own browsers. */
async function registerPeople(
  { apiUrl }: Installation,
  { host }: PushService,
  { p256dh, auth }: BrowserKey,
  sender: Sender,
  random: Random,
): Promise<Person[]> {
  const post = async <Answer>(route: string, body: object): Promise<Answer> => {
    const response = await fetch(`${apiUrl}/v1${route}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${sender.key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${route} was answered ${response.status}: ${await response.text()}`);
    return (await response.json()) as Answer;
  };
  const people: Person[] = [];
  const registrations: { person: Person; endpointPath: string; body: object }[] = [];
  for (let number = 1; number <= peoplePerSender; number += 1) {
    const externalId = `person-${number}`;
    await post('/contacts', { external_id: externalId });
    const person: Person = { sender, externalId, browsers: [] };
    people.push(person);
    for (let browser = 1; browser <= random.pick(browsersPerPerson); browser += 1) {
      // Nobody has gone browsers alone, so that every push has somewhere to go.
      const isGone = browser > 1 && random.isLucky(goneShare);
      const endpointPath = composePath(isGone, `${sender.domain}/${number}/${browser}`);
      const body = {
        external_id: externalId,
        installation_id: `${externalId}-${browser}`,
        platform: 'web',
        endpoint: `https://${host}${endpointPath}`,
        p256dh_key: p256dh,
        auth_key: auth,
      };
      registrations.push({ person, endpointPath, body });
    }
  }
  const { data } = await post<{ data: { id?: string }[] }>('/push/devices/bulk', {
    devices: registrations.map(({ body }) => body),
  });
  for (const [index, { person, endpointPath }] of registrations.entries()) {
    const deviceId = data[index]?.id;
    if (deviceId === undefined) throw new Error(`not registered: ${JSON.stringify(data[index])}`);
    person.browsers.push({ deviceId, path: endpointPath });
  }
  return people;
}

function pickFrom(people: readonly Person[], random: Random): Person {
  return people[Math.floor(random.between(0, people.length))]!; // There are `peoplePerSender` of each.
}

function drawPush({ sender, externalId, browsers }: Person, name: string): Send {
  const key = `key-${name}`;
  return {
    sender,
    key,
    recipients: browsers.map(({ deviceId }) => deviceId),
    path: '/v1/push/send',
    body: { external_id: externalId, title: `Chaos ${key}`, body: 'It is all right.' },
    ids: new Set(),
  };
}

type Recipient = {
  message_id: string;
  device_id: string;
  status: string;
  failure_class: string | null;
  drop_reason: string | null;
  uncertain: boolean;
  ambiguities: number;
  message_status: string;
  is_queued: boolean;
};

/** What the push service knows of one push for one browser. */
type Truth = { taken: number; cut: number; refused: number };

const nothing: Truth = { taken: 0, cut: 0, refused: 0 };

type Compared = { ledger: Ledger; people: readonly Person[]; browserKey: BrowserKey };

async function compare(
  installation: Installation,
  { ledger, people, browserKey }: Compared,
  lines: readonly Line[],
): Promise<Pick<MessagesReport, 'counts' | 'lost' | 'repeats' | 'violations'>> {
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  const truths = groupLines(lines);
  const paths = new Map(people.flatMap(({ browsers }) => browsers.map((each) => [each.deviceId, each.path])));
  const recipients = await installation.ask<Recipient>(
    `select r.message_id, split_part(r.address, ' ', 3) as device_id, r.status, r.failure_class, r.drop_reason,
       r.uncertain, r.ambiguities, m.status as message_status, q.message_id is not null as is_queued
     from recipients r
     join messages m on m.organization_id = r.organization_id and m.id = r.message_id
     left join delivery_queue q on q.organization_id = r.organization_id and q.message_id = r.message_id
       and q.ordinal = r.ordinal`,
  );
  const pathOf = ({ device_id }: Recipient) => paths.get(device_id) ?? '';
  const keyOf = (each: Recipient) => `${each.message_id.replaceAll('-', '')} ${pathOf(each)}`;
  const truthOf = (each: Recipient) => truths.get(keyOf(each)) ?? nothing;
  const nameOf = (each: Recipient) => `${keyOf(each)} ${each.status} ${JSON.stringify(truthOf(each))}`;
  const isGone = (each: Recipient) => isGonePath(pathOf(each));
  const stored = new Set(recipients.map(keyOf));
  const accepted = ledger.sends.filter(({ ids }) => ids.size > 0);

  await checkAcceptance(installation, ledger, expectNone);
  const lost = [
    ...accepted.flatMap(({ ids: [id = ''], recipients: deviceIds }) =>
      deviceIds
        .map((deviceId) => `${id.replaceAll('-', '')} ${paths.get(deviceId) ?? ''}`)
        // A browser that was found to be gone is not among the recipients of later pushes.
        .filter((key) => !stored.has(key) && !isGonePath(key.split(' ')[1] ?? '')),
    ),
    ...recipients
      .filter((each) => !each.uncertain && !each.is_queued && !isGone(each) && truthOf(each).taken === 0)
      .map(nameOf),
  ];
  expectNone('accepted, and neither taken, uncertain nor queued', lost);
  const repeats = recipients.filter((each) => truthOf(each).taken > 1);
  expectNone(
    'told more often than its recorded ambiguities explain',
    recipients.filter((each) => truthOf(each).taken > 1 + each.ambiguities).map(nameOf),
  );
  expectNone(
    'taken, and unknown to the database',
    [...truths].filter(([key, { taken }]) => taken > 0 && !stored.has(key)).map(([key]) => key),
  );
  expectNone('told something else', findChangedPushes(accepted, browserKey, lines));
  checkStatuses(recipients, { truthOf, nameOf, isGone }, expectNone);
  // One whose answers were all lost with a worker is found out at its next push.
  const calledGone = new Set(
    recipients.filter(({ failure_class }) => failure_class === 'unregistered').map((each) => each.device_id),
  );
  expectNone(
    'gone, and still active',
    (await installation.ask<{ id: string }>("select id from devices where status = 'ACTIVE'"))
      .filter(({ id }) => calledGone.has(id))
      .map(({ id }) => paths.get(id) ?? ''),
  );
  expectNone(
    'retired, though nobody called it gone',
    (await installation.ask<{ id: string }>("select id from devices where status <> 'ACTIVE'"))
      .map(({ id }) => paths.get(id) ?? '')
      .filter((each) => !isGonePath(each)),
  );
  await expectEmpty(installation, emptyQueries, expectNone);
  violations.push(...findOwnEnds(installation));
  const ambiguous = recipients.filter(({ ambiguities }) => ambiguities > 0);
  const counts = {
    accepted: accepted.length,
    notifications: recipients.length,
    'hand-offs cut off': ambiguous.length,
    '… of which told again': ambiguous.filter((each) => truthOf(each).taken > 1).length,
    '… uncertain to the end': recipients.filter(({ uncertain }) => uncertain).length,
    'requests cut by the push service': lines.filter(({ kind }) => kind === 'cut').length,
    'requests put off or refused by it': lines.filter(({ kind }) => kind === 'refused').length,
    'browsers found to be gone': recipients.filter(({ failure_class }) => failure_class === 'unregistered')
      .length,
  };
  return { counts, lost: lost.length, repeats: repeats.length, violations };
}

function groupLines(lines: readonly Line[]): Map<string, Truth> {
  const truths = new Map<string, Truth>();
  for (const { kind, topic, path: endpointPath } of lines) {
    const key = `${topic} ${endpointPath}`;
    const truth = truths.get(key) ?? { ...nothing };
    truths.set(key, truth);
    truth[kind] += 1;
  }
  return truths;
}

/** What each browser was told, as it reads it, is what was sent under that id. */
function findChangedPushes(
  accepted: readonly Send[],
  { open }: BrowserKey,
  lines: readonly Line[],
): string[] {
  const titles = new Map(
    accepted.flatMap(({ ids, body }) => [...ids].map((id) => [id.replaceAll('-', ''), body.title])),
  );
  return lines.flatMap((line) => {
    if (line.kind !== 'taken') return [];
    const told = JSON.parse(open(Buffer.from(line.body, 'base64')).toString()) as { title: string };
    return told.title === titles.get(line.topic) ? [] : [`${line.topic} ${line.path} ${told.title}`];
  });
}

function checkStatuses(
  recipients: readonly Recipient[],
  {
    truthOf,
    nameOf,
    isGone,
  }: {
    truthOf: (recipient: Recipient) => Truth;
    nameOf: (recipient: Recipient) => string;
    isGone: (recipient: Recipient) => boolean;
  },
  expectNone: Expect,
): void {
  const done = recipients.filter(({ is_queued }) => !is_queued);
  expectNone(
    'failed, though its browser is there',
    done
      .filter((each) => !isGone(each) && (each.status === 'failed' || each.drop_reason !== null))
      .map(nameOf),
  );
  expectNone(
    'called sent, though its browser is gone',
    done
      .filter(
        (each) => isGone(each) && each.status === 'sent' && !each.uncertain && each.drop_reason === null,
      )
      .map(nameOf),
  );
  expectNone(
    'uncertain, though no hand-off of it was cut off',
    done.filter(({ uncertain, ambiguities }) => uncertain && ambiguities === 0).map(nameOf),
  );
  expectNone(
    'put off, and then forgotten',
    done.filter(({ status, uncertain }) => status === 'delayed' && !uncertain).map(nameOf),
  );
  expectNone(
    'cut off more often than it may be repeated',
    done.filter(({ ambiguities }) => ambiguities > 2).map(nameOf),
  );
  expectNone(
    'a push whose status is not that of its devices',
    done
      .filter((each) => each.message_status !== 'sent' && truthOf(each).taken > 0 && !each.uncertain)
      .map((each) => `${nameOf(each)} ${each.message_status}`),
  );
}

/** Each returns what must not be. */
const emptyQueries: Readonly<Record<string, string>> = {
  'a quota that is not the number of pushes': `
    select m.organization_id, m.pushes, coalesce(u.used, 0) as used
    from (select organization_id, count(*) as pushes from messages group by 1) m
    left join (
      select organization_id, sum(used) as used from quota_usage where channel = 'push' group by 1
    ) u using (organization_id)
    where m.pushes is distinct from u.used`,
  ...queueLeftovers,
};
