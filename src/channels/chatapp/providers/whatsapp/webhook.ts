import { dateOf } from '../../../../platform/clock.ts';
import type { Steps } from '../../../../platform/steps.ts';
import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { RecipientKey } from '../../../outcome.ts';
import type { ChatAppPerson, ToldOfChatApp } from '../../provider.ts';
import { describeError, findingOf, meaningOf, readMessageId, readWaId } from './answers.ts';
import { readLimit, readQuality } from './account.ts';
import { readGraphError } from './graph-body.ts';
import { idOf, type JsonObject, listOf, objectOf, textOf } from './json.ts';
import { readCategory, readLanguage, readReason, readState, readTemplateName } from './template-words.ts';

/**
 * What a webhook tells (https://developers.facebook.com/docs/whatsapp/cloud-api/webhooks/payload-examples). One body has
 * several accounts, changes and items, in any order, and each of them is read for itself: one that has another form than
 * the documented one is skipped, and the others count.
 */

type ReadToken = (token: string) => RecipientKey | null;

/**
 * About two milliseconds: a body of 3 MB has some 16,000 items, which took a third of a second at once. To parse it takes
 * a sixth of that, and cannot be cut.
 */
const itemsInStep = 100;

/** Null if it does not have the form of any webhook. */
export function* readWebhook(body: Buffer, readToken: ReadToken): Steps<ToldOfChatApp[] | null> {
  const webhook = parseObject(body);
  if (webhook === null || !Array.isArray(webhook.entry)) return null;
  const told: ToldOfChatApp[] = [];
  let count = 0;
  for (const item of readEntries(webhook.entry, readToken)) {
    if (item !== null) told.push(item);
    count += 1;
    if (count % itemsInStep === 0) yield;
  }
  return told;
}

/** What each item tells, one after the other; null for nothing. */
type Items = Generator<ToldOfChatApp | null, void, undefined>;

function* readEntries(entries: readonly unknown[], readToken: ReadToken): Items {
  for (const item of entries) {
    const entry = objectOf(item);
    const businessAccountId = idOf(entry.id);
    yield null;
    if (businessAccountId === null) continue;
    const reading = { businessAccountId, readToken };
    for (const change of listOf(entry.changes)) {
      yield null;
      yield* readChange(reading, objectOf(change));
    }
  }
}

function parseObject(body: Buffer): JsonObject | null {
  try {
    const parsed: unknown = JSON.parse(body.toString('utf8'));
    return typeof parsed === 'object' && parsed !== null ? { ...parsed } : null;
  } catch {
    return null;
  }
}

type Reading = { businessAccountId: string; readToken: ReadToken };

function* readChange(reading: Reading, { field, value: given }: JsonObject): Items {
  const value = objectOf(given);
  if (field !== 'messages' && field !== 'user_preferences')
    return yield* readNews(reading.businessAccountId, field, value);
  for (const item of listOf(value.statuses)) yield readStatus(reading, objectOf(item));
  yield* readMessages(reading, value);
  for (const item of listOf(value.user_preferences)) yield readPreference(reading, objectOf(item));
}

/** Of a template or of the account. */
function readNews(businessAccountId: string, field: unknown, value: JsonObject): ToldOfChatApp[] {
  switch (field) {
    case 'message_template_status_update':
      return templateTold(businessAccountId, value, readStatusUpdate(value));
    case 'message_template_quality_update':
      return templateTold(businessAccountId, value, { quality: readQuality(value.new_quality_score) });
    case 'template_category_update':
      return readCategoryUpdate(businessAccountId, value);
    case 'phone_number_quality_update':
    case 'business_capability_update':
      return [accountTold(businessAccountId, field, value), ...readCapability(businessAccountId, value)];
    case 'message_template_components_update':
    case 'phone_number_name_update':
    case 'account_alerts':
    case 'account_review_update':
    case 'account_update':
      return [accountTold(businessAccountId, field, value)];
    default:
      return [];
  }
}

const statuses = new Map([
  ['sent', 'sent'],
  ['delivered', 'delivered'],
  ['read', 'opened'],
  // Of a voice message, which was read then.
  ['played', 'opened'],
  ['failed', 'failed'],
] as const);

type Status = typeof statuses extends Map<string, infer Word> ? Word : never;

/** Our token names the recipient, or the id of the message does; the number never. */
function readStatus({ businessAccountId, readToken }: Reading, item: JsonObject): ToldOfChatApp | null {
  const status = (statuses as ReadonlyMap<string, Status>).get(textOf(item.status) ?? '');
  const providerMessageId = readMessageId(item.id);
  const token = textOf(item.biz_opaque_callback_data) ?? '';
  const reference = token === '' || token.length > tokenCharsMax ? null : readToken(token);
  if (status === undefined || (providerMessageId === null && reference === null)) return null;
  const told = {
    kind: 'status',
    businessAccountId,
    person: personOf(item, 'recipient_id', 'recipient_user_id'),
  } as const;
  const common = { providerMessageId, reference, to: null, senderName: null, status };
  // What comes with a success explains nothing.
  if (status !== 'failed')
    return { ...told, report: { ...common, failure: null, diagnostic: null }, finding: null };
  const error = readGraphError(objectOf(listOf(item.errors)[0]));
  const meaning = meaningOf(error);
  const diagnostic = describeError(error);
  return {
    ...told,
    report: {
      ...common,
      failure: meaning?.failure ?? 'other',
      diagnostic: diagnostic === '' ? null : diagnostic,
    },
    finding: (meaning && findingOf(meaning, diagnostic).finding) ?? null,
  };
}

const tokenCharsMax = 512;

/** As Meta writes them: a country, and for some portfolios `ENT`. */
const userIdPattern = /^[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}$/;

function personOf(item: JsonObject, numberField: string, idField: string): ChatAppPerson {
  const userId = textOf(item[idField]) ?? '';
  return { waId: readWaId(item[numberField]), userId: userIdPattern.test(userId) ? userId : null };
}

function isKnown({ waId, userId }: ChatAppPerson): boolean {
  return waId !== null || userId !== null;
}

/** Seconds since 1970, as text or as a number. */
function readTime(value: unknown): Date | null {
  const seconds = typeof value === 'number' ? String(value) : (textOf(value) ?? '');
  return /^\d{1,11}$/.test(seconds) ? dateOf(1_000 * Number(seconds)) : null;
}

function* readMessages(reading: Reading, value: JsonObject): Items {
  const messages = listOf(value.messages);
  if (messages.length === 0) return;
  const contacts = listOf(value.contacts).map((contact) => personOf(objectOf(contact), 'wa_id', 'user_id'));
  const senders: Senders = {
    byWaId: new Map(contacts.flatMap((contact) => (contact.waId === null ? [] : [[contact.waId, contact]]))),
    alone: contacts.length === 1 && messages.length === 1 ? (contacts[0] ?? null) : null,
  };
  for (const item of messages) yield readInbound(reading, objectOf(item), senders);
}

function readInbound(
  { businessAccountId }: Reading,
  item: JsonObject,
  senders: Senders,
): ToldOfChatApp | null {
  const providerMessageId = readMessageId(item.id);
  const at = readTime(item.timestamp);
  const person = senderOf(item, senders);
  if (providerMessageId === null || at === null || !isKnown(person)) return null;
  if (item.type === 'system')
    return readChangedNumber({ businessAccountId, person, at }, objectOf(item.system));
  const text = readText(item);
  return text === '' ? null : { kind: 'inbound', businessAccountId, providerMessageId, person, text, at };
}

/**
 * Who has no number is named beside the message, among the contacts; where there is one alone, it is they. The contacts
 * are read once for all messages: a body has room for tens of thousands of each.
 */
type Senders = { byWaId: ReadonlyMap<string, ChatAppPerson>; alone: ChatAppPerson | null };

function senderOf(item: JsonObject, { byWaId, alone }: Senders): ChatAppPerson {
  const own = personOf(item, 'from', 'from_user_id');
  const contact = (own.waId === null ? undefined : byWaId.get(own.waId)) ?? alone;
  return { waId: own.waId ?? contact?.waId ?? null, userId: own.userId ?? contact?.userId ?? null };
}

/** As long as a text of WhatsApp may be. */
const textCharsMax = 4_096;

/** What a person wrote, or the words of the button that they chose; empty for an image and the like. */
function readText(item: JsonObject): string {
  const written = wordsOf(item)?.slice(0, textCharsMax) ?? '';
  // PostgreSQL takes neither NUL nor half a pair, which JSON can contain and the cut may leave.
  return written.replaceAll('\0', '').replace(/\p{Cs}/gu, '');
}

function wordsOf(item: JsonObject): string | null {
  const interactive = objectOf(item.interactive);
  switch (item.type) {
    case 'text':
      return textOf(objectOf(item.text).body);
    case 'button':
      return textOf(objectOf(item.button).text);
    case 'interactive':
      return (
        textOf(objectOf(interactive.button_reply).title) ?? textOf(objectOf(interactive.list_reply).title)
      );
    default:
      return null;
  }
}

function readChangedNumber(
  common: { businessAccountId: string; person: ChatAppPerson; at: Date },
  system: JsonObject,
): ToldOfChatApp | null {
  const newPerson = personOf(system, 'wa_id', 'user_id');
  const type = textOf(system.type) ?? '';
  const isChange = type === 'user_changed_number' || type === 'customer_changed_number';
  return isChange && isKnown(newPerson) ? { kind: 'changed_number', ...common, newPerson } : null;
}

function readPreference({ businessAccountId }: Reading, item: JsonObject): ToldOfChatApp | null {
  const person = personOf(item, 'wa_id', 'user_id');
  const at = readTime(item.timestamp);
  const { value } = item;
  if (item.category !== 'marketing_messages' || at === null || !isKnown(person)) return null;
  if (value !== 'stop' && value !== 'resume') return null;
  return { kind: 'marketing_preference', businessAccountId, person, value, at };
}

type TemplateNews = Partial<Extract<ToldOfChatApp, { kind: 'template' }>['template']>;

/** Webhooks of templates name no number: the account alone says whose they are. */
function templateTold(businessAccountId: string, value: JsonObject, news: TemplateNews): ToldOfChatApp[] {
  const providerTemplateId = idOf(value.message_template_id);
  const name = readTemplateName(value.message_template_name);
  const language = readLanguage(value.message_template_language);
  if (providerTemplateId === null || name === null || language === null) return [];
  const unsaid = { state: null, category: null, rejectionReason: null, quality: null };
  const template = { providerTemplateId, name, language, ...unsaid, ...news };
  return [{ kind: 'template', businessAccountId, template }];
}

function readStatusUpdate(value: JsonObject): TemplateNews {
  const state = readState(value.event);
  const { reason, recommendation } = objectOf(value.rejection_info);
  const words = [textOf(reason), textOf(recommendation)].filter((text) => text !== null && text !== '');
  return {
    state,
    category: readCategory(value.message_template_category),
    rejectionReason:
      state === 'rejected' ? sanitiseDiagnostic(words.join(' ')) || readReason(value.reason) : null,
  };
}

/**
 * Meta says a day before that it will change a category, and then that it has. `new_category` is the one that the template
 * has when it is told, and `correct_category` the one that is to come.
 */
function readCategoryUpdate(businessAccountId: string, value: JsonObject): ToldOfChatApp[] {
  const category = readCategory(value.new_category);
  if ((value.correct_category ?? null) === null) return templateTold(businessAccountId, value, { category });
  const coming = readCategory(value.correct_category);
  const atMs = readTime(value.category_update_timestamp)?.getTime() ?? null;
  return [
    accountTold(businessAccountId, 'template_category_update', value),
    ...(coming === null
      ? []
      : templateTold(businessAccountId, value, { category, announced: { category: coming, atMs } })),
  ];
}

/** The members that say in a word what happened, in the order in which they are told. */
const tellingMembers = [
  'event',
  'decision',
  'alert_type',
  'alert_severity',
  'message_template_name',
  'previous_category',
  'correct_category',
  'display_phone_number',
  'current_limit',
  'max_daily_conversations_per_business',
  'max_daily_conversation_per_phone',
] as const;

function accountTold(businessAccountId: string, field: string, value: JsonObject): ToldOfChatApp {
  const ban = objectOf(value.ban_info).waba_ban_state;
  const words = [...tellingMembers.map((member) => value[member]), ban].flatMap((word) =>
    typeof word === 'string' || typeof word === 'number' ? [String(word).slice(0, 100)] : [],
  );
  return {
    kind: 'account',
    businessAccountId,
    words: sanitiseDiagnostic(`${field}: ${words.join(' ')}`),
    areCampaignsHeld: field === 'account_update' ? areCampaignsHeld(value.event, ban) : null,
  };
}

/**
 * The older member has the same number, as long as there is no other. What `current_limit` says is a pace, or the limit of
 * one number, which there is none of any more.
 */
function readCapability(businessAccountId: string, value: JsonObject): ToldOfChatApp[] {
  const peoplePerDayMax =
    readLimit(value.max_daily_conversations_per_business) ??
    readLimit(value.max_daily_conversation_per_phone);
  return peoplePerDayMax === null ? [] : [{ kind: 'people_limit', businessAccountId, peoplePerDayMax }];
}

const holdingEvents: readonly unknown[] = ['DISABLED_UPDATE', 'ACCOUNT_DELETED', 'ACCOUNT_RESTRICTION'];

/** Null where it says nothing of that. */
function areCampaignsHeld(event: unknown, banState: unknown): boolean | null {
  if (banState === 'REINSTATE') return false;
  return holdingEvents.includes(event) ? true : null;
}
