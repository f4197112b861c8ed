import { LRUCache } from 'lru-cache';
import { listLinks, readWebAddress } from '../../channels/email/email.ts';
import { type CompiledText, compileText, fillText, type Values } from '../../channels/placeholders.ts';
import { overloaded } from '../../platform/http/errors.ts';
import type { Database } from '../../platform/postgres/database.ts';
import * as store from './store.ts';
import type { MessageKey, RecipientKey } from '../../messages/messages.ts';

export type LinkTarget = { kind: 'found'; address: string } | { kind: 'none' } | { kind: 'gone' };

/**
 * The targets of links in tracked mail. They are read from the stored content and cached: the same few links of a
 * campaign are followed thousands of times, even while the database is down.
 */
export type LinkTargets = {
  /**
   * Where a link of a recipient's copy leads: `none` if there is no such link, or it has no web address, and `gone` if what the
   * mail said is not kept any more. Throws a PublicError (503) if too many look-ups are under way, and the errors of the database.
   */
  find: (recipient: RecipientKey, number: number) => Promise<LinkTarget>;
};

/** Size of the cache: the links of some ten thousand messages. */
const cachedCharactersMax = 16 * 1_048_576;
/** Each may hold 2 MB of HTML in memory. */
const loadsMax = 32;

type MessageLinks = { targets: CompiledText[]; defaults: Values; isGone: boolean };

export function createLinkTargets(tools: { database: Database }): LinkTargets {
  const cache = new LRUCache<string, MessageLinks>({
    maxSize: cachedCharactersMax,
    sizeCalculation: sizeOf,
  });
  const loading = new Map<string, Promise<MessageLinks>>();

  // Requests for a message that is being loaded share that load.
  const load = (message: MessageKey): Promise<MessageLinks> => {
    const { messageId } = message;
    const underWay = loading.get(messageId);
    if (underWay !== undefined) return underWay;
    if (loading.size >= loadsMax) throw overloaded('Too many links are being looked up at the moment.');
    const begun = loadLinks(tools.database, message)
      .then((links) => {
        cache.set(messageId, links);
        return links;
      })
      .finally(() => loading.delete(messageId));
    loading.set(messageId, begun);
    return begun;
  };

  return {
    find: async (recipient, number) => {
      const { targets, defaults, isGone } = cache.get(recipient.messageId) ?? (await load(recipient));
      if (isGone) return { kind: 'gone' };
      const target = targets[number];
      if (target === undefined) return { kind: 'none' };
      const values =
        target.placeholders.length === 0
          ? {}
          : Object.assign({}, defaults, await loadVariables(tools.database, recipient));
      const filled = fillText(target, values, filledLengthMax);
      const address = filled === null ? null : readWebAddress(filled);
      return address === null ? { kind: 'none' } : { kind: 'found', address };
    },
  };
}

const filledLengthMax = 16_384;

function sizeOf({ targets, defaults }: Pick<MessageLinks, 'targets' | 'defaults'>): number {
  const ofTargets = targets.reduce((sum, { literals }) => sum + literals.join('').length + 200, 0);
  return 200 + ofTargets + JSON.stringify(defaults).length;
}

async function loadLinks(database: Database, message: MessageKey): Promise<MessageLinks> {
  const source = await database.asOrganizations([message.organizationId], (transaction) =>
    store.findLinkSource(transaction, message),
  );
  if (source === null) return { targets: [], defaults: {}, isGone: true };
  const targets =
    source.html === null ? [] : listLinks(source.html).map((target) => compileText(target, 'url'));
  return { targets, defaults: source.defaults, isGone: false };
}

function loadVariables(database: Database, recipient: RecipientKey): Promise<Values> {
  return database.asOrganizations([recipient.organizationId], (transaction) =>
    store.findVariables(transaction, recipient),
  );
}
