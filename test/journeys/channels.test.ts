/** Every channel is held to the contract of channels: those that there are, and one that nothing in the program knows. */
import PostalMime from 'postal-mime';
import type { SendOutcome } from '../../src/channels/outcome.ts';
import type { SmsFailure } from '../../src/channels/sms/sms.ts';
import {
  createDeliverability,
  createEmailDelivery,
  emailCampaigns,
  emailChannel,
} from '../../src/email/email.ts';
import { prepareEmail } from '../../src/email/send.ts';
import { PublicError } from '../../src/platform/http/errors.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import type { ChatAppFailure, ChatAppProvider } from '../../src/channels/chatapp/provider.ts';
import { chatAppCampaigns, chatAppChannel, createChatAppDelivery } from '../../src/chatapp/chatapp.ts';
import { submitChatApp } from '../../src/chatapp/send.ts';
import type { PushFailure } from '../../src/channels/push/provider.ts';
import { createPushDelivery, pushCampaigns, pushChannel } from '../../src/push/push.ts';
import { submitPush } from '../../src/push/send.ts';
import { addSender, approveSender, rejectSender } from '../../src/senders/senders.ts';
import { submitSms } from '../../src/sms/send.ts';
import { createSmsDelivery, smsCampaigns, smsChannel } from '../../src/sms/sms.ts';
import { addChatTemplate, setTemplate, written } from '../support/chat-app-journey.ts';
import { describeChannel } from '../support/channel-conformance.ts';
import { androidApp, register, setUpPush } from '../support/push-journey.ts';
import { createPigeons } from '../support/pigeons.ts';
import type { TestServer } from '../support/server.ts';
import { signHere } from '../support/sign-here.ts';

describeChannel('email keeps the contract of channels', () => ({
  channel: emailChannel,
  campaigns: emailCampaigns,
  senders: { own: 'hello@postillion.test', other: 'hello@other.example' },
  addSender: (server, organizationId, sender) => verifyDomain(server, organizationId, sender, true),
  removeSender: (server, organizationId, sender) => verifyDomain(server, organizationId, sender, false),
  refusals: {
    sender: 'The domain other.example of from is not a verified sending domain of this organization.',
    quota: 'The monthly email quota is used up',
    suspension: 'Sending email is suspended',
  },
  obstacle: 'The sending domain postillion.test was deleted.',
  addresses: 'email',
  submit: ({ organizationId, sender, to, text }) => {
    const body = { from: sender, from_name: 'Postillion', to: [to], subject: 'Hello', text };
    const submission = prepareEmail({ organizationId, body, template: null, idempotencyKey: null });
    if (submission instanceof PublicError) throw submission;
    return submission;
  },
  inputsOf: ({ sender, text }) => ({ from: sender, from_name: 'Postillion', subject: 'News', text }),
  createDelivery: ({ installation }, carry) =>
    createEmailDelivery({
      ...installation,
      emailProvider: {
        name: 'the test',
        isReportedById: false,
        concurrency: 4,
        handOff: async ({ reference, recipient: to, content, confirm }) => {
          const { text = '' } = await PostalMime.parse(Buffer.concat(content));
          // The test answers in the classes of email.
          return (await carry({ reference, to, text, confirm })) as SendOutcome;
        },
        probe: () => Promise.resolve(null),
        close: () => Promise.resolve(),
      },
      signText: signHere,
      deliverability: createDeliverability({ ...installation, areDomainsLookedUp: false }),
      areBouncesRead: false,
      publicUrl: 'http://postillion.test',
    }),
  statuses: {
    waiting: 'queued',
    'handed off': 'sent',
    uncertain: 'sent',
    dropped: 'failed',
    expired: null,
    delayed: 'queued',
    delivered: 'delivered',
    bounced: 'failed',
    failed: 'failed',
    opened: 'delivered',
    clicked: 'delivered',
    complained: 'delivered',
    unsubscribed: 'delivered',
    cancelled: 'cancelled',
  },
  reasons: { hard: 'mailbox_not_found', soft: 'mailbox_full' },
  retriedForHours: 72,
  answers: {
    accepted: ['delivered', 'delivered'],
    'rejected for good': ['bounced hard mailbox_not_found', 'bounced hard mailbox_not_found'],
    'rejected for now': ['bounced soft mailbox_full', 'bounced soft mailbox_full'],
    'rejected for an unknown reason': ['failed soft sunspots', 'failed soft sunspots'],
    deferred: ['delayed soft mailbox_full waits', 'delayed soft mailbox_full waits'],
    'deferred in the last hour': ['delayed soft mailbox_full waits', 'delayed soft mailbox_full waits'],
    'deferred an hour too late': ['failed soft mailbox_full', 'failed soft mailbox_full'],
    postponed: ['sent waits', 'sent waits'],
    lost: ['sent uncertain waits', 'sent uncertain'],
    'a fault before the marker': ['delivered', 'delivered'],
    'a fault after the marker': ['sent uncertain waits', 'sent uncertain'],
  },
  judgesAddresses: true,
  afterRefusal: 'suppressed',
  asksContacts: false,
  isReportedById: false,
  addressAskingForSuppression: 'suppressed@simulator.postillion.test',
}));

/** Or takes back that it is verified. */
async function verifyDomain(
  { installation }: TestServer,
  organizationId: string,
  sender: string,
  isVerified: boolean,
): Promise<void> {
  await installation.database.rows(
    unpreparedStatement(
      `update domains
       set status = case when $3 then 'verified' else 'pending' end, verified_at = case when $3 then now() end
       where organization_id = $1 and name = $2`,
    ),
    [organizationId, sender.split('@')[1], isVerified],
  );
}

describeChannel('SMS keeps the contract of channels', () => ({
  channel: smsChannel,
  campaigns: smsCampaigns,
  senders: { own: 'Acme', other: 'Fern' },
  addSender: async ({ installation }, organizationId, name) => {
    const outcome = await addSender(installation, { organizationId, name, type: null });
    if (!('sender' in outcome)) throw new Error(`${name} is ${outcome.kind}`);
    await approveSender(installation, outcome.sender.id);
  },
  removeSender: async ({ installation }, organizationId, name) => {
    const outcome = await addSender(installation, { organizationId, name, type: null });
    if (!('sender' in outcome)) throw new Error(`${name} is ${outcome.kind}`);
    await rejectSender(installation, outcome.sender.id);
  },
  refusals: {
    sender: 'from is not an approved sender of this organization: Fern',
    quota: 'The monthly SMS quota is used up',
    suspension: 'Sending SMS is suspended',
  },
  obstacle: 'The sender Acme is not approved any more.',
  addresses: 'phone_number',
  submit: (text) =>
    submitSms({ ...text, category: null, missingVariables: [], warnings: [], idempotencyKey: null }),
  inputsOf: ({ sender, text }) => ({ from: sender, body: text }),
  createDelivery: ({ installation }, carry) =>
    createSmsDelivery({
      ...installation,
      smsProvider: {
        name: 'the test',
        isReportedById: true,
        concurrency: 4,
        handOff: async (handOff) =>
          // The test answers in the failures of texts.
          (await carry(handOff)) as SendOutcome<SmsFailure>,
        answersKeywords: false,
        probe: () => Promise.resolve(null),
        close: () => Promise.resolve(),
      },
    }),
  statuses: {
    waiting: 'queued',
    'handed off': 'sent',
    uncertain: 'sending',
    dropped: 'failed',
    expired: 'expired',
    delayed: 'sending',
    delivered: 'delivered',
    bounced: 'undelivered',
    failed: 'failed',
    opened: null,
    clicked: null,
    complained: null,
    unsubscribed: null,
    cancelled: 'cancelled',
  },
  reasons: { hard: 'unknown_subscriber', soft: 'unreachable' },
  retriedForHours: 24,
  answers: {
    accepted: ['sent', 'sent'],
    'rejected for good': ['failed hard unknown_subscriber', 'failed hard unknown_subscriber'],
    'rejected for now': ['failed soft unreachable', 'failed soft unreachable'],
    'rejected for an unknown reason': ['failed soft sunspots', 'failed soft sunspots'],
    deferred: ['delayed soft unreachable waits', 'delayed soft unreachable waits'],
    'deferred in the last hour': ['delayed soft unreachable waits', 'delayed soft unreachable waits'],
    'deferred an hour too late': ['failed soft expired', 'failed soft expired'],
    postponed: ['sent waits', 'sent waits'],
    lost: ['sent uncertain', 'sent uncertain'],
    'a fault before the marker': ['sent', 'sent'],
    'a fault after the marker': ['sent uncertain', 'sent uncertain'],
  },
  judgesAddresses: false,
  afterRefusal: 'sent',
  asksContacts: false,
  isReportedById: true,
  addressAskingForSuppression: null,
}));

describeChannel('chat-app messages keep the contract of channels', () => {
  const templates = new Map<string, string>();
  return {
    channel: chatAppChannel,
    campaigns: chatAppCampaigns,
    // Whose business it is, is said by the account; here a template stands for each organization.
    senders: { own: 'own', other: 'other' },
    addSender: async (server, organizationId, name) => {
      if (templates.has(name))
        await setTemplate(server.installation, templates.get(name)!, "provider_state = 'approved'");
      else {
        const template = { name, organizationId, content: written('{{text}}') };
        templates.set(name, (await addChatTemplate(server, template)).id);
      }
    },
    removeSender: (server, _organizationId, name) =>
      setTemplate(server.installation, templates.get(name)!, "provider_state = 'disabled'"),
    refusals: {
      sender: null,
      quota: 'The monthly chat-app messages quota is used up',
      suspension: 'Sending chat-app messages is suspended',
    },
    obstacle: 'The template own (en_US) cannot be sent any more: it is disabled.',
    addresses: 'phone_number',
    submit: ({ organizationId, sender, to, text }) =>
      submitChatApp({
        organizationId,
        recipient: { to, contactId: null },
        template: {
          id: templates.get(sender)!,
          name: sender,
          language: 'en_US',
          category: 'utility',
          content: written('{{text}}'),
        },
        parameters: { text },
        idempotencyKey: null,
      }),
    inputsOf: ({ sender, text }) => ({ template_id: templates.get(sender), parameters: { text } }),
    createDelivery: ({ installation }, carry) =>
      createChatAppDelivery({
        ...installation,
        chatAppProvider: {
          name: 'the test',
          concurrency: 4,
          isReportedById: true,
          needsAccount: false,
          handOff: async ({ reference, to, parameters, confirm }) =>
            // The test answers in the failures of chat apps.
            (await carry({
              reference,
              to,
              text: parameters.text ?? '',
              confirm,
            })) as SendOutcome<ChatAppFailure>,
        } as ChatAppProvider, // All that a delivery asks for.
      }),
    statuses: {
      waiting: 'queued',
      'handed off': 'sent',
      uncertain: 'sent',
      dropped: 'failed',
      expired: 'failed',
      delayed: 'queued',
      delivered: 'delivered',
      bounced: 'failed',
      failed: 'failed',
      opened: 'read',
      clicked: 'read',
      complained: null,
      unsubscribed: null,
      cancelled: 'cancelled',
    },
    reasons: { hard: 'unreachable', soft: 'rate_limited' },
    retriedForHours: 24,
    answers: {
      accepted: ['sent', 'sent'],
      'rejected for good': ['failed soft unreachable', 'failed soft unreachable'],
      'rejected for now': ['failed soft rate_limited', 'failed soft rate_limited'],
      'rejected for an unknown reason': ['failed soft sunspots', 'failed soft sunspots'],
      deferred: ['delayed soft rate_limited waits', 'delayed soft rate_limited waits'],
      'deferred in the last hour': ['delayed soft rate_limited waits', 'delayed soft rate_limited waits'],
      'deferred an hour too late': ['failed soft expired', 'failed soft expired'],
      postponed: ['sent waits', 'sent waits'],
      lost: ['sent uncertain', 'sent uncertain'],
      'a fault before the marker': ['sent', 'sent'],
      'a fault after the marker': ['sent uncertain', 'sent uncertain'],
    },
    judgesAddresses: false,
    afterRefusal: 'sent',
    asksContacts: false,
    isReportedById: true,
    addressAskingForSuppression: null,
  };
});

describeChannel('push keeps the contract of channels', () => {
  const devices = createHarnessDevices();
  return {
    channel: pushChannel,
    campaigns: pushCampaigns,
    // Whose app it is, is said by credentials.
    senders: { own: '', other: '' },
    addSender: (server, organizationId) => setUpPush(server, organizationId),
    removeSender: () => Promise.resolve(),
    refusals: {
      sender: null,
      quota: 'The monthly push quota is used up',
      suspension: 'Sending push is suspended',
    },
    obstacle: null,
    addresses: devices,
    submit: ({ organizationId, to, text }) =>
      submitPush({
        organizationId,
        contactId: to,
        devices: [{ id: devices.idOf(organizationId, to), account: 'android' }],
        content: { title: 'Hello', body: text },
        category: null,
        idempotencyKey: null,
      }),
    inputsOf: ({ text }) => ({ title: 'News', body: text }),
    createDelivery: ({ installation }, carry) =>
      createPushDelivery({
        ...installation,
        webPushHosts: [],
        pushProvider: {
          name: 'the test',
          concurrency: 4,
          handOff: async ({ reference, target, content, confirm }) => {
            const to = target.platform === 'android' ? devices.ownerOf(target.token) : '';
            // The test answers in the failures of pushes.
            return (await carry({ reference, to, text: content.body, confirm })) as SendOutcome<PushFailure>;
          },
          probe: () => Promise.resolve(null),
          close: () => Promise.resolve(),
        },
      }),
    statuses: {
      waiting: 'queued',
      'handed off': 'sent',
      uncertain: 'sent',
      dropped: 'skipped',
      expired: 'failed',
      delayed: 'queued',
      delivered: 'sent',
      bounced: 'sent',
      failed: 'failed',
      opened: 'sent',
      clicked: 'sent',
      complained: null,
      unsubscribed: null,
      cancelled: 'cancelled',
    },
    reasons: { hard: 'unregistered', soft: 'rate_limited' },
    retriedForHours: 4 * 7 * 24,
    answers: {
      accepted: ['sent', 'sent'],
      'rejected for good': ['failed hard unregistered', 'failed hard unregistered'],
      'rejected for now': ['failed soft rate_limited', 'failed soft rate_limited'],
      'rejected for an unknown reason': ['failed soft sunspots', 'failed soft sunspots'],
      deferred: ['delayed soft rate_limited waits', 'delayed soft rate_limited waits'],
      'deferred in the last hour': ['delayed soft rate_limited waits', 'delayed soft rate_limited waits'],
      'deferred an hour too late': ['failed soft expired', 'failed soft expired'],
      postponed: ['sent waits', 'sent waits'],
      lost: ['sent uncertain waits', 'sent uncertain waits'],
      'a fault before the marker': ['sent', 'sent'],
      'a fault after the marker': ['sent uncertain waits', 'sent uncertain waits'],
    },
    judgesAddresses: false,
    // It has no device that is of use.
    afterRefusal: 'no_address',
    asksContacts: true,
    isReportedById: false,
    addressAskingForSuppression: null,
  };
});

/** Contacts with the ids that the test chooses, the same in each organization, and a phone each. */
function createHarnessDevices() {
  const ids = new Map<string, string>();
  const idOf = (organizationId: string, to: string) => {
    const id = ids.get(`${organizationId} ${to}`);
    if (id === undefined) throw new Error(`${to} has no device`);
    return id;
  };
  const prefix = 'token-of-';
  return {
    idOf,
    ownerOf: (token: string) => token.slice(prefix.length),
    traceOf: (organizationId: string, to: string) => `android ${idOf(organizationId, to)}`,
    meet: async (
      server: TestServer,
      { organizationId, key }: { organizationId: string; key: string },
      to: string,
    ) => {
      if (ids.has(`${organizationId} ${to}`)) return;
      await server.installation.database.rows(
        unpreparedStatement(
          `insert into contacts (organization_id, id, external_id, created_at, updated_at)
           values ($1, $2, $2::uuid::text, now(), now())`,
        ),
        [organizationId, to],
      );
      const phone = androidApp(to, { contact_id: to, device_token: `${prefix}${to}` });
      ids.set(`${organizationId} ${to}`, (await register(server, phone, { key })).id);
    },
  };
}

describeChannel('a channel that nothing knows keeps the contract of channels', () => {
  const pigeons = createPigeons();
  return {
    channel: pigeons.channel,
    campaigns: pigeons.campaigns,
    senders: { own: 'loft', other: 'tower' },
    addSender: (_server, organizationId, loft) => Promise.resolve(pigeons.lofts.add(organizationId, loft)),
    removeSender: (_server, organizationId, loft) =>
      Promise.resolve(pigeons.lofts.delete(organizationId, loft)),
    refusals: {
      sender: 'tower is no loft of this organization.',
      quota: 'The monthly by pigeon quota is used up',
      suspension:
        'Sending by pigeon is suspended for this organization by the operator. Ask the operator to lift it.',
    },
    obstacle: 'The loft loft was pulled down.',
    addresses: 'phone_number',
    submit: ({ sender: loft, ...note }) => pigeons.submit({ ...note, loft }),
    inputsOf: ({ sender, text }) => ({ from: sender, note: text }),
    createDelivery: ({ installation }, carry) => pigeons.createDelivery(installation.database, carry),
    statuses: {
      waiting: 'queued',
      'handed off': 'sent',
      uncertain: 'sent',
      dropped: 'failed',
      expired: null,
      delayed: 'queued',
      delivered: 'delivered',
      bounced: 'failed',
      failed: 'failed',
      opened: null,
      clicked: null,
      complained: null,
      unsubscribed: null,
      cancelled: 'cancelled',
    },
    reasons: { hard: 'hawk', soft: 'storm' },
    retriedForHours: 48,
    answers: {
      accepted: ['sent', 'sent'],
      'rejected for good': ['bounced hard hawk', 'bounced hard hawk'],
      'rejected for now': ['failed soft storm', 'failed soft storm'],
      'rejected for an unknown reason': ['failed soft sunspots', 'failed soft sunspots'],
      deferred: ['delayed soft storm waits', 'delayed soft storm waits'],
      'deferred in the last hour': ['delayed soft storm waits', 'delayed soft storm waits'],
      'deferred an hour too late': ['failed soft winter', 'failed soft winter'],
      postponed: ['sent waits', 'sent waits'],
      lost: ['sent uncertain waits', 'sent uncertain'],
      'a fault before the marker': ['sent', 'sent'],
      'a fault after the marker': ['sent uncertain waits', 'sent uncertain'],
    },
    judgesAddresses: true,
    afterRefusal: 'suppressed',
    asksContacts: false,
    isReportedById: false,
    addressAskingForSuppression: '+491511230000',
  };
});
