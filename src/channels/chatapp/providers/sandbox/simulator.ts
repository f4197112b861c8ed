import type { RecipientKey, RemoteReply } from '../../../outcome.ts';
import type { ChatAppFailure, ChatAppFinding, ChatAppOutcome, ToldOfChatApp } from '../../provider.ts';

/** What becomes of a message in the sandbox, by the number that it goes to. */

export type SimulatedOutcome =
  | 'delivered'
  | 'unreachable'
  | 'stopped'
  | 'undelivered'
  | 'capped'
  | 'slow'
  | 'unknown'
  | 'deferred'
  | 'postponed'
  | 'read'
  | 'read_at_once'
  | 'invalid'
  | 'invalid_later'
  | 'sender_rejected';

/**
 * The numbers that choose their outcome, and that `docs/chat-app-simulator.md` lists: those of the simulator of texts,
 * with the same meanings as far as both have them. They belong to no subscriber.
 */
export const simulatorNumbers: ReadonlyMap<string, SimulatedOutcome> = new Map([
  ['+15005550001', 'unreachable'],
  ['+15005550004', 'stopped'],
  ['+15005550006', 'delivered'],
  ['+15005550010', 'undelivered'],
  ['+15005550011', 'capped'],
  ['+15005550012', 'slow'],
  ['+15005550013', 'unknown'],
  ['+15005550014', 'deferred'],
  ['+15005550016', 'postponed'],
  ['+15005550017', 'read'],
  ['+15005550018', 'read_at_once'],
  ['+15005550019', 'invalid'],
  ['+15005550020', 'invalid_later'],
  ['+15005550021', 'sender_rejected'],
]);

/** As WhatsApp puts off what goes too fast to one person. */
export const postponedMs = 6_000;

/** What the provider answers. `code` is WhatsApp's, where it has one for it. */
export function answerFor(outcome: SimulatedOutcome, reference: RecipientKey): ChatAppOutcome {
  switch (outcome) {
    case 'unreachable':
      return {
        kind: 'rejected',
        reason: 'unreachable',
        reply: reply(diagnostics.unreachable, 131_026),
        finding: { kind: 'unreachable' },
      };
    case 'invalid':
      return refuseMessage(diagnostics.invalid, 131_009);
    case 'sender_rejected':
      return {
        kind: 'rejected',
        reason: 'sender_rejected',
        reply: reply('The account may not write to this simulated country', 130_497),
      };
    case 'deferred':
      return {
        kind: 'deferred',
        reason: 'rate_limited',
        reply: reply('The simulator asks to try again later'),
      };
    case 'postponed':
      return {
        kind: 'postponed',
        retryAfterMs: postponedMs,
        reply: reply('Too many messages to this simulated number for now', 131_056),
      };
    case 'unknown':
      return { kind: 'unknown', reply: reply('The simulator took the message, and its response was lost') };
    case 'delivered':
    case 'stopped':
    case 'undelivered':
    case 'capped':
    case 'slow':
    case 'read':
    case 'read_at_once':
    case 'invalid_later':
      return {
        kind: 'accepted',
        providerMessageId: messageIdOf(reference),
        reply: reply('Kept in the sandbox'),
      };
  }
}

type Status = Extract<ToldOfChatApp, { kind: 'status' }>['report']['status'];

/** One of the reports on a message. `isLate`: it comes some seconds after the answer, else before. */
export type Fate = {
  status: Status;
  isLate: boolean;
  failure: ChatAppFailure | null;
  diagnostic: string | null;
  finding: ChatAppFinding | null;
};

/** In their order. */
export function fatesOf(outcome: SimulatedOutcome): readonly Fate[] {
  const well = (status: Status, isLate = false): Fate => ({
    ...{ status, isLate },
    ...{ failure: null, diagnostic: null, finding: null },
  });
  const ill = (failure: ChatAppFailure, diagnostic: string, finding: ChatAppFinding | null = null): Fate => ({
    ...{ status: 'failed', isLate: false },
    ...{ failure, diagnostic, finding },
  });
  switch (outcome) {
    case 'delivered':
      return [well('delivered')];
    case 'slow':
    case 'unknown':
      return [well('delivered', true)];
    case 'read':
      return [well('delivered'), well('opened', true)];
    case 'read_at_once':
      return [well('opened')];
    case 'undelivered':
      return [ill('unreachable', `131026 ${diagnostics.unreachable}`, { kind: 'unreachable' })];
    case 'invalid_later':
      return [
        ill('invalid_message', `131009 ${diagnostics.invalid}`, {
          kind: 'invalid_message',
          words: diagnostics.invalid,
        }),
      ];
    case 'capped':
      return [ill('blocked', '131049 The simulated app chose not to deliver it to this person')];
    case 'stopped':
      return [
        ill('blocked', '131050 The owner of this simulated number stopped marketing from this business', {
          kind: 'stopped_marketing',
        }),
      ];
    case 'unreachable':
    case 'deferred':
    case 'postponed':
    case 'invalid':
    case 'sender_rejected':
      return [];
  }
}

/** For what it says. */
export function refuseMessage(words: string, code: number): ChatAppOutcome {
  const finding = { kind: 'invalid_message', words } as const;
  return { kind: 'rejected', reason: 'invalid_message', reply: reply(words, code), finding };
}

export function messageIdOf(reference: RecipientKey): string {
  return `${reference.messageId}.${reference.ordinal}`;
}

export function reply(diagnostic: string, code: number | null = null): RemoteReply {
  return { code, enhancedCode: null, diagnostic, remote: null };
}

const diagnostics = {
  unreachable: 'The simulated number has no chat app',
  invalid: 'The simulated number takes no message as it is',
} as const;
