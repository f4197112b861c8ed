/**
 * A channel that the program does not know: pigeons, which carry texts to phone numbers. It takes the place, and with it
 * the name, of a channel of the program, since the tables know only those.
 */
import { Type } from 'typebox';
import type { CampaignChannel } from '../../src/campaigns/campaigns.ts';
import type { SendingChannel } from '../../src/channels/channel.ts';
import { compileText, fillText, listPlaceholders } from '../../src/channels/placeholders.ts';
import type { RecipientKey, SendOutcome } from '../../src/channels/outcome.ts';
import {
  type ChannelDelivery,
  defineMessageStatus,
  findMessageSender,
  type HandOffPermit,
  loadDeliverableMessages,
  type MessageChannel,
  type Submission,
} from '../../src/messages/messages.ts';
import { type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';

const name = 'chatapp' as SendingChannel;

/** Takes one copy to its address, or says why not. */
export type Carry = (copy: {
  reference: RecipientKey;
  to: string;
  text: string;
  confirm: HandOffPermit['confirm'];
}) => Promise<SendOutcome<string>>;

export type Pigeons = {
  channel: MessageChannel;
  campaigns: CampaignChannel;
  /** Of organizations: what they may send from. */
  lofts: {
    add: (organizationId: string, loft: string) => void;
    delete: (organizationId: string, loft: string) => void;
  };
  submit: (note: {
    organizationId: string;
    loft: string;
    /** Any number of them. */
    to: string | readonly string[];
    text: string;
    /** In milliseconds since 1970; left out where it has no end of its own. */
    expiresAtMs?: number;
  }) => Submission;
  createDelivery: (database: Database, carry: Carry) => ChannelDelivery;
};

type Content = { note: string; hasPlaceholders: boolean; expiresAtMs?: number };

export function createPigeons(): Pigeons {
  const lofts = new Set<string>();
  const keyOf = (organizationId: string, loft: string) => `${organizationId} ${loft}`;
  const channel: MessageChannel = {
    name,
    words: { medium: 'by pigeon', messages: 'pigeons', unit: 'pigeons' },
    senders: {
      loadOwn: () =>
        Promise.resolve({ has: ({ organizationId, name: loft }) => lofts.has(keyOf(organizationId, loft)) }),
      describeOther: (loft) => `${loft} is no loft of this organization.`,
    },
    acceptance: null,
    policyOf: ({ isCampaign }) => ({
      acceptedStatus: 'sent',
      retryWindowMs: 48 * 60 * 60_000,
      givenUpFor: 'winter',
      repeatsAmbiguous: !isCampaign,
    }),
    refusals: {
      hawk: { status: 'bounced', type: 'hard' },
      storm: { status: 'failed', type: 'soft' },
    },
    reports: {
      endsRepeats: true,
      isSameAddress: (address, reported) => address === reported,
      findCutOff: null,
    },
    // Programs know no pigeons.
    eventOf: () => null,
    judgement: { failureClasses: ['hawk'], isSimulated: () => false },
    // Hawks are kept with the contact.
    keepFindings: async (_tools, transaction, findings) => {
      // In more than one round trip, as keeping them may take.
      await transaction.rows(unpreparedStatement('select'));
      await transaction.rows(
        unpreparedStatement(
          `update contacts c set last_name = found.finding
           from unnest($1::uuid[], $2::text[], $3::text[]) as found (organization_id, phone_number, finding)
           where c.organization_id = found.organization_id and c.phone_number = found.phone_number`,
        ),
        [
          findings.map(({ organizationId }) => organizationId),
          findings.map(({ addressKey }) => addressKey),
          findings.map(({ finding }) => finding),
        ],
      );
      return false;
    },
    refreshStatus: defineMessageStatus(
      'pigeons',
      `min(case when r.drop_reason is not null or r.status in ('bounced', 'failed') then 'failed'
        when r.status in ('delivered', 'cancelled') then r.status when r.handed_off_at is not null then 'sent' else 'queued' end)`,
    ),
    objections: {
      findBarred: async (connection, contacts) => {
        const rows = await connection.rows(
          unpreparedStatement<{ position: number; bar: 'contact_deleted' | 'unsubscribed' }>(
            `select position, case when c.id is null then 'contact_deleted' else 'unsubscribed' end as bar
             from unnest($1::uuid[], $2::uuid[]) with ordinality as wanted (organization_id, id, position)
             left join contacts c using (organization_id, id)
             where c.id is null or $3 = any (c.unsubscribed_channels)`,
          ),
          [contacts.map(({ organizationId }) => organizationId), contacts.map(({ id }) => id), name],
        );
        return new Map(rows.map(({ position, bar }) => [position - 1, bar]));
      },
      askedForCategory: null,
      isSimulatedSuppression: (address) => address.endsWith('0000'),
    },
  };
  const campaigns: CampaignChannel = {
    messages: channel,
    deliveredPerSecondMax: 100,
    path: '/pigeons/campaigns',
    noun: 'PigeonCampaign',
    object: 'pigeon_campaign',
    tag: 'Pigeon campaigns',
    contentFields: { from: Type.Optional(Type.String()), note: Type.Optional(Type.String()) },
    contentRecord: { from: Type.String(), note: Type.String() },
    bodyFields: ['note'],
    findIssues: () => [],
    rules: [],
    templateIdOf: () => null,
    findUnknown: () => Promise.resolve([]),
    reach: { kind: 'address', columns: { address: 'phone_number', key: 'phone_number' } },
    openMeter: null,
    words: {
      medium: 'pigeons',
      address: 'phone number',
      taker: 'the loft',
      arrival: 'it landed',
      opened: 'was opened',
      clicked: 'one of its links was clicked',
      cutOff: 'it may have arrived, and will not be sent again',
      retriedFor: 'two days',
      unreachable: 'No pigeon knows the way.',
      unfit: 'too many words',
    },
    defaultsOf: () => ({}),
    prepare: (_transaction, { content }) => {
      const { from: sender = '', note = '' } = content as { from?: string; note?: string };
      return Promise.resolve({
        kind: 'ready',
        message: {
          sender,
          subject: null,
          category: null,
          templateId: null,
          details: '{}',
          content: JSON.stringify({ note, hasPlaceholders: true } satisfies Content),
          variableNames: listPlaceholders([note], 100),
        },
      });
    },
    findObstacle: async (transaction, message) => {
      const loft = (await findMessageSender(transaction, message)) ?? '';
      return lofts.has(keyOf(message.organizationId, loft)) ? null : `The loft ${loft} was pulled down.`;
    },
    sampleRecord: {},
    emptySample: {},
    renderSample: () => Promise.resolve(null),
    addressFormat: 'phone-number',
    testedAddress: 'Each address gets a note of its own.',
    findOversights: () => Promise.resolve([]),
    submitTest: () => Promise.resolve(null),
  };
  return {
    channel,
    campaigns,
    lofts: {
      add: (organizationId, loft) => {
        lofts.add(keyOf(organizationId, loft));
      },
      delete: (organizationId, loft) => {
        lofts.delete(keyOf(organizationId, loft));
      },
    },
    submit: ({ organizationId, loft, to, text, expiresAtMs }) => ({
      organizationId,
      channel: name,
      class: 'transactional',
      sender: loft,
      senderName: loft,
      subject: null,
      searchText: null,
      category: null,
      templateId: null,
      details: '{}',
      content: JSON.stringify({
        note: text,
        hasPlaceholders: false,
        ...(expiresAtMs !== undefined && { expiresAtMs }),
      } satisfies Content),
      recipients: [to].flat().map((address) => ({
        field: 'to',
        address,
        addressKey: address,
        dropReason: null,
      })),
      attachments: [],
      quotaUnits: 1,
      missingVariables: [],
      warnings: [],
      idempotencyKey: null,
    }),
    createDelivery: (database, carry) => ({
      channel,
      provider: 'loft',
      concurrency: 4,
      accountOf: ({ organizationId }) => organizationId,
      isReportedById: false,
      begin: () => ({
        prepare: () => Promise.resolve(),
        handOff: async (job, { confirm }) => {
          const [message] = await loadDeliverableMessages(database, [job]);
          if (message === undefined)
            return { kind: 'failed', reason: 'other', diagnostic: 'The note is gone.', facts: null };
          const { note, hasPlaceholders, expiresAtMs } = message.content as Content;
          const filled = hasPlaceholders
            ? fillText(compileText(note, 'text'), job.variables ?? {}, 1_000)
            : note;
          const outcome = await carry({ reference: job, to: job.addressKey, text: filled ?? '', confirm });
          return {
            kind: 'outcome',
            outcome,
            facts: {
              isShared: message.recipientCount > 1,
              hasAttachments: false,
              ...(expiresAtMs !== undefined && { expiresAt: new Date(expiresAtMs) }),
            },
            ...(outcome.kind === 'rejected' && { finding: outcome.reason }),
          };
        },
      }),
    }),
  };
}
