import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { RecipientKey, SendOutcome } from '../../src/channels/outcome.ts';

/** What every provider promises, on any channel, tested in the same way for each. */

/** What hand-offs of all channels have. */
type AnyHandOff = { reference: RecipientKey; confirm: () => Promise<void>; signal: AbortSignal };

type AnyProvider<HandOff> = {
  concurrency: number;
  handOff: (handOff: HandOff) => Promise<SendOutcome<string>>;
  probe: () => Promise<string | null>;
  close: () => Promise<void>;
};

/** A peer that takes the message for one recipient, and then neither answers nor closes. */
export type Silence = {
  recipient: string;
  /** Asked for before the hand-off; resolves once the far side has taken it. */
  whenTaken: () => Promise<unknown>;
  /** Moves the provider's clock on. */
  passTime: (byMs: number) => void;
};

export type ProviderHarness<Provider, Delivered> = {
  provider: Provider;
  /** Recipients at which the far side takes, refuses and puts off. */
  recipients: { accepted: string; rejected: string; deferred: string };
  /** One for whom the far side takes it and then goes away without an answer; null where nothing can be lost. */
  recipientOfLostAnswer: string | null;
  /** Null where there is no far side that could fall silent. */
  silence: Silence | null;
  /** Everything that the far side has taken. */
  delivered: () => Promise<readonly Delivered[]>;
  /** Closes the far side, and checks that the provider has left nothing open. */
  dispose: () => Promise<void>;
};

/** How the hand-offs of a channel are made and told apart. */
type Handing<HandOff, Delivered> = {
  /** The default hand-off to a recipient. */
  compose: (recipient: string) => Omit<HandOff, keyof AnyHandOff>;
  recipientOf: (delivered: Delivered) => string;
  /** Makes a hand-off the one of that number, which is read off what was delivered. */
  number: (number: number) => Partial<HandOff>;
  numberOf: (delivered: Delivered) => number;
  /** Why a recipient is refused that does not exist. */
  refusal: string;
};

/** What the tests of a channel work with; anew for each of them. */
export type Arrangement<Harness, HandOff> = {
  harness: () => Harness;
  /** The recipients of all hand-offs that were confirmed. */
  confirmed: string[];
  handOffTo: (recipient: string, more?: Partial<HandOff>) => Promise<SendOutcome<string>>;
};

/** More than a few of them are under way at once, and wait for each other. */
const many = 200;

/** How far the clock is moved at once: less than any timeout of a provider. */
const stepMs = 1_000;

/** Asks what all providers promise, and then what `describeMore` adds for a channel. */
export function describeProvider<
  HandOff extends AnyHandOff,
  Delivered,
  Harness extends ProviderHarness<AnyProvider<HandOff>, Delivered>,
>(
  name: string,
  createHarness: () => Promise<Harness>,
  handing: Handing<HandOff, Delivered>,
  describeMore: (arrangement: Arrangement<Harness, HandOff>) => void,
): void {
  describe(name, () => {
    let harness: Harness;
    const confirmed: string[] = [];
    let handedOff = 0;

    beforeEach(async () => {
      harness = await createHarness();
      confirmed.length = 0;
    });
    afterEach(async () => {
      await harness.provider.close();
      await harness.dispose();
    });

    function handOffTo(recipient: string, more: Partial<HandOff> = {}): Promise<SendOutcome<string>> {
      handedOff += 1;
      return harness.provider.handOff({
        ...handing.compose(recipient),
        reference: { organizationId: 'org_test', messageId: 'msg_test', ordinal: handedOff },
        confirm: async () => {
          confirmed.push(recipient);
        },
        signal: new AbortController().signal,
        ...more,
      } as HandOff); // What it has beyond AnyHandOff is what `compose` gives.
    }

    /** Of `many`, every other is taken, every fourth refused and every fourth put off. */
    const kindsInTurn = ['accepted', 'accepted', 'rejected', 'deferred'] as const;

    it('has one outcome for each of many hand-offs, whatever becomes of their neighbours', async () => {
      const kinds = Array.from({ length: many }, (_, at) => kindsInTurn[at % 4]!);
      const outcomes = await Promise.all(
        kinds.map((kind, at) => handOffTo(harness.recipients[kind], more(handing.number(at)))),
      );
      expect(outcomes.map(({ kind }) => kind)).toEqual(kinds);
      const ids = outcomes.flatMap((outcome) =>
        outcome.kind === 'accepted' ? [outcome.providerMessageId] : [],
      );
      expect(ids.every((id) => id !== '')).toBe(true);
      const numbers = (await harness.delivered()).map(handing.numberOf);
      expect(numbers.sort((a, b) => a - b)).toEqual(kinds.flatMap((_, at) => (at % 4 < 2 ? [at] : [])));
    });

    it('confirms once, and before anything has been delivered', async () => {
      let deliveredAtConfirm = -1;
      await handOffTo(
        harness.recipients.accepted,
        more({
          confirm: async () => {
            confirmed.push('once');
            deliveredAtConfirm = (await harness.delivered()).length;
          },
        }),
      );
      expect(confirmed).toEqual(['once']);
      expect(deliveredAtConfirm).toBe(0);
    });

    it('delivers nothing that was not confirmed, lets the error through, and goes on working', async () => {
      const refusal = new Error('the claim is not ours any more');
      const lost = handOffTo(harness.recipients.accepted, more({ confirm: () => Promise.reject(refusal) }));
      await expect(lost).rejects.toBe(refusal);
      expect(await harness.delivered()).toEqual([]);
      expect((await handOffTo(harness.recipients.accepted)).kind).toBe('accepted');
      expect(await harness.delivered()).toHaveLength(1);
    });

    it('tells a recipient that is refused from one that is put off, with words fit to be stored', async () => {
      const rejected = await handOffTo(harness.recipients.rejected);
      const deferred = await handOffTo(harness.recipients.deferred);
      expect([rejected.kind, deferred.kind]).toEqual(['rejected', 'deferred']);
      expect(rejected).toMatchObject({ reason: handing.refusal });
      for (const { reply } of [rejected, deferred]) {
        expect(reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
      }
      expect(await harness.delivered()).toEqual([]);
    });

    it('is uncertain of what got no answer, delivers it once, and goes on working', async () => {
      const { recipientOfLostAnswer: lost, recipients } = harness;
      if (lost === null) return;
      expect((await handOffTo(lost)).kind).toBe('unknown');
      expect((await handOffTo(recipients.accepted)).kind).toBe('accepted');
      expect((await harness.delivered()).map(handing.recipientOf)).toEqual([lost, recipients.accepted]);
    });

    it('does not wait for ever for a far side that falls silent, and is uncertain then', async () => {
      if (harness.silence === null) return;
      const { recipient, whenTaken, passTime } = harness.silence;
      const taken = whenTaken();
      let outcome: SendOutcome<string> | null = null;
      const ending = handOffTo(recipient).then((settled) => (outcome = settled));
      await taken;
      // Ends because the outcome comes, or the test runs out of time.
      while (outcome === null) {
        passTime(stepMs);
        await turn();
      }
      expect(await ending).toMatchObject({ kind: 'unknown' });
      expect(confirmed).toEqual([recipient]);
      expect((await harness.delivered()).map(handing.recipientOf)).toEqual([recipient]);
    });

    it('begins nothing after an abort', async () => {
      const reason = new Error('shutting down');
      const aborted = more({ signal: AbortSignal.abort(reason) });
      await expect(handOffTo(harness.recipients.accepted, aborted)).rejects.toBe(reason);
      expect(confirmed).toEqual([]);
      expect(await harness.delivered()).toEqual([]);
    });

    it('either delivers what is aborted on its way, or has neither confirmed nor delivered it', async () => {
      const controller = new AbortController();
      const reason = new Error('shutting down');
      const handedOff = handOffTo(harness.recipients.accepted, more({ signal: controller.signal }));
      controller.abort(reason);
      const end = await handedOff.then(
        ({ kind }) => kind,
        (cause: unknown) => cause,
      );
      expect([reason, 'accepted']).toContain(end);
      const times = end === reason ? 0 : 1;
      expect(confirmed).toHaveLength(times);
      expect(await harness.delivered()).toHaveLength(times);
    });

    it('carries through what was confirmed before an abort', async () => {
      const controller = new AbortController();
      const outcome = await handOffTo(
        harness.recipients.accepted,
        more({
          signal: controller.signal,
          confirm: async () => {
            controller.abort(new Error('shutting down'));
          },
        }),
      );
      expect(outcome.kind).toBe('accepted');
      expect(await harness.delivered()).toHaveLength(1);
    });

    it('has no more under way at once than it says, and loses none of those beyond', async () => {
      const { provider, recipients } = harness;
      let underWay = 0;
      let most = 0;
      const handOffs = Array.from({ length: provider.concurrency + 20 }, async () => {
        const confirm = async () => {
          // The hand-off that it follows may have ended in this very turn.
          await turn();
          underWay += 1;
          most = Math.max(most, underWay);
          await turn();
        };
        let isConfirmed = false;
        const outcome = await handOffTo(
          recipients.accepted,
          more({ confirm: () => ((isConfirmed = true), confirm()) }),
        );
        if (isConfirmed) underWay -= 1;
        return outcome.kind;
      });
      const kinds = await Promise.all(handOffs);
      expect(most).toBeGreaterThan(0);
      expect(most).toBeLessThanOrEqual(provider.concurrency);
      expect(kinds.filter((kind) => !['accepted', 'postponed', 'deferred'].includes(kind))).toEqual([]);
      expect(await harness.delivered()).toHaveLength(kinds.filter((kind) => kind === 'accepted').length);
    });

    it('is reachable', async () => {
      expect(await harness.provider.probe()).toBeNull();
    });

    it('ends what is under way before it closes, and takes nothing more', async () => {
      const { provider, recipients } = harness;
      const [announced, isAnnounced] = createGate();
      const [written, write] = createGate();
      const begun = handOffTo(
        recipients.accepted,
        more({
          confirm: () => {
            isAnnounced();
            return written;
          },
        }),
      );
      await announced;
      const justBegun = handOffTo(recipients.accepted);
      let deliveredAtClose = -1;
      const closed = provider.close().then(async () => {
        deliveredAtClose = (await harness.delivered()).length;
      });
      for (let turns = 0; turns < 10; turns += 1) await turn();
      expect(deliveredAtClose).toBe(-1);
      write();
      expect((await begun).kind).toBe('accepted');
      expect((await justBegun).kind).toBe('accepted');
      await closed;
      expect(deliveredAtClose).toBe(2);
      expect(await handOffTo(recipients.accepted)).toMatchObject({
        kind: 'deferred',
        reason: 'provider_unavailable',
      });
    });

    describeMore({ harness: () => harness, confirmed, handOffTo });

    /** The hand-offs of every channel have the fields that all have. */
    function more(changes: Partial<AnyHandOff> | Partial<HandOff>): Partial<HandOff> {
      return changes as Partial<HandOff>;
    }
  });
}

/** Lets what has arrived be read. */
function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}

function createGate(): [passed: Promise<void>, open: () => void] {
  let open: () => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    open = resolve;
  });
  return [passed, open];
}
