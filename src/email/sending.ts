import { type TaskRunner } from '../platform/http/body-threads.ts';
import type { AcceptOutcome } from '../platform/http/acceptance.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import type { Database } from '../platform/postgres/database.ts';
import {
  type Acceptor,
  type BatchReader,
  createBatchReader,
  type PreparedItem,
} from '../messages/messages.ts';
import { createTemplateCache } from '../templates/templates.ts';
import { emailRules } from './rules.ts';
import { emailFormats, type EmailSendBody, emailSendBody } from './schema.ts';
import {
  fromThread,
  prepareContent,
  prepareFromTemplate,
  type PreparedEmail,
  prepareLargeEmail,
  prepareRecalled,
} from './send.ts';

/** An email as it is to be prepared, or as the thread for large bodies has. It can be sent between threads. */
export type EmailItem = { kind: 'body'; body: EmailSendBody } | { kind: 'prepared'; prepared: PreparedEmail };

const readBodies = createBatchReader<EmailSendBody>(emailFormats, emailRules, emailSendBody);

/** Judges bodies as `POST /email/send` does. */
export const readEmails: BatchReader<EmailItem> = (items, facts) =>
  readBodies(items, facts).map((item) =>
    item.kind === 'read' ? { ...item, body: { kind: 'body', body: item.body } } : item,
  );

/** The same in the thread for large bodies, with what it can prepare: all but those of templates, which must be looked up first. */
export const prepareEmails: BatchReader<EmailItem> = (items, facts) =>
  readBodies(items, facts).map((item) => {
    if (item.kind !== 'read') return item;
    const prepared = prepareLargeEmail(item.body);
    return {
      ...item,
      body: prepared === null ? { kind: 'body', body: item.body } : { kind: 'prepared', prepared },
    };
  });

/** By whom an email is sent, and once for which key. */
export type EmailSender = { organizationId: string; idempotencyKey: ScopedKey | null };

/** How an email is sent, whichever way it came in. */
export type EmailSending = {
  /** Ready to be stored; what is made of a template in memory may have to be made anew. */
  prepare: (sender: EmailSender, item: EmailItem) => Promise<PreparedItem>;
  /** Prepares it and has it stored. Rejects as `Acceptor` does. */
  send: (sender: EmailSender, item: EmailItem, traceId: string | null) => Promise<AcceptOutcome>;
};

export function createEmailSending({
  database,
  acceptor,
  runner,
}: {
  database: Database;
  acceptor: Pick<Acceptor, 'accept'>;
  runner: TaskRunner;
}): EmailSending {
  const cache = createTemplateCache(database);
  const prepare: EmailSending['prepare'] = async (sender, item) => {
    if (item.kind === 'prepared') return { prepared: fromThread(item.prepared, sender) };
    const { body } = item;
    const request = { ...sender, body };
    if (body.template_id === undefined) return { prepared: await prepareContent(runner, request) };
    const key = { organizationId: sender.organizationId, id: body.template_id };
    const prepareAnew = async () => {
      const read = await cache.read(key);
      const { email: template = null, prepared = null } = read ?? {};
      return prepareFromTemplate(runner, { ...request, template, prepared });
    };
    const recalled = prepareRecalled(request, cache.recall(key));
    return recalled === null ? { prepared: await prepareAnew() } : { prepared: recalled, prepareAnew };
  };
  return {
    prepare,
    send: async (sender, item, traceId) => {
      const { prepared, prepareAnew } = await prepare(sender, item);
      return acceptor.accept(prepared, sender.idempotencyKey, prepareAnew, traceId);
    },
  };
}
