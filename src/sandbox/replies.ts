import { badRequest, PublicError, validationError } from '../platform/http/errors.ts';
import { showKey } from '../platform/http/json-text.ts';
import type { PageRequest, WebPage } from '../platform/http/route.ts';
import { respondJson } from './page.ts';
import { type Fields, readFields } from './posted-json.ts';
import type { SandboxMessage } from './store.ts';

/**
 * What the reader of a message says back: a text, a quick reply that they press, or what they set in the chat app against
 * marketing. It goes where a provider would report it, so that what follows is what would follow there.
 */
export type Said = { kind: 'text'; text: string } | { kind: 'marketing'; value: 'stop' | 'resume' };

export type AnsweredMessage = Pick<SandboxMessage, 'organizationId' | 'channel' | 'recipient' | 'sender'>;

/** What holds for the reader's number since they said it. It is applied a moment after it was stored. */
export type Standing = {
  /** STOP: the number gets nothing. */
  opted_out: boolean;
  /** Null on a channel that has no such setting. */
  marketing_stopped: boolean | null;
  /** Of the contact that has the number; null if none has. */
  consent: 'subscribed' | 'unsubscribed' | null;
};

export type Replies = {
  /** Why nobody can answer such a message, as a sentence; null if one can. */
  findObstacle: (message: AnsweredMessage) => Promise<string | null>;
  /** Of a message that can be answered. */
  describe: (message: AnsweredMessage) => Promise<Standing>;
  /** Resolves once it is stored. */
  take: (message: AnsweredMessage, said: Said) => Promise<void>;
};

/** A text of 4,096 characters, in whatever script and however escaped. */
const bodyBytesMax = 32_768;

/** As long as a text of WhatsApp may be. */
const textCharsMax = 4_096;

export function replyPages(
  path: string,
  replies: Replies,
  find: {
    envelope: (request: PageRequest) => Promise<SandboxMessage>;
    message: (request: PageRequest) => Promise<SandboxMessage & { source: Buffer }>;
  },
): WebPage[] {
  return [
    {
      path,
      isRoutine: true,
      handle: async (request) => {
        const message = await find.envelope(request);
        const obstacle = await replies.findObstacle(message);
        return respondJson(
          obstacle === null
            ? { can_reply: true, obstacle, ...(await replies.describe(message)) }
            : { can_reply: false, obstacle },
        );
      },
    },
    {
      method: 'POST',
      path,
      rawBytesMax: bodyBytesMax,
      handle: async (request) => {
        const fields = readFields(request);
        const message = await find.message(request);
        const obstacle = await replies.findObstacle(message);
        if (obstacle !== null) throw new PublicError(badRequest, obstacle);
        const said = readSaid(fields, message);
        await replies.take(message, said);
        return respondJson({ said: said.kind === 'text' ? said.text : null });
      },
    },
  ];
}

const members = ['text', 'button', 'marketing'] as const;

/** Throws a PublicError for anything but one of the three members. */
function readSaid(fields: Fields, message: SandboxMessage & { source: Buffer }): Said {
  const unknown = Object.keys(fields).find((name) => !members.some((member) => member === name));
  if (unknown !== undefined) throw refuse(`${showKey(unknown)} is not a field: ${members.join(', ')} are`);
  const given = members.filter((member) => fields[member] !== undefined);
  if (given.length !== 1) throw refuse(`give one of ${members.join(', ')}`);
  const { text, button, marketing } = fields;
  if (text !== undefined) return { kind: 'text', text: readText(text) };
  if (button !== undefined) return { kind: 'text', text: readButton(button, message) };
  if (message.channel !== 'chatapp') throw refuse('marketing can be set in chat apps alone');
  if (marketing !== 'stop' && marketing !== 'resume') throw refuse('marketing must be stop or resume');
  return { kind: 'marketing', value: marketing };
}

function readText(text: unknown): string {
  if (typeof text !== 'string' || text.trim() === '' || text.length > textCharsMax)
    throw refuse(`text must be a text of 1 to ${textCharsMax} characters`);
  return text;
}

/** A quick reply says its own words, as the provider reports it. The position is that among all buttons. */
function readButton(position: unknown, { channel, source }: SandboxMessage & { source: Buffer }): string {
  const buttons = channel === 'chatapp' ? readButtons(source) : [];
  const button = typeof position === 'number' ? buttons[position] : undefined;
  if (button?.type !== 'quick_reply' || typeof button.text !== 'string')
    throw refuse('button must be the position of a quick reply of the message');
  return button.text;
}

/** As the provider kept them. */
function readButtons(source: Buffer): { type?: unknown; text?: unknown }[] {
  const bubble = JSON.parse(source.toString('utf8')) as { buttons?: { type?: unknown; text?: unknown }[] };
  return bubble.buttons ?? [];
}

function refuse(issue: string): PublicError {
  return new PublicError(validationError, issue);
}
