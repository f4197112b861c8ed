import { setTimeout as delay } from 'node:timers/promises';
import { emptyQueue } from './end.ts';
import type { Victim } from './faults.ts';
import { createInstallation, type Installation, type Sender } from './installation.ts';
import { expectEmpty, expectInto } from './invariants.ts';
import { createRandom, type Random } from './random.ts';
import { findOwnEnds } from './servers.ts';
import type { Delivery } from './sink.ts';

/**
 * One campaign, while processes are killed and its contacts change: they unsubscribe, are deleted, move to another
 * address, and new ones join its list. It must reach exactly those of its frozen audience who still want it, once.
 */
export type CampaignPlan = { seed: number; contacts: number; kills: number };

export type CampaignReport = {
  kills: Record<Victim, number>;
  audience: number;
  delivered: number;
  bounced: number;
  dropped: number;
  uncertain: number;
  changes: number;
  seconds: number;
  /** A sentence each, with an example. */
  violations: string[];
  evidence: string | null;
};

export async function runCampaign(
  plan: CampaignPlan,
  onStart: (abandon: () => Promise<void>) => void,
): Promise<CampaignReport> {
  const installation = await createInstallation();
  onStart(() => installation.remove(false));
  let isClean = false;
  try {
    const report = await killWhileSending(installation, plan);
    isClean = report.violations.length === 0;
    return { ...report, evidence: isClean ? null : installation.directory };
  } finally {
    await installation.remove(!isClean);
  }
}

async function killWhileSending(
  installation: Installation,
  plan: CampaignPlan,
): Promise<Omit<CampaignReport, 'evidence'>> {
  const { api, workers, senders, ask } = installation;
  const [sender] = senders;
  await fillList(installation, sender, plan.contacts);
  for (const server of [api, ...workers]) server.start();
  await Promise.all([api, ...workers].map((server) => server.whenReady()));

  const client = createClient(installation, sender);
  const { id } = await client.post('/v1/email/campaigns', {
    name: 'Chaos',
    from: `hello@${sender.domain}`,
    subject: 'For {{first_name}}',
    html: '<p>Hello {{first_name}}</p>',
    list_ids: [listId],
  });
  const startedAtMs = performance.now();
  await client.post(`/v1/email/campaigns/${id}/send`, {}, { 'idempotency-key': 'send once' });
  const expected = await whenFrozen(installation, sender, id);

  const ends = new AbortController();
  const changing = changeContacts(client, expected, createRandom(plan.seed, 'changes'), ends.signal);
  const kills = countKills(await killMany(installation, plan.kills, createRandom(plan.seed, 'kills')));
  ends.abort();
  const changes = await changing;
  const seconds = await whenSent(installation, sender, id, startedAtMs);

  const violations = await compare(installation, sender, { id, expected, changes });
  const [sums] = await ask<Pick<CampaignReport, 'delivered' | 'bounced' | 'dropped' | 'uncertain'>>(
    `select sum(delivered) as delivered, sum(bounced) as bounced, sum(dropped) as dropped, sum(uncertain) as uncertain
     from recipient_counts`,
  );
  return {
    kills,
    audience: expected.size,
    ...(sums ?? { delivered: 0, bounced: 0, dropped: 0, uncertain: 0 }),
    changes: changes.unsubscribedAtMs.size + changes.deletedAtMs.size + changes.others,
    seconds,
    violations,
  };
}

const listId = '01999999-0000-7000-8000-00000000000a';

/** Of a hundred: one has unsubscribed, one is suppressed, one has no address, one never existed, one is put off once. */
async function fillList({ ask, suppressed }: Installation, sender: Sender, contacts: number): Promise<void> {
  await ask(
    `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at)
     values ($1, $2, 'list', 'Everybody', 'everybody', now(), now())`,
    [sender.organizationId, listId],
  );
  await ask(
    `with made as (
       insert into contacts (organization_id, id, external_id, email, email_key, first_name, unsubscribed_channels,
         created_at, updated_at)
       select $1, lowest_id_at(now() - n * interval '1 second'), 'c' || n, email, email, 'N' || n,
         case when n % 100 = 1 then '{email}' else '{}' end::text[], now() - interval '1 day', now() - interval '1 day'
       from (
         select n,
           case
             when n % 100 = 2 and n / 100 < $4 then 'gone-' || n / 100 || '@example.com'
             when n % 100 = 3 then null
             when n % 100 = 4 then 'unknown-' || n || '@example.com'
             when n % 100 = 5 then 'later-' || n || '@example.com'
             else 'r-' || n || '@example.com'
           end as email
         from generate_series(1, $3::integer) n
       ) numbered
       returning id
     )
     insert into memberships (organization_id, set_id, contact_id) select $1, $2, id from made`,
    [sender.organizationId, listId, contacts, suppressed.length],
  );
  await ask('analyze contacts, memberships');
}

type Client = {
  post: (path: string, body: object, headers?: Readonly<Record<string, string>>) => Promise<{ id: string }>;
  /** Makes one attempt; returns whether the response was a success. */
  tryTo: (method: string, path: string, body?: object) => Promise<boolean>;
};

const retryPauseMs = 50;
const triesMax = 600;

function createClient({ apiUrl }: Installation, sender: Sender): Client {
  const ask = (method: string, path: string, body?: object, headers: Readonly<Record<string, string>> = {}) =>
    fetch(`${apiUrl}${path}`, {
      method,
      headers: { authorization: `Bearer ${sender.key}`, 'content-type': 'application/json', ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(30_000),
    });
  return {
    post: async (path, body, headers) => {
      for (let attempt = 1; ; attempt += 1) {
        const response = await ask('POST', path, body, headers).catch(() => null);
        if (response?.ok === true) return (await response.json()) as { id: string };
        if (attempt === triesMax || (response !== null && response.status < 500)) {
          throw new Error(`${path}: ${response === null ? 'no answer' : await response.text()}`);
        }
        await delay(retryPauseMs);
      }
    },
    tryTo: async (method, path, body) => (await ask(method, path, body).catch(() => null))?.ok ?? false,
  };
}

/** The addresses that it must go to, by contact. The test changes no contact before it has them. */
async function whenFrozen({ ask }: Installation, sender: Sender, id: string): Promise<Map<string, string>> {
  for (;;) {
    const [campaign] = await ask<{ is_frozen: boolean }>(
      'select frozen_at is not null and frozen_through is null as is_frozen from campaigns where organization_id = $1 and id = $2',
      [sender.organizationId, id],
    );
    if (campaign?.is_frozen === true) break;
    await delay(5);
  }
  const rows = await ask<{ id: string; email_key: string }>(
    `select id, email_key
     from contacts
     where organization_id = $1 and email_key is not null and unsubscribed_channels = '{}'
       and email_key not like 'gone-%'`,
    [sender.organizationId],
  );
  return new Map(rows.map((row) => [row.id, row.email_key]));
}

type Changes = {
  /** The contacts of all requested changes, answered or not. */
  attempted: Set<string>;
  unsubscribedAtMs: Map<string, number>;
  deletedAtMs: Map<string, number>;
  others: number;
};

const changePauseMs = 20;

/** Notes when each request was answered. A change without an answer may or may not have been made. */
async function changeContacts(
  client: Client,
  expected: ReadonlyMap<string, string>,
  random: Random,
  signal: AbortSignal,
): Promise<Changes> {
  const changes: Changes = {
    attempted: new Set(),
    unsubscribedAtMs: new Map(),
    deletedAtMs: new Map(),
    others: 0,
  };
  const ids = [...expected.keys()];
  for (let number = 1; !signal.aborted; number += 1) {
    const id = random.pick(ids as [string, ...string[]]);
    const path = `/v1/contacts/${id}`;
    if (number % 4 < 2) changes.attempted.add(id);
    switch (number % 4) {
      case 0:
        if (await client.tryTo('PATCH', path, { consent: { email: 'unsubscribed' } }))
          changes.unsubscribedAtMs.set(id, Date.now());
        break;
      case 1:
        if (await client.tryTo('DELETE', path)) changes.deletedAtMs.set(id, Date.now());
        break;
      case 2:
        if (await client.tryTo('PATCH', path, { email: `moved-${number}@example.com` })) changes.others += 1;
        break;
      case 3:
        if (
          await client.tryTo('POST', '/v1/contacts', {
            email: `new-${number}@example.com`,
            list_ids: [listId],
          })
        )
          changes.others += 1;
        break;
    }
    await delay(changePauseMs);
  }
  return changes;
}

const killPausesMs = [200, 1_200] as const;

/** A kill, in epoch milliseconds: until the process was gone or, of PostgreSQL, until the next one took a connection. */
export type Interval = { victim: Victim; beganAtMs: number; endedAtMs: number };

export async function killMany(
  installation: Installation,
  count: number,
  random: Random,
  pausesMs: readonly [number, number] = killPausesMs,
): Promise<Interval[]> {
  const kills: Interval[] = [];
  for (let killed = 0; killed < count; killed += 1) {
    await delay(random.between(...pausesMs));
    const victim = random.pick<Victim>(['worker', 'worker', 'postgres', 'api']);
    const beganAtMs = Date.now();
    const note = (endedAtMs: number) => kills.push({ victim, beganAtMs, endedAtMs });
    if (victim === 'postgres') {
      note(await installation.killPostgres());
      continue;
    }
    const server = victim === 'api' ? installation.api : random.pick(installation.workers);
    await server.kill();
    note(Date.now());
    server.start();
  }
  return kills;
}

export function countKills(kills: readonly Interval[]): Record<Victim, number> {
  const counts: Record<Victim, number> = { api: 0, worker: 0, postgres: 0 };
  for (const { victim } of kills) counts[victim] += 1;
  return counts;
}

/** A process that is killed wakes no other: the workers find the campaign when they next look by themselves. */
const standstillMs = 150_000;

/** Seconds since it was sent. */
async function whenSent(
  installation: Installation,
  sender: Sender,
  id: string,
  startedAtMs: number,
): Promise<number> {
  let progress = '';
  let progressAtMs = performance.now();
  for (;;) {
    await emptyQueue(installation);
    const [campaign] = await installation.ask<{ status: string; admitted: number; settled: number }>(
      `select status, pause_reason, admitted,
         (select sum(delivered + bounced + failed + dropped + uncertain) from recipient_counts) as settled
       from campaigns
       where organization_id = $1 and id = $2`,
      [sender.organizationId, id],
    );
    if (campaign?.status === 'sent') return Math.round((performance.now() - startedAtMs) / 1_000);
    const present = JSON.stringify(campaign);
    if (present !== progress) {
      progress = present;
      progressAtMs = performance.now();
    }
    if (performance.now() - progressAtMs > standstillMs) throw new Error(`the campaign is ${present}`);
    await delay(100);
  }
}

type Recipient = {
  contact_id: string;
  ordinal: number;
  message_id: string;
  address_key: string;
  status: string;
  drop_reason: string | null;
  uncertain: boolean;
};

/** Consent is looked at again before a hand-off. */
const consentMsMax = 5_000;

async function compare(
  installation: Installation,
  sender: Sender,
  { id, expected, changes }: { id: string; expected: ReadonlyMap<string, string>; changes: Changes },
): Promise<string[]> {
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  const recipients = await installation.ask<Recipient>(
    `select r.contact_id, r.ordinal, r.message_id, r.address_key, r.status, r.drop_reason, r.uncertain
     from recipients r
     join campaigns c using (organization_id, message_id)
     where c.organization_id = $1 and c.id = $2`,
    [sender.organizationId, id],
  );
  const deliveries = await installation.sink.readDeliveries();
  const ofRecipient = groupDeliveries(deliveries);
  const found = new Set(recipients.map(({ contact_id }) => contact_id));
  expectNone(
    'of the frozen audience, and not a recipient',
    [...expected.keys()].filter((key) => !found.has(key)),
  );
  expectNone(
    'a recipient, and not of the frozen audience',
    [...found].filter((key) => !expected.has(key)),
  );
  expectNone(
    'a contact with two rows',
    recipients.length === found.size ? [] : [`${recipients.length - found.size}`],
  );
  const deliveriesOf = ({ message_id, ordinal }: Recipient) =>
    ofRecipient.get(`${message_id}.${ordinal}`) ?? [];
  expectNone(
    'delivered twice',
    recipients
      .filter((recipient) => deliveriesOf(recipient).length > 1)
      .map(({ address_key }) => address_key),
  );
  expectNone(
    'an address that got two copies',
    [...countBy(deliveries.map(({ recipient }) => recipient))]
      .filter(([, count]) => count > 1)
      .map(([address]) => address),
  );
  expectNone(
    'without a fate',
    recipients
      .filter(
        (each) => ['sent', 'delayed'].includes(each.status) && each.drop_reason === null && !each.uncertain,
      )
      .map(({ address_key }) => address_key),
  );
  expectNone(
    'called delivered, and never arrived',
    recipients
      .filter((each) => each.status === 'delivered' && deliveriesOf(each).length === 0)
      .map(({ address_key }) => address_key),
  );
  expectNone(
    'arrived, and neither called delivered nor uncertain',
    recipients
      .filter((each) => deliveriesOf(each).length > 0 && each.status !== 'delivered' && !each.uncertain)
      .map(({ address_key }) => address_key),
  );
  expectNone(
    'dropped, though nobody changed the contact',
    recipients
      .filter((each) => each.drop_reason !== null && !changes.attempted.has(each.contact_id))
      .map(({ address_key, drop_reason }) => `${address_key} ${drop_reason ?? ''}`),
  );
  expectNone(
    'dropped for another reason than that the contact left',
    recipients
      .filter(({ drop_reason }) => !['unsubscribed', 'contact_deleted', null].includes(drop_reason))
      .map(({ address_key, drop_reason }) => `${address_key} ${drop_reason ?? ''}`),
  );
  expectNone(
    'written to more than five seconds after it unsubscribed or was deleted',
    recipients
      .filter((each) => {
        const leftAtMs =
          changes.unsubscribedAtMs.get(each.contact_id) ??
          changes.deletedAtMs.get(each.contact_id) ??
          Infinity;
        return deliveriesOf(each).some(({ atMs }) => atMs > leftAtMs + consentMsMax);
      })
      .map(({ address_key }) => address_key),
  );
  expectNone(
    'written to, though it was suppressed',
    deliveries.filter(({ recipient }) => recipient.startsWith('gone-')).map(({ recipient }) => recipient),
  );
  await expectEmpty(installation, emptyQueries, expectNone);
  violations.push(...findOwnEnds(installation));
  return violations;
}

/** By message and ordinal, which the Message-ID of each copy holds. */
function groupDeliveries(deliveries: readonly Delivery[]): Map<string, Delivery[]> {
  const groups = new Map<string, Delivery[]>();
  for (const delivery of deliveries) {
    const group = groups.get(delivery.messageId);
    if (group === undefined) groups.set(delivery.messageId, [delivery]);
    else group.push(delivery);
  }
  return groups;
}

function countBy(values: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}

/** Each returns the rows that violate an invariant. */
const emptyQueries: Readonly<Record<string, string>> = {
  'a count that is not that of the rows': `
    with recounted as (
      select organization_id, message_id, ordinal / 1000 as slice,
        count(*) filter (where handed_off_at is not null) as handed_off,
        count(*) filter (where status = 'delivered') as delivered,
        count(*) filter (where status = 'bounced') as bounced,
        count(*) filter (where drop_reason is not null) as dropped,
        count(*) filter (where uncertain) as uncertain
      from recipients
      where contact_id is not null
      group by 1, 2, 3
    )
    select *
    from recounted r
    left join recipient_counts n using (organization_id, message_id, slice)
    where (r.handed_off, r.delivered, r.bounced, r.dropped, r.uncertain)
      is distinct from (n.handed_off, n.delivered, n.bounced, n.dropped, n.uncertain)`,
  'a change that was never counted': 'select * from recipient_changes',
  'an audience that its exclusions do not complete': `
    select id from campaigns
    where candidates <> audience + excluded_unsubscribed + excluded_suppressed + excluded_no_address + excluded_duplicate`,
  'a quota that is not what was let into the queue': `
    select u.used, r.admitted
    from (select sum(used) as used from quota_usage) u,
      (select count(*) as admitted from recipients where drop_reason is null or handed_off_at is not null) r
    where u.used < r.admitted`,
  'a campaign that was handed off, and never begun': `
    select id from campaigns where started_at is null and exists (select from recipient_counts where handed_off > 0)`,
  'a slice of the audience that was forgotten': 'select number from campaign_slices',
  'a job left in the queue': 'select message_id, due_at, claimed_by, attempts, crashes from delivery_queue',
  'a slice left in the queue': 'select message_id, first_ordinal, claimed_by, writes from delivery_slices',
};
