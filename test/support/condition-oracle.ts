/**
 * What the conditions of a segment mean, one contact at a time and in plain code: tests hold the SQL that they are
 * compiled to against it. It is written from the description of the language alone and shares no code with the compiler.
 */

/** A condition as a client writes it, known to be valid. */
export type OracleCondition = { type: string; [field: string]: unknown };

export type OracleRecipient = {
  /** Null if the message was no campaign's, and then it went to an address alone. */
  campaignId: string | null;
  /**
   * A campaign goes to contacts, and their addresses change: whether the contact was the recipient, or only has the
   * address now that another contact had then, or was the recipient and still has the address.
   */
  knownBy: 'contact' | 'address' | 'both';
  status: string;
  statusAtMs: number;
  handedOffAtMs: number | null;
  openedAtMs: number | null;
  clickedAtMs: number | null;
};

export type OracleContact = {
  fields: Readonly<Record<string, string | null>>;
  /** By key. Dates as they were given. */
  properties: Readonly<Record<string, string | number | boolean>>;
  unsubscribedChannels: readonly string[];
  setIds: readonly string[];
  devices: readonly { platform: string; status: string }[];
  /** The recipients that it was, or that its email address was. */
  recipients: readonly OracleRecipient[];
};

export type OracleWorld = {
  atMs: number;
  /** The type of each property, by key. */
  propertyTypes: Readonly<Record<string, string>>;
};

export function holds(condition: OracleCondition, contact: OracleContact, world: OracleWorld): boolean {
  switch (condition.type) {
    case 'group':
      return groupHolds(condition, contact, world);
    case 'field':
      return fieldHolds(condition, contact, world);
    case 'property': {
      const key = condition.key as string;
      return valueHolds(world.propertyTypes[key]!, condition, contact.properties[key] ?? null, world);
    }
    case 'list':
    case 'tag':
    case 'segment': {
      const isMember = (condition.ids as string[]).some((id) => contact.setIds.includes(id.toLowerCase()));
      return condition.operator === 'in' ? isMember : !isMember;
    }
    case 'consent': {
      const isUnsubscribed = contact.unsubscribedChannels.includes(condition.channel as string);
      const state = isUnsubscribed ? 'unsubscribed' : 'subscribed';
      return condition.operator === 'is' ? state === condition.value : state !== condition.value;
    }
    case 'device': {
      const active = contact.devices.filter(({ status }) => status === 'ACTIVE');
      const meant = active.filter(
        ({ platform }) => condition.platform === undefined || condition.platform === platform,
      );
      return condition.operator === 'has_active' ? meant.length > 0 : meant.length === 0;
    }
    case 'message':
      return contact.recipients.some((recipient) => recipientMatches(condition, recipient, world));
    default:
      throw new Error(`no meaning is known for ${condition.type}`);
  }
}

function groupHolds(condition: OracleCondition, contact: OracleContact, world: OracleWorld): boolean {
  const answers = (condition.conditions as OracleCondition[]).map((member) => holds(member, contact, world));
  if (condition.match === 'all') return !answers.includes(false);
  return condition.match === 'any' ? answers.includes(true) : !answers.includes(true);
}

function fieldHolds(condition: OracleCondition, contact: OracleContact, world: OracleWorld): boolean {
  const name = condition.field as string;
  const value = contact.fields[name] ?? null;
  if (name === 'created_at') return valueHolds('date', condition, value, world);
  if (name !== 'email') return valueHolds('string', condition, value, world);
  const given = condition.value as string | string[] | undefined;
  const lowered = Array.isArray(given) ? given.map((text) => text.toLowerCase()) : given?.toLowerCase();
  return valueHolds('string', { ...condition, value: lowered }, value?.toLowerCase() ?? null, world);
}

type Value = string | number | boolean | null;

function valueHolds(type: string, condition: OracleCondition, value: Value, world: OracleWorld): boolean {
  const operator = condition.operator as string;
  if (operator === 'is_set') return value !== null;
  if (operator === 'is_not_set') return value === null;
  // "A negative operator matches contacts without a value", and no other does.
  if (value === null) return operator === 'neq' || operator.startsWith('not_');
  const operand = condition.value;
  if (type === 'string') return textHolds(operator, value as string, operand);
  if (type === 'number') return numberHolds(operator, value as number, operand);
  if (type === 'boolean') return operator === 'is_true' ? value === true : value === false;
  return dateHolds(operator, new Date(value as string).getTime(), operand, world.atMs);
}

/** What is stored is composed, and conditions may ask in any spelling. */
function textHolds(operator: string, value: string, operand: unknown): boolean {
  const texts = [operand as string | string[]].flat().map((text) => text.normalize('NFC'));
  if (operator === 'in') return texts.includes(value);
  if (operator === 'not_in') return !texts.includes(value);
  const [text = ''] = texts;
  if (operator === 'eq') return value === text;
  if (operator === 'neq') return value !== text;
  if (operator === 'contains') return value.includes(text);
  if (operator === 'not_contains') return !value.includes(text);
  return operator === 'starts_with' ? value.startsWith(text) : value.endsWith(text);
}

function numberHolds(operator: string, value: number, operand: unknown): boolean {
  if (operator === 'between') {
    const [from, to] = operand as [number, number];
    return value >= from && value <= to;
  }
  const number = operand as number;
  if (operator === 'eq') return value === number;
  if (operator === 'neq') return value !== number;
  if (operator === 'gt') return value > number;
  if (operator === 'gte') return value >= number;
  return operator === 'lt' ? value < number : value <= number;
}

function dateHolds(operator: string, valueMs: number, operand: unknown, atMs: number): boolean {
  if (operator === 'before') return valueMs < new Date(operand as string).getTime();
  if (operator === 'after') return valueMs > new Date(operand as string).getTime();
  if (operator === 'between') {
    const [fromMs, toMs] = (operand as [string, string]).map((text) => new Date(text).getTime());
    return valueMs >= fromMs! && valueMs <= toMs!;
  }
  const isWithin = valueMs > atMs - periodMs(operand) && valueMs <= atMs;
  return operator === 'within_last' ? isWithin : !isWithin;
}

function periodMs(period: unknown): number {
  const { value, unit } = period as { value: number; unit: string };
  const minutes = { minute: 1, hour: 60, day: 24 * 60, week: 7 * 24 * 60 }[unit]!;
  return value * minutes * 60_000;
}

/**
 * A click is an open, and a contact that opened, unsubscribed or complained had the message. A campaign counts for the
 * contact that it was sent to, any other message for the contact that has the address.
 */
function recipientMatches(
  condition: OracleCondition,
  recipient: OracleRecipient,
  world: OracleWorld,
): boolean {
  const hadIt = ['delivered', 'opened', 'clicked', 'unsubscribed', 'complained'].includes(recipient.status);
  const isMeant =
    condition.campaign_id === undefined
      ? recipient.knownBy !== 'contact'
      : recipient.campaignId === (condition.campaign_id as string).toLowerCase() &&
        recipient.knownBy !== 'address';
  const seenAtMs = {
    delivered: hadIt ? (recipient.handedOffAtMs ?? recipient.statusAtMs) : null,
    opened: recipient.openedAtMs,
    clicked: recipient.clickedAtMs,
    bounced: recipient.status === 'bounced' ? recipient.statusAtMs : null,
  }[condition.action as string]!;
  if (!isMeant || seenAtMs === null) return false;
  return condition.within === undefined || seenAtMs > world.atMs - periodMs(condition.within);
}
