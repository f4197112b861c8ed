/**
 * What every channel promises (src/messages/channel.ts, src/campaigns/channel.ts), tested in the same way for each.
 * Where channels differ, the harness states what is expected in plain words and values, and never reads it off the
 * channel. Only the provider is not real: each copy is handed to the test, which chooses its outcome.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import type { CampaignChannel } from '../../src/campaigns/campaigns.ts';
import { cancelCampaign, createCampaign, sendCampaign } from '../../src/campaigns/lifecycle.ts';
import { advanceCampaign, freezeCampaign, type RunningTools } from '../../src/campaigns/running.ts';
import type { SendOutcome } from '../../src/channels/outcome.ts';
import {
  type Acceptor,
  applyReports,
  type ChannelDelivery,
  countChangedRecipients,
  createAcceptor,
  findByProviderIds,
  findMessage,
  listMessages,
  noHorizon,
  type MessageChannel,
  type MessageChannels,
  type RecipientStatus,
  startDelivery,
  type Submission,
} from '../../src/messages/messages.ts';
import { claimDueJobs } from '../../src/messages/delivery/claim-store.ts';
import { announceHandOffs, spreadSlices } from './delivery-slices.ts';
import { eraseNext } from '../../src/messages/erasure/erasure.ts';
import { now } from '../../src/platform/clock.ts';
import { PublicError } from '../../src/platform/http/errors.ts';
import { createPauses } from '../../src/platform/queue/pauses.ts';
import { campaignChannels } from '../../src/roles/channels.ts';
import { messageChannels } from './channels.ts';
import { authorize, eventually, rowsOf } from './email-journey.ts';
import type { Carry } from './pigeons.ts';
import { createSender, startTestServer, type TestServer } from './server.ts';

/** What can have become of the one recipient of a message. */
export type Fate =
  'waiting' | 'handed off' | 'uncertain' | 'dropped' | 'expired' | Exclude<RecipientStatus, 'sent'>;

/** A provider's answer, or that it is lost. */
export type Answer =
  | 'accepted'
  | 'rejected for good'
  | 'rejected for now'
  | 'rejected for an unknown reason'
  | 'deferred'
  | 'deferred in the last hour'
  | 'deferred an hour too late'
  | 'postponed'
  | 'lost'
  | 'a fault before the marker'
  | 'a fault after the marker';

export type ChannelHarness = {
  channel: MessageChannel;
  campaigns: CampaignChannel;
  /** In whose name the two organizations send, each in its own alone. */
  senders: { own: string; other: string };
  addSender: (server: TestServer, organizationId: string, sender: string) => Promise<void>;
  /** From now on it belongs to no organization. */
  removeSender: (server: TestServer, organizationId: string, sender: string) => Promise<void>;
  /** The errors for another organization's sender, for a quota that is used up, and for a suspension. */
  refusals: { sender: string | null; quota: string; suspension: string };
  /** Why a campaign fails whose sender `own` was removed. Null, as the error above, where messages have no sender. */
  obstacle: string | null;
  /** By which field contacts have addresses, or how they are given some. */
  addresses: 'email' | 'phone_number' | HarnessDevices;
  /** A message that takes one of the quota. */
  submit: (message: { organizationId: string; sender: string; to: string; text: string }) => Submission;
  inputsOf: (message: { sender: string; text: string }) => Record<string, unknown>;
  createDelivery: (server: TestServer, carry: Carry) => ChannelDelivery;
  /** Null where no recipient on the channel can have the fate. */
  statuses: Readonly<Record<Fate, string | null>>;
  /** Reasons for a refusal of the address, and of the message; and for how long what is put off is tried again. */
  reasons: { hard: string; soft: string };
  retriedForHours: number;
  /** What stands at a recipient after one attempt, `showFate`: of a transactional message, and of a campaign. */
  answers: Readonly<Record<Answer, readonly [string, string]>>;
  /** Whether an address that bounced hard is suppressed, and counts towards the reputation. */
  judgesAddresses: boolean;
  /** What becomes of the next message to an address that was refused for good. */
  afterRefusal: string;
  /** Whether a transactional message is also kept from contacts who have unsubscribed, or are gone. */
  asksContacts: boolean;
  isReportedById: boolean;
  addressAskingForSuppression: string | null;
};

/** Of a channel that reaches devices: an address is the id of a contact that has one device. */
export type HarnessDevices = {
  /** Sees to it that the organization has the contact, with its device. */
  meet: (
    server: TestServer,
    organization: { organizationId: string; key: string },
    to: string,
  ) => Promise<void>;
  /** What must not be read any more when the contact was erased. */
  traceOf: (organizationId: string, to: string) => string;
};

type Organization = { organizationId: string; key: string; sender: string };

const reply = { code: null, enhancedCode: null, diagnostic: 'Its own words', remote: null };
const hourMs = 60 * 60_000;

export function describeChannel(name: string, createHarness: () => ChannelHarness): void {
  describe(name, () => {
    const harness = createHarness();
    const { channel, campaigns } = harness;
    // Also one that the tables of the program do not know.
    const channels = { ...messageChannels, [channel.name]: channel } as MessageChannels;
    let server: TestServer;
    let own: Organization;
    let other: Organization;
    let acceptor: Acceptor;
    let runningTools: RunningTools;
    let carried: { organizationId: string; to: string; text: string }[];
    let sayings: Map<string, Saying>;
    let numbers = 0;
    const feedback = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };

    beforeAll(async () => {
      server = await startTestServer();
      const { installation } = server;
      const made = await createSender(installation, 'other.example');
      own = { organizationId: server.organizationId, key: server.key, sender: harness.senders.own };
      other = { ...made, sender: harness.senders.other };
      await harness.addSender(server, own.organizationId, own.sender);
      await harness.addSender(server, other.organizationId, other.sender);
      acceptor = createAcceptor({ ...installation, channels, onQueued: () => undefined });
      runningTools = {
        ...installation,
        channels: { ...campaignChannels, [channel.name]: campaigns },
        admissionPauses: createPauses(installation.clock),
        progressPauses: createPauses(installation.clock),
        onAdmitted: () => undefined,
      };
    });
    afterAll(() => server.stop());
    beforeEach(() => {
      carried = [];
      sayings = new Map();
    });
    afterEach(async () => {
      await changePlan(own, { quotas: { [channel.name]: null }, resume: [channel.name] });
    });

    const { addresses } = harness;

    function anAddress(): string {
      numbers += 1;
      if (typeof addresses === 'object') return server.installation.newId();
      return addresses === 'email' ? `reader${numbers}@example.com` : `+49151123${45_000 + numbers}`;
    }

    function rows<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
      return rowsOf<Row>(server, text, values);
    }

    function changePlan({ organizationId }: Organization, change: Parameters<typeof updateOrganization>[2]) {
      return updateOrganization(server.installation, organizationId, change);
    }

    async function leaveOneOfQuota(of: Organization): Promise<void> {
      const [usage] = await rows<{ used: number }>(
        'select coalesce(sum(used), 0)::integer as used from quota_usage where organization_id = $1',
        [of.organizationId],
      );
      await changePlan(of, { quotas: { [channel.name]: usage!.used + 1 } });
    }

    async function ask<Body>(from: Organization, method: string, path: string, body?: object): Promise<Body> {
      const response = await server.request<Body>(method, `/v1${path}`, body, authorize(from));
      if (response.status >= 300) throw new Error(`${method} ${path}: ${response.text}`);
      return response.body;
    }

    async function accept(from: Organization, to: string, { text = 'Hello', sender = from.sender } = {}) {
      const { organizationId } = from;
      if (typeof addresses === 'object') await addresses.meet(server, from, to);
      return acceptor.accept(harness.submit({ organizationId, sender, to, text }), null);
    }

    async function refusalOf(from: Organization, more: { sender?: string } = {}): Promise<string | null> {
      const outcome = await accept(from, anAddress(), more);
      return outcome.kind === 'refused' ? outcome.error.message : null;
    }

    async function send(from: Organization, to: string, text?: string): Promise<string> {
      const outcome = await accept(from, to, text === undefined ? {} : { text });
      if (outcome.kind === 'refused') throw outcome.error;
      return (JSON.parse(outcome.response.text) as { id: string }).id;
    }

    /** Delivers until nothing is due. The provider accepts what `sayings` do not mention. */
    async function deliverAll(): Promise<void> {
      const carry: Carry = async ({ reference, to, text, confirm }) => {
        const { before, after } = sayings.get(to) ?? {};
        const untried = before?.();
        if (untried !== undefined) return untried;
        await confirm();
        carried.push({ organizationId: reference.organizationId, to, text });
        const providerMessageId = nameOf(reference.messageId);
        return after?.() ?? { kind: 'accepted', providerMessageId, reply: null };
      };
      const delivery = startDelivery({
        ...server.installation,
        ...feedback,
        random: () => 0.5,
        channels,
        deliveries: [harness.createDelivery(server, carry)],
      });
      try {
        await eventually(
          () =>
            rows(
              `select from delivery_queue where lane < 2 and (claimed_by is not null or due_at <= $1)
               union all
               select from delivery_slices where lane < 2`,
              [now(server.installation.clock)],
            ),
          (left) => left.length === 0,
        );
      } finally {
        await delivery.stop();
      }
    }

    /** All texts to an address, from any organization. */
    const textsTo = (to: string) => carried.filter((copy) => copy.to === to).map(({ text }) => text);

    async function statusOf({ organizationId }: Organization, id: string) {
      const message = await findMessage(server.installation.database, {
        organizationId,
        id,
        channel: channel.name,
        horizon: noHorizon,
      });
      return message?.status ?? null;
    }

    /** By their addresses. */
    async function fatesOf(messageId: string): Promise<Record<string, string>> {
      const recipients = await rows<FateRow>(
        `select r.address_key, r.status, r.drop_reason, r.failure_type, r.failure_class, r.uncertain,
           q.message_id is not null as is_queued
         from recipients r
         left join delivery_queue q using (organization_id, message_id, ordinal)
         where r.message_id = $1`,
        [messageId],
      );
      return Object.fromEntries(recipients.map((row) => [row.address_key, showFate(row)]));
    }

    const fateOf = async (messageId: string, to: string) => (await fatesOf(messageId))[to];

    async function addList(from: Organization): Promise<string> {
      return (await ask<{ id: string }>(from, 'POST', '/lists', { name: `List ${(numbers += 1)}` })).id;
    }

    async function addContact(from: Organization, listId: string, to: string, more = {}): Promise<string> {
      if (typeof addresses === 'string') {
        const contact = { [addresses]: to, list_ids: [listId], ...more };
        return (await ask<{ id: string }>(from, 'POST', '/contacts', contact)).id;
      }
      await addresses.meet(server, from, to);
      await ask(from, 'PATCH', `/contacts/${to}`, more);
      await ask(from, 'POST', `/lists/${listId}/contacts`, { contact_ids: [to] });
      return to;
    }

    type SentCampaign = { id: string; messageId: string; organization: Organization };

    /** Brings the campaign as far as it gets before anything is delivered. */
    async function startCampaign(from: Organization, listId: string, text = 'News'): Promise<SentCampaign> {
      const { organizationId } = from;
      const place = { organizationId, channel: campaigns };
      const written = await createCampaign(server.installation, place, {
        name: 'News',
        list_ids: [listId],
        ...harness.inputsOf({ sender: from.sender, text }),
      });
      if (written instanceof PublicError) throw written;
      const reference = { ...place, id: written.id };
      const sent = await sendCampaign(server.installation, reference, {
        scheduledAt: null,
        idempotencyKey: null,
      });
      if (sent.kind === 'refused') throw sent.error;
      await freezeCampaign(runningTools, reference);
      const [row] = await rows<{ message_id: string }>('select message_id from campaigns where id = $1', [
        written.id,
      ]);
      const campaign = { id: written.id, messageId: row!.message_id, organization: from };
      await advance(campaign);
      return campaign;
    }

    /** What was paused and may go on does so with the second step. Returns the status, and the reason for it. */
    async function advance({ id, organization: { organizationId } }: SentCampaign): Promise<string> {
      await countChangedRecipients(server.installation);
      await advanceCampaign(runningTools, { organizationId, id });
      await advanceCampaign(runningTools, { organizationId, id });
      const [row] = await rows<{
        status: string;
        pause_reason: string | null;
        failure_reason: string | null;
      }>('select status, pause_reason, failure_reason from campaigns where id = $1', [id]);
      return [row!.status, row!.pause_reason ?? row!.failure_reason]
        .filter((word) => word !== null)
        .join(': ');
    }

    it('is accepted from a sender of the organization alone, within its quota and unless it is suspended', async () => {
      expect(await refusalOf(own, { sender: other.sender })).toBe(harness.refusals.sender);
      if (harness.refusals.sender !== null)
        expect(await refusalOf(other, { sender: own.sender })).not.toBeNull();
      await leaveOneOfQuota(own);
      expect(await refusalOf(own)).toBeNull();
      expect(await refusalOf(own)).toContain(harness.refusals.quota);
      expect(await refusalOf(other)).toBeNull();
      await changePlan(own, { quotas: { [channel.name]: null }, suspend: [channel.name] });
      expect(await refusalOf(own)).toContain(harness.refusals.suspension);
      expect(await refusalOf(other)).toBeNull();
    });

    it('is delivered once, as it was written, and shown to no other organization', async () => {
      const to = anAddress();
      const id = await send(own, to, 'For {{first_name}} of the one');
      const others = await send(other, to, 'Of the other');
      await deliverAll();
      const [first, second] = carried
        .filter((copy) => copy.to === to)
        .toSorted(({ organizationId }) => (organizationId === own.organizationId ? -1 : 1));
      expect(first).toMatchObject({ organizationId: own.organizationId });
      expect(first!.text).toContain('For {{first_name}} of the one');
      expect(second).toMatchObject({ organizationId: other.organizationId });
      expect(second!.text).toContain('Of the other');
      expect(textsTo(to)).toHaveLength(2);
      expect(await fateOf(id, to)).toBe(harness.answers.accepted[0]);

      expect(await statusOf(other, id)).toBeNull();
      const listed = await listMessages(server.installation.database, {
        organizationId: own.organizationId,
        channel: channel.name,
        filter: {},
        page: { limit: 100, after: null, before: null },
        horizon: noHorizon,
      });
      const ids = listed.map((message) => message.id);
      expect([ids.includes(id), ids.includes(others)]).toEqual([true, false]);
      const found = await findByProviderIds(server.installation.database, channel.name, [
        { organizationId: null, providerMessageId: nameOf(id) },
      ]);
      expect(found.get(0)?.messageId).toBe(harness.isReportedById ? id : undefined);
    });

    it('shows of each fate of a recipient the status that the channel has for it', async () => {
      const expected = Object.entries(harness.statuses).filter(([, status]) => status !== null);
      const shown: [string, string | null][] = [];
      for (const [fate] of expected) {
        const id = await send(own, anAddress());
        await rows(`update recipients set ${columnsOfFates[fate as Fate]} where message_id = $1`, [id]);
        await rows('delete from delivery_queue where message_id = $1', [id]);
        await server.installation.database.rows(channel.refreshStatus, [
          [own.organizationId],
          [id],
          now(server.installation.clock),
        ]);
        shown.push([fate, await statusOf(own, id)]);
      }
      expect(shown).toEqual(expected);
    });

    it('does after each answer of its provider what its policy says', async () => {
      const { hard, soft } = harness.reasons;
      const saying = (outcome: SendOutcome<string>) => (): Saying => ({ after: () => outcome });
      const sayingOf: Record<Answer, () => Saying> = {
        accepted: () => ({}),
        'rejected for good': saying({ kind: 'rejected', reason: hard, reply }),
        'rejected for now': saying({ kind: 'rejected', reason: soft, reply }),
        'rejected for an unknown reason': saying({ kind: 'rejected', reason: 'sunspots', reply }),
        deferred: saying({ kind: 'deferred', reason: soft, reply }),
        'deferred in the last hour': saying({ kind: 'deferred', reason: soft, reply }),
        'deferred an hour too late': saying({ kind: 'deferred', reason: soft, reply }),
        postponed: () => ({ before: () => ({ kind: 'postponed', retryAfterMs: 60_000, reply }) }),
        lost: saying({ kind: 'unknown', reply }),
        'a fault before the marker': () => ({ before: failOnce() }),
        'a fault after the marker': () => ({ after: failOnce() }),
      };
      const listId = await addList(own);
      const tried = [];
      for (const answer of Object.keys(sayingOf) as Answer[]) {
        const [to, inCampaign] = [anAddress(), anAddress()];
        for (const address of [to, inCampaign]) sayings.set(address, sayingOf[answer]());
        await addContact(own, listId, inCampaign);
        tried.push({ answer, to, inCampaign, id: await send(own, to) });
      }
      const { messageId } = await startCampaign(own, listId);
      await spreadSlices(server.installation.database);
      for (const [answer, ageHours] of [
        ['deferred in the last hour', harness.retriedForHours - 1],
        ['deferred an hour too late', harness.retriedForHours + 1],
      ] as const) {
        const { id, inCampaign } = tried.find((one) => one.answer === answer)!;
        await rows(
          `update delivery_queue q set accepted_at = $4
           from recipients r
           where r.organization_id = q.organization_id and r.message_id = q.message_id and r.ordinal = q.ordinal
             and (q.message_id = $1 or (q.message_id = $2 and r.address_key = $3))`,
          [id, messageId, inCampaign, new Date(server.installation.clock.nowMs() - ageHours * hourMs)],
        );
      }
      await deliverAll();
      const ofCampaign = await fatesOf(messageId);
      const found = await Promise.all(
        tried.map(async ({ answer, id, to, inCampaign }) => [
          answer,
          [await fateOf(id, to), ofCampaign[inCampaign]],
        ]),
      );
      expect(Object.fromEntries(found)).toEqual(harness.answers);

      // A hand-off whose answer was lost is repeated at most once.
      const lost = tried.find(({ answer }) => answer === 'lost')!;
      await rows('update delivery_queue set due_at = $2 where message_id = $1', [
        lost.id,
        now(server.installation.clock),
      ]);
      await deliverAll();
      expect(await fateOf(lost.id, lost.to)).toBe('sent uncertain');
      expect(textsTo(lost.to)).toHaveLength(harness.answers.lost[0].endsWith('waits') ? 2 : 1);
    });

    it('learns of an address what the channel lets it learn, for its own organization', async () => {
      const [gone, refused, returned] = [anAddress(), anAddress(), anAddress()];
      sayings.set(gone, { after: () => ({ kind: 'rejected', reason: harness.reasons.hard, reply }) });
      sayings.set(refused, { after: () => ({ kind: 'rejected', reason: harness.reasons.soft, reply }) });
      await send(own, gone);
      await send(own, refused);
      const sent = await send(own, returned);
      await deliverAll();
      await reportOf(own, [sent], 'bounced');
      carried = [];
      sayings.clear();
      const taken = harness.answers.accepted[0];
      const { afterRefusal } = harness;
      const cases = [
        { from: own, to: gone, fate: afterRefusal },
        { from: own, to: returned, fate: harness.judgesAddresses ? 'suppressed' : taken },
        { from: own, to: refused, fate: taken },
        { from: other, to: gone, fate: taken },
        { from: other, to: returned, fate: taken },
      ];
      const ids = [];
      for (const { from, to } of cases) ids.push(await send(from, to));
      await deliverAll();
      for (const [index, { to, fate }] of cases.entries()) expect(await fateOf(ids[index]!, to)).toBe(fate);
      expect(textsTo(gone)).toHaveLength(afterRefusal === taken ? 2 : 1);
    });

    it('writes to no recipient who objects, and to all others', async () => {
      const listId = await addList(own);
      const meet = async () => {
        const to = anAddress();
        return { to, contactId: await addContact(own, listId, to), id: await send(own, to) };
      };
      const [fine, suppressed, unsubscribed, deleted] = [
        await meet(),
        await meet(),
        await meet(),
        await meet(),
      ];
      const people = [fine, suppressed, unsubscribed, deleted];
      const news = await startCampaign(own, listId);
      const cancelled = await startCampaign(own, listId, 'Never');
      const othersList = await addList(other);
      for (const { to } of people) await addContact(other, othersList, to);
      const others = await startCampaign(other, othersList, 'Of the other');

      const { database } = server.installation;
      await database.transaction((transaction) =>
        addSuppressions(transaction, server.installation, channel.name, [
          { organizationId: own.organizationId, address: suppressed.to, reason: 'operator' },
        ]),
      );
      await rows(
        'update contacts set unsubscribed_channels = array[$2] where id = $1 and organization_id = $3',
        [unsubscribed.contactId, channel.name, own.organizationId],
      );
      await ask(own, 'DELETE', `/contacts/${deleted.contactId}`);
      const reference = { organizationId: own.organizationId, channel: campaigns, id: cancelled.id };
      expect((await cancelCampaign(server.installation, reference, null)).kind).toBe('response');
      const asking = harness.addressAskingForSuppression;
      const asked = asking === null ? null : await send(own, asking);
      await deliverAll();

      const [taken, takenOfCampaign] = harness.answers.accepted;
      expect(await fatesOf(news.messageId)).toEqual({
        [fine.to]: takenOfCampaign,
        [suppressed.to]: 'suppressed',
        [unsubscribed.to]: 'unsubscribed',
        [deleted.to]: 'contact_deleted',
      });
      // A transactional message answers something that the recipient did: but for channels that always ask, only
      // suppressions of the address count.
      for (const person of people) {
        const expected = harness.asksContacts
          ? (await fatesOf(news.messageId))[person.to]
          : person === suppressed
            ? 'suppressed'
            : taken;
        expect(await fateOf(person.id, person.to)).toBe(expected);
      }
      if (asked !== null && asking !== null) expect(await fateOf(asked, asking)).toBe('suppressed');
      expect(Object.values(await fatesOf(cancelled.messageId))).toEqual(['sent', 'sent', 'sent', 'sent']);
      expect(carried.filter(({ text }) => text.includes('Never'))).toEqual([]);
      expect(new Set(Object.values(await fatesOf(others.messageId)))).toEqual(new Set([takenOfCampaign]));
      expect(await advance(news)).toBe('sent');
      expect(await advance(cancelled)).toBe('cancelled');
    });

    it('sends a campaign to each contact of its list with an address, its own values filled in', async () => {
      const listId = await addList(own);
      const [ann, ben] = [anAddress(), anAddress()];
      await addContact(own, listId, ann, { first_name: 'Ann' });
      await addContact(own, listId, ben, { first_name: 'Ben {{first_name}}' });
      const elsewhere =
        addresses === 'email' ? { phone_number: '+4915199999999' } : { email: 'nobody@example.com' };
      await ask(own, 'POST', '/contacts', { ...elsewhere, list_ids: [listId] });
      const campaign = await startCampaign(own, listId, 'Dear {{first_name}}!');
      await deliverAll();
      expect(textsTo(ann)).toEqual([expect.stringContaining('Dear Ann!')]);
      expect(textsTo(ben)).toEqual([expect.stringContaining('Dear Ben {{first_name}}!')]);
      expect(carried).toHaveLength(2);
      expect(await advance(campaign)).toBe('sent');
    });

    it('pauses a campaign while it may not be sent, and fails it when it never can be', async () => {
      const listId = await addList(own);
      const to = [anAddress(), anAddress()];
      for (const address of to) await addContact(own, listId, address);
      await leaveOneOfQuota(own);
      const campaign = await startCampaign(own, listId);
      await deliverAll();
      expect(carried).toHaveLength(1);
      expect(await advance(campaign)).toBe('paused: quota_exceeded');
      await changePlan(own, { quotas: { [channel.name]: null }, suspend: [channel.name] });
      expect(await advance(campaign)).toBe('paused: sending_suspended');
      await deliverAll();
      expect(carried).toHaveLength(1);
      await changePlan(own, { resume: [channel.name] });
      await advance(campaign);
      // Jobs that a worker already has in memory wait there.
      await changePlan(own, { suspend: [channel.name] });
      await deliverAll();
      expect(carried).toHaveLength(1);
      await changePlan(own, { resume: [channel.name] });
      await rows('update delivery_queue set due_at = $2 where message_id = $1', [
        campaign.messageId,
        now(server.installation.clock),
      ]);
      await deliverAll();
      expect(carried.map((copy) => copy.to).toSorted()).toEqual(to.toSorted());
      expect(await advance(campaign)).toBe('sent');

      if (harness.obstacle === null) return;
      const stopped = await startCampaign(own, listId, 'Never');
      await harness.removeSender(server, own.organizationId, own.sender);
      try {
        expect(await advance(stopped)).toBe(`failed: ${harness.obstacle}`);
        await deliverAll();
        expect(carried).toHaveLength(2);
      } finally {
        await harness.addSender(server, own.organizationId, own.sender);
      }
    });

    it('is raised by reports, each of which counts once, and never lowered', async () => {
      const [to, inCampaign] = [anAddress(), anAddress()];
      const listId = await addList(own);
      await addContact(own, listId, inCampaign);
      const ids = [await send(own, to), (await startCampaign(own, listId)).messageId];
      const others = await send(other, to);
      await deliverAll();
      const report = (status: RecipientStatus) => reportOf(own, ids, status);
      const bouncedBefore = await countBounced();
      await report('delivered');
      expect(await statusOf(own, ids[0]!)).toBe(harness.statuses.delivered);
      await report('delayed');
      expect(await fateOf(ids[0]!, to)).toBe('delivered');
      await report('bounced');
      await report('bounced');
      await report('delivered');
      expect(await statusOf(own, ids[0]!)).toBe(harness.statuses.bounced);
      for (const [index, address] of [to, inCampaign].entries())
        expect(await fateOf(ids[index]!, address)).toBe(`bounced hard ${harness.reasons.hard}`);
      expect((await countBounced()) - bouncedBefore).toBe(harness.judgesAddresses ? 2 : 0);
      expect(await fateOf(others, to)).toBe(harness.answers.accepted[0]);
    });

    /** Of the first recipient of each; a bounce is a hard one. */
    function reportOf(
      { organizationId }: Organization,
      messageIds: readonly string[],
      status: RecipientStatus,
    ) {
      const failure = {
        type: 'hard' as const,
        class: harness.reasons.hard,
        smtpCode: null,
        enhancedCode: null,
        diagnostic: 'Its own words',
        remote: null,
      };
      return applyReports(
        { ...server.installation, ...feedback },
        channel,
        messageIds.map((messageId) => ({
          job: { organizationId, messageId, ordinal: 0 },
          status,
          failure: status === 'bounced' ? failure : null,
        })),
      );
    }

    async function countBounced(): Promise<number> {
      const [row] = await rows<{ bounced: number }>(
        'select coalesce(sum(bounced), 0)::integer as bounced from reputation_counts where organization_id = $1',
        [own.organizationId],
      );
      return row!.bounced;
    }

    it('leaves nothing readable of a contact that was deleted, and what became of the message', async () => {
      const to = anAddress();
      const messages: { contactId: string; ids: string[]; traces: string[] }[] = [];
      for (const from of [own, other]) {
        const listId = await addList(from);
        const contactId = await addContact(from, listId, to, { first_name: 'Zebulon' });
        const id = await send(from, to, 'Dear Zebulon');
        const { messageId } = await startCampaign(from, listId, 'Dear {{first_name}}');
        const trace = typeof addresses === 'object' ? addresses.traceOf(from.organizationId, to) : to;
        messages.push({ contactId, ids: [id, messageId], traces: [trace] });
      }
      await deliverAll();
      expect(textsTo(to)).toHaveLength(4);
      await ask(own, 'DELETE', `/contacts/${messages[0]!.contactId}`);
      // An erasure that waits for a delivery is tried again after an hour.
      const later = new Date(server.installation.clock.nowMs() + 2 * hourMs);
      for (
        let tries = 0;
        tries < 100 && (await eraseNext({ ...server.installation, channels: messageChannels }, later));
        tries += 1
      );

      const tracesOf = ({ ids, traces }: { ids: string[]; traces: string[] }) =>
        rows<{ place: string }>(
          `select 'recipients' as place from recipients t where message_id = any ($1::uuid[]) and ${isReadable}
           union all
           select 'messages' from messages t where id = any ($1::uuid[]) and ${isReadable}
           union all
           select 'contents' from message_contents t where message_id = any ($1::uuid[]) and ${isReadable}`,
          [ids, ['Zebulon', ...traces]],
        );
      expect(await tracesOf(messages[0]!)).toEqual([]);
      expect((await tracesOf(messages[1]!)).length).toBeGreaterThan(2);
      expect(Object.values(await fatesOf(messages[0]!.ids[0]!))).toEqual([harness.answers.accepted[0]]);
    });

    it('is delivered once although its worker was killed, and after its marker as what was lost', async () => {
      const [unannounced, announced] = [anAddress(), anAddress()];
      const ids = [await send(own, unannounced), await send(own, announced)];
      const { database, clock } = server.installation;
      // It has died: it is in the table of workers, and has no connection.
      const [dead] = await rows<{ epoch: number }>(
        `insert into workers (epoch, host, pid, started_at)
         values (nextval('worker_epochs'), 'there', 1, now()) returning epoch`,
      );
      const claim = await claimDueJobs(database, {
        epoch: dead!.epoch,
        claimNumber: 1,
        at: now(clock),
        channel,
        lane: 0,
        itemsMax: 100,
        afterOrganizationId: '00000000-0000-0000-0000-000000000000',
      });
      const jobs = claim.jobs.filter(({ messageId }) => ids.includes(messageId));
      expect(jobs).toHaveLength(2);
      const marked = jobs.filter(({ addressKey }) => addressKey === announced);
      await announceHandOffs(database, marked, { epoch: dead!.epoch, batch: 1, batchesOver: [] });
      await eventually(
        async () => {
          await deliverAll();
          return rows('select from workers where epoch = $1', [dead!.epoch]);
        },
        (left) => left.length === 0,
      );
      expect(textsTo(unannounced)).toHaveLength(1);
      expect(await fateOf(ids[0]!, unannounced)).toBe(harness.answers.accepted[0]);
      expect(textsTo(announced)).toEqual([]);
      expect(await fateOf(ids[1]!, announced)).toBe(harness.answers.lost[0]);
    });
  });
}

type FateRow = {
  address_key: string;
  status: string;
  drop_reason: string | null;
  failure_type: string | null;
  failure_class: string | null;
  uncertain: boolean;
  is_queued: boolean;
};

/** For example `delayed soft mailbox_full waits`, or why it was dropped. */
function showFate(row: FateRow): string {
  const failure = row.failure_type === null ? [] : [row.failure_type, row.failure_class];
  const rest = [row.uncertain ? 'uncertain' : '', row.is_queued ? 'waits' : ''];
  return [row.drop_reason ?? row.status, ...failure, ...rest].filter((word) => word !== '').join(' ');
}

const columnsOfFates: Readonly<Record<Fate, string>> = {
  waiting: `status = 'sent'`,
  'handed off': `status = 'sent', handed_off_at = now()`,
  uncertain: `status = 'sent', handed_off_at = now(), uncertain = true, ambiguities = 1`,
  dropped: `drop_reason = 'suppressed'`,
  expired: `status = 'failed', failure_type = 'soft', failure_class = 'expired'`,
  delayed: `status = 'delayed'`,
  delivered: `status = 'delivered', handed_off_at = now()`,
  bounced: `status = 'bounced', failure_type = 'hard', failure_class = 'other', handed_off_at = now()`,
  failed: `status = 'failed', failure_type = 'soft', failure_class = 'other'`,
  opened: `status = 'opened', handed_off_at = now()`,
  clicked: `status = 'clicked', handed_off_at = now()`,
  complained: `status = 'complained', handed_off_at = now()`,
  unsubscribed: `status = 'unsubscribed', handed_off_at = now()`,
  cancelled: `status = 'cancelled'`,
};

/** SQL: one of the texts `$2` is in the row `t`. */
const isReadable = `exists (select from unnest($2::text[]) trace where position(trace in t::text) > 0)`;

function nameOf(messageId: string): string {
  return `name of ${messageId}`;
}

/** What a provider says of a copy: before the marker, if anything, and of its hand-off. */
type Saying = {
  before?: () => SendOutcome<string> | undefined;
  after?: () => SendOutcome<string> | undefined;
};

function failOnce(): () => undefined {
  let hasFailed = false;
  return () => {
    if (hasFailed) return;
    hasFailed = true;
    throw new Error('a fault of the program');
  };
}
