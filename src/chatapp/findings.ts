import type { ChatAppFinding, ChatAppPerson } from '../channels/chatapp/provider.ts';
import {
  countReached,
  findRefusedTemplates,
  holdCampaigns,
  noteMarketingRefusal,
  noteTemplateFinding,
  noteVerdicts,
  type TemplateVerdict,
} from '../chat-templates/chat-templates.ts';
import { type Finding, latestOfEach } from '../messages/messages.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { type ChoiceTools, stopMarketing } from './choices.ts';
import { keepPeople, listNamesOf } from './people-store.ts';
import * as store from './store.ts';
import { markUnreachable, noteReached } from './unreachable.ts';

/** What a hand-off found out beyond the one message. */
export type HandOffFinding = {
  kind: 'handed off';
  finding: ChatAppFinding | null;
  /** The digits by which the provider knows the person; null if they are those of the number. */
  knownAs: string | null;
  /** Whether the provider has taken the message, and limits the people that the organization may write to. */
  isCounted: boolean;
  /** Whether the provider has taken the message after it had refused others of its template. */
  endsRefusals: boolean;
};

/** The provider may have taken the message, and nobody knows what it said. */
export type CutOffFinding = { kind: 'cut off'; finding: null };

/** The same of a report. */
export type ReportedFinding = {
  kind: 'reported';
  person: ChatAppPerson;
  finding: ChatAppFinding | null;
  /** Whether it was delivered. */
  hasArrived: boolean;
};

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
    let refused: ReadonlySet<string> = new Set();
    const hasChanged = await transaction.asOrganizations([organizationId], async () => {
      await countReached(tools, transaction, { organizationId, addresses: listCounted(own) });
      await keepPeople(transaction, own.flatMap(listPeople), now(tools.clock));
      const isAnyoneStopped = await stopFor(transaction, tools, own);
      const arrived = own.filter(hasArrived);
      if (arrived.length > 0)
        [refused] = await Promise.all([
          findRefusedTemplates(transaction, organizationId),
          noteReached(transaction, tools, {
            organizationId,
            addresses: arrived.map(({ addressKey }) => addressKey),
          }),
        ]);
      await markUnreachable(transaction, tools, { organizationId, addresses: listUnreachable(own) });
      return isAnyoneStopped;
    });
    haveContactsChanged ||= hasChanged;
    await keepTemplateFindings(tools, transaction, { organizationId, found: own, refused });
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

function hasArrived({ finding }: Found): boolean {
  return finding.kind === 'reported' && finding.hasArrived;
}

/** Not those of contacts that were erased. */
function listUnreachable(found: readonly Found[]): string[] {
  const unreachable = found.filter(
    ({ addressKey, finding: { finding } }) => finding?.kind === 'unreachable' && addressKey.startsWith('+'),
  );
  return [...new Set(unreachable.map(({ addressKey }) => addressKey))];
}

async function stopFor(
  transaction: Transaction,
  tools: ChoiceTools,
  found: readonly Found[],
): Promise<boolean> {
  const stopped = found.filter(({ finding: { finding } }) => finding?.kind === 'stopped_marketing');
  let hasChanged = false;
  for (const { organizationId, addressKey: address, sentAt } of latestOfEach(stopped)) {
    if (await stopMarketing(transaction, tools, { organizationId, address, sentAt })) hasChanged = true;
  }
  return hasChanged;
}

type OfTemplates = {
  organizationId: string;
  found: readonly Found[];
  /** The templates of which messages were reported as refused before. */
  refused: ReadonlySet<string>;
};

/**
 * What was found out of templates as a whole comes before what became of single messages of them. Where no message was
 * refused, nothing is asked for, and no template is locked.
 */
async function keepTemplateFindings(
  tools: { clock: Clock },
  transaction: Transaction,
  { organizationId, found, refused }: OfTemplates,
): Promise<void> {
  const mayEndRefusals = refused.size > 0 || found.some(isRefusedReport);
  const told = found.flatMap((one) => {
    const { finding } = one.finding;
    const verdict = hasArrived(one) && !mayEndRefusals ? null : toVerdict(one);
    const template = finding?.kind === 'template' ? finding : null;
    return verdict === null && template === null ? [] : [{ ...one, verdict, template }];
  });
  if (told.length === 0) return;
  const messageIds = [...new Set(told.map(({ messageId }) => messageId))];
  const templateOf = await findTemplatesOf(transaction, organizationId, messageIds);
  const byTemplate = [...groupBy(told, ({ messageId }) => templateOf.get(messageId) ?? null)];
  byTemplate.sort(([one], [other]) => ((one ?? '') < (other ?? '') ? -1 : 1));
  for (const [id, ofTemplate] of byTemplate) {
    if (id === null) continue;
    const last = ofTemplate.findLast(({ template }) => template !== null)?.template ?? null;
    if (last !== null)
      await noteTemplateFinding(tools, transaction, {
        organizationId,
        id,
        state: last.state,
        words: last.words,
      });
    const verdicts = ofTemplate.flatMap(({ verdict }) => verdict ?? []);
    const isNews = ({ source, refusal }: TemplateVerdict) =>
      source === 'answer' || refusal !== null || refused.has(id);
    if (verdicts.some(isNews)) await noteVerdicts(tools, transaction, { organizationId, id, verdicts });
  }
}

function isRefusedReport({ finding }: Found): boolean {
  return finding.kind === 'reported' && finding.finding?.kind === 'invalid_message';
}

/** Null for what says nothing of how the provider takes messages of the template. */
function toVerdict(one: Found): TemplateVerdict | null {
  const { messageId, ordinal, finding } = one;
  if (finding.kind === 'cut off') return null;
  const refusal = finding.finding?.kind === 'invalid_message' ? finding.finding.words : null;
  const isTaken = finding.kind === 'reported' ? hasArrived(one) : finding.endsRefusals;
  if (refusal === null && !isTaken) return null;
  const source = finding.kind === 'reported' ? 'report' : 'answer';
  return { source, refusal, recipient: `${messageId} ${ordinal}` };
}

/** By the id of the message. */
async function findTemplatesOf(
  transaction: Transaction,
  organizationId: string,
  messageIds: readonly string[],
): Promise<Map<string, string>> {
  return transaction.asOrganizations([organizationId], () =>
    store.findTemplateIds(transaction, organizationId, messageIds),
  );
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
