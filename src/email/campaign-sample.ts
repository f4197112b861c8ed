import {
  compileEmail,
  type EmailText,
  fillEmail,
  listChunks,
  isShownAddress,
  listLinks,
  listLinkTexts,
  parseAddress,
  renderEmail,
  shownAddressLengthMax,
  unsubscribePlaceholder,
} from '../channels/email/email.ts';
import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import { fillOnce, listPlaceholders, type Values } from '../channels/placeholders.ts';
import type { ThreadTask } from '../platform/http/body-threads.ts';
import { linkPaths } from './tracking/personal-copy.ts';
import type { StoredEmailContent, StoredEmailDetails } from './stored.ts';
import type { Submission } from '../messages/messages.ts';
import { parseUrl } from '../platform/url.ts';
import type { PreparedMessage, Sample, SampleCopy, TestCopy } from '../campaigns/campaigns.ts';

/** Sample copies of an email campaign, before it is sent. */

type CopyInput<Copy extends SampleCopy> = { message: PreparedMessage; copy: Copy };

export const renderEmailSampleTask: ThreadTask<CopyInput<SampleCopy>, Sample | null> = {
  name: 'render email sample',
  run: ({ message, copy }) => renderEmailSample(message, copy),
};

export const submitEmailTestTask: ThreadTask<CopyInput<TestCopy>, Submission | null> = {
  name: 'submit email test',
  run: ({ message, copy }) => submitEmailTest(message, copy),
};

/** Gmail shows no more of the HTML than this, and replaces the rest with a link. */
const clippedBytes = 102 * 1_024;
/** No reader of a preview needs more. */
const linksMax = 500;

export function renderEmailSample(message: PreparedMessage, copy: SampleCopy): Sample | null {
  const rendered = renderCopy(message, copy);
  if (rendered === null) return null;
  const links = new Set(rendered.html === null ? [] : listLinks(rendered.html));
  links.delete(sampleUrlOf(copy.publicUrl));
  const { html, text } = contentOf(message);
  return {
    record: {
      ...rendered,
      links: [...links].slice(0, linksMax),
      size_bytes: measureEmail(message, rendered, copy.at),
    },
    warnings: [
      ...findWarnings({ html, text }, rendered, [...links].slice(0, linksMax)),
      ...describeForeignSyntax([message.subject, html, text]),
      ...findTrackingWarnings(message, copy.values),
    ],
  };
}

function renderCopy(message: PreparedMessage, { values, publicUrl }: SampleCopy): EmailText | null {
  const { html, text } = contentOf(message);
  // A sample belongs to no recipient, so its link must not unsubscribe anyone.
  const rendering = renderEmail(
    { subject: message.subject, html, text },
    { ...values, [unsubscribePlaceholder]: sampleUrlOf(publicUrl) },
  );
  return rendering.kind === 'rendered' ? rendering.email : null;
}

function sampleUrlOf(publicUrl: string): string {
  return `${publicUrl}${linkPaths.unsubscribe}sample`;
}

function contentOf({ content }: PreparedMessage): StoredEmailContent {
  return JSON.parse(content) as StoredEmailContent; // As campaigns.ts wrote it.
}

function detailsOf({ details }: PreparedMessage): StoredEmailDetails {
  return JSON.parse(details) as StoredEmailDetails; // As campaigns.ts wrote it.
}

/**
 * Size of the whole message, without the signature and the longer URLs of tracked links, which are added at delivery.
 */
function measureEmail(message: PreparedMessage, rendered: EmailText, at: Date): number {
  const { fromName, replyTo } = detailsOf(message);
  const compiled = compileEmail(
    {
      messageId: 'sample@postillion.test',
      from: { address: message.sender, name: fromName },
      replyTo,
      to: [message.sender],
      cc: [],
      ...rendered,
      attachments: [],
      headers: [],
    },
    { personalised: false, isSigned: false },
  );
  const filled = fillEmail(compiled, { date: at, values: {}, personal: null });
  if (typeof filled === 'string') throw new Error('what has no values cannot become too large by them');
  return listChunks(filled).reduce((sum, { length }) => sum + length, 0);
}

/** Likely mistakes, in words for the author. They do not prevent sending. */
export function findWarnings(
  written: { html: string | null; text: string | null },
  rendered: EmailText,
  links: readonly string[],
): string[] {
  const warnings: string[] = [];
  if (!hasUnsubscribeLink(written))
    warnings.push(
      `There is no {{${unsubscribePlaceholder}}} in it: readers can unsubscribe only through their mail client.`,
    );
  if (rendered.subject?.trim() === '') warnings.push('The subject of this copy is empty.');
  if (rendered.html !== null && Buffer.byteLength(rendered.html) > clippedBytes)
    warnings.push('The HTML has more than 102 kB: Gmail shows only its beginning.');
  if (rendered.text === null)
    warnings.push('There is no text part, and none can be generated from the HTML.');
  return [...warnings, ...links.flatMap(findLinkWarnings)];
}

/**
 * Every copy has the header for which mail clients show a button. A link in the content must be added by the author.
 */
export function hasUnsubscribeLink({ html, text }: { html: string | null; text: string | null }): boolean {
  return [html, text].some(
    (part) =>
      part !== null &&
      // Saves parsing content that does not contain the placeholder.
      part.includes(unsubscribePlaceholder) &&
      listPlaceholders([part], Infinity).includes(unsubscribePlaceholder),
  );
}

function findLinkWarnings(link: string): string[] {
  const url = parseUrl(link);
  if (url === null) return [`A link leads to no address: ${link}`];
  const { protocol, hostname } = url;
  if (isOwnMachine(hostname)) return [`A link leads to the reader's own machine: ${link}`];
  return protocol === 'http:' ? [`A link leads to a page without encryption: ${link}`] : [];
}

/**
 * Filters take a link that shows an address and leads to another host for phishing. What a placeholder shows is known
 * here, and not where links are replaced, once for all copies.
 */
function findTrackingWarnings(message: PreparedMessage, values: Values): string[] {
  const { html } = contentOf(message);
  if (html === null || detailsOf(message).tracking?.clicks !== true) return [];
  const warnings = new Set<string>();
  for (const { text, isLeftAlone } of listLinkTexts(html)) {
    if (warnings.size === linksMax) break;
    const shown = fillOnce(text, values, 'text', shownAddressLengthMax).text?.trim() ?? '';
    if (isLeftAlone) warnings.add(`A link shows an address, and its clicks are not tracked: ${shown}`);
    else if (isShownAddress(shown))
      warnings.add(`A link shows an address only when it is filled in, and is tracked: ${shown}`);
  }
  return [...warnings];
}

function isOwnMachine(hostname: string): boolean {
  return hostname === 'localhost' || hostname.endsWith('.localhost') || /^(127\.|\[::1\]$)/.test(hostname);
}

export function submitEmailTest(message: PreparedMessage, copy: TestCopy): Submission | null {
  const rendered = renderCopy(message, copy);
  if (rendered === null) return null;
  const [from, to] = [parseAddress(message.sender), parseAddress(copy.to)];
  if (from === null || to === null) throw new Error('the schema lets no such address through');
  const { fromName, replyTo } = detailsOf(message);
  const details: StoredEmailDetails = { fromName, replyTo, attachments: [] };
  const content: StoredEmailContent = {
    to: [to.address],
    cc: [],
    html: rendered.html,
    text: rendered.text,
  };
  return {
    organizationId: copy.organizationId,
    channel: 'email',
    class: 'transactional',
    sender: from.address,
    senderName: from.domain,
    subject: rendered.subject,
    searchText: rendered.subject,
    category: message.category,
    templateId: message.templateId,
    details: JSON.stringify(details),
    content: JSON.stringify(content),
    recipients: [{ field: 'to', address: to.address, addressKey: to.normalised, dropReason: null }],
    attachments: [],
    quotaUnits: 1,
    // The response to a test names them for all of its messages.
    missingVariables: [],
    warnings: [],
    idempotencyKey: null,
  };
}
