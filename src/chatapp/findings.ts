import type { ChatAppFinding, ChatAppPerson } from '../channels/chatapp/provider.ts';
import {
  countReached,
  holdCampaigns,
  noteMarketingRefusal,
  noteTemplateFinding,
} from '../chat-templates/chat-templates.ts';
import type { Finding } from '../messages/messages.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import type { NewId } from '../platform/ids.ts';
import { type Transaction, unpreparedStatement } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { stopMarketing } from './choices.ts';
import { keepPeople, listNamesOf } from './people.ts';

/** What a hand-off found out beyond the one message. */
export type HandOffFinding = {
  kind: 'handed off';
  finding: ChatAppFinding | null;
  /** The digits by which the provider knows the person; null if they are those of the number. */
  knownAs: string | null;
  /** Whether the provider has taken the message, and limits the people that the organization may write to. */
  isCounted: boolean;
};

/** The provider may have taken the message, and nobody knows what it said. */
export type CutOffFinding = { kind: 'cut off'; finding: null };

/** The same of a report. */
export type ReportedFinding = { kind: 'reported'; person: ChatAppPerson; finding: ChatAppFinding | null };

export type FoundOfChatApp = HandOffFinding | CutOffFinding | ReportedFinding;

type Found = Omit<Finding, 'finding'> & { finding: FoundOfChatApp };

/** Organizations and templates in the order of their ids, as everybody locks them who locks more than one. */
export async function keepChatAppFindings(
  tools: { clock: Clock; newId: NewId; secrets: Secrets },
  transaction: Transaction,
  findings: readonly Finding[],
): Promise<boolean> {
  // As delivery.ts and events.ts gave them.
  const found = findings.map((finding) => ({ ...finding, finding: finding.finding as FoundOfChatApp }));
  let haveContactsChanged = false;
  const groups = [...groupBy(found, (finding) => finding.organizationId)];
  // Text of uuids: the order is the same for everybody.
  groups.sort(([one], [other]) => (one < other ? -1 : 1));
  for (const [organizationId, own] of groups) {
    const hasChanged = await transaction.asOrganizations([organizationId], async () => {
      await countReached(tools, transaction, { organizationId, addresses: listCounted(own) });
      await keepPeople(transaction, own.flatMap(listPeople), now(tools.clock));
      return stopFor(transaction, tools, own);
    });
    haveContactsChanged ||= hasChanged;
    await keepTemplateFindings(tools, transaction, organizationId, own);
    await keepHolds(tools, transaction, organizationId, own);
    await keepMarketingRefusals(tools, transaction, organizationId, own);
  }
  return haveContactsChanged;
}

function listCounted(found: readonly Found[]): string[] {
  return found.flatMap(({ addressKey, finding }) =>
    finding.kind === 'cut off' || (finding.kind === 'handed off' && finding.isCounted) ? [addressKey] : [],
  );
}

function listPeople({ organizationId, addressKey: address, finding }: Found) {
  // Of a contact that was erased.
  if (!address.startsWith('+') || finding.kind === 'cut off') return [];
  const person = finding.kind === 'reported' ? finding.person : { waId: finding.knownAs, userId: null };
  return listNamesOf(person, address).map((knownAs) => ({ organizationId, knownAs, address }));
}

async function stopFor(
  transaction: Transaction,
  tools: { clock: Clock; newId: NewId },
  found: readonly Found[],
): Promise<boolean> {
  const stopped = new Set(
    found.flatMap(({ addressKey, finding: { finding } }) =>
      finding?.kind === 'stopped_marketing' ? [addressKey] : [],
    ),
  );
  let hasChanged = false;
  for (const address of [...stopped].sort()) {
    const organizationId = found[0]?.organizationId ?? '';
    if (await stopMarketing(transaction, tools, { organizationId, address })) hasChanged = true;
  }
  return hasChanged;
}

async function keepTemplateFindings(
  tools: { clock: Clock },
  transaction: Transaction,
  organizationId: string,
  found: readonly Found[],
): Promise<void> {
  const ofMessages = new Map(
    found.flatMap(({ messageId, finding: { finding } }) =>
      finding?.kind === 'template' ? [[messageId, finding] as const] : [],
    ),
  );
  if (ofMessages.size === 0) return;
  const templates = await transaction.asOrganizations([organizationId], () =>
    transaction.rows(
      unpreparedStatement<{ id: string; template_id: string }>(
        `select distinct on (template_id) id, template_id
         from messages
         where organization_id = $1 and id = any ($2::uuid[]) and template_id is not null
         order by template_id, id desc`,
      ),
      [organizationId, [...ofMessages.keys()]],
    ),
  );
  for (const { id: messageId, template_id: id } of templates) {
    const finding = ofMessages.get(messageId);
    if (finding !== undefined)
      await noteTemplateFinding(tools, transaction, {
        organizationId,
        id,
        state: finding.state,
        words: finding.words,
      });
  }
}

/** The one that lasts longest: the account is one row, which all of them concern. */
async function keepHolds(
  { clock }: { clock: Clock },
  transaction: Transaction,
  organizationId: string,
  found: readonly Found[],
): Promise<void> {
  const [longest] = found
    .flatMap(({ finding: { finding } }) => (finding?.kind === 'campaigns_held' ? [finding] : []))
    .sort((one, other) => (other.forMs ?? Infinity) - (one.forMs ?? Infinity) || 0);
  if (longest === undefined) return;
  const { words, forMs } = longest;
  const until = forMs === null ? null : dateOf(clock.nowMs() + forMs);
  await transaction.asOrganizations([organizationId], () =>
    holdCampaigns(transaction, { organizationId, words, until }),
  );
}

async function keepMarketingRefusals(
  { clock }: { clock: Clock },
  transaction: Transaction,
  organizationId: string,
  found: readonly Found[],
): Promise<void> {
  const [refusal] = found.flatMap(({ finding: { finding } }) =>
    finding?.kind === 'marketing_refused' ? [finding] : [],
  );
  if (refusal === undefined) return;
  await transaction.asOrganizations([organizationId], () =>
    noteMarketingRefusal(transaction, organizationId, { words: refusal.words, at: now(clock) }),
  );
}
