import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import { payloadSize } from '../channels/push/notification.ts';
import type { PreparedMessage, Sample, SampleCopy, TestCopy } from '../campaigns/campaigns.ts';
import type { Submission } from '../messages/messages.ts';
import { PublicError, validationError } from '../platform/http/errors.ts';
import type { Database } from '../platform/postgres/database.ts';
import { compilePush, type FilledPush, fillPush, textsOf } from './rendering.ts';
import { findContentIssues, preparePush } from './send.ts';
import { type StoredPushContent, toPushContent } from './stored.ts';

/** Sample copies of a push campaign, before it is sent. */

export function renderPushSample(message: PreparedMessage, copy: SampleCopy): Sample | null {
  const filled = renderCopy(message, copy);
  if (filled.kind === 'unfit') return null;
  const { content } = filled;
  return {
    record: {
      title: content.title,
      body: content.body,
      image_url: content.image_url ?? null,
      icon_url: content.icon_url ?? null,
      deep_link: content.deep_link ?? null,
      action_buttons: content.action_buttons ?? null,
      data_payload: content.data_payload ?? null,
      size_bytes: payloadSize(toPushContent(content)).bytes,
    },
    warnings: describeForeignSyntax(textsOf(contentOf(message))),
  };
}

function contentOf({ content }: PreparedMessage): StoredPushContent {
  return JSON.parse(content) as StoredPushContent; // As campaigns.ts wrote it.
}

function renderCopy(message: PreparedMessage, { values }: SampleCopy): FilledPush {
  const { defaults = {}, ...said } = contentOf(message);
  return fillPush(compilePush(said), { ...defaults, ...values });
}

/** As `POST /push/send` would send it, to a contact by its id, and refused for the same reasons. */
export async function submitPushTest(
  database: Database,
  message: PreparedMessage,
  copy: TestCopy,
): Promise<Submission | PublicError | null> {
  const filled = renderCopy(message, copy);
  if (filled.kind === 'unfit') return null;
  const { organizationId, to } = copy;
  const { category } = message;
  const issues = findContentIssues(filled.content);
  if (issues.length > 0) return new PublicError(validationError, issues.join(', '));
  const body = { ...filled.content, contact_id: to, ...(category !== null && { category }) };
  return database.asOrganizations([organizationId], (transaction) =>
    preparePush(transaction, { organizationId, body, idempotencyKey: null }),
  );
}
