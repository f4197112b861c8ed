import { readFileSync } from 'node:fs';
import path from 'node:path';
import { escapeHtml } from '../../channels/placeholders.ts';
import { baseStyle, respondDocument } from '../../platform/http/page-response.ts';
import type { PageResponse } from '../../platform/http/route.ts';
import type { Choice, SubscriptionState } from './unsubscribing.ts';

/** The page that an unsubscribe link opens: plain HTML that works without scripts, in any browser. */
export type UnsubscribePage = {
  /** `done` is the choice that was just carried out. */
  show: (subscription: SubscriptionState, done: Choice['kind'] | null) => PageResponse;
  notFound: () => PageResponse;
  /** Says that nothing was changed. */
  unavailable: () => PageResponse;
};

/** Throws if its style sheet is not beside this file, as it is in the sources and in what is built from them. */
export function createUnsubscribePage(): UnsubscribePage {
  const style = baseStyle + readFileSync(path.join(import.meta.dirname, 'page', 'unsubscribe.css'), 'utf8');
  const respond = (
    statusCode: number,
    { title, body }: { title: string; body: string },
    headers: Readonly<Record<string, string>> = {},
  ) => respondDocument(writeDocument({ title, body, style }), { statusCode, style, headers });
  return {
    show: (subscription, done) => respond(200, describe(subscription, done)),
    notFound: () =>
      respond(404, {
        title: 'This link does not work',
        body: '<p>It may have been cut off on its way. Open it once more from the email itself.</p>',
      }),
    unavailable: () =>
      respond(
        503,
        {
          title: 'Not possible at the moment',
          body: '<p>Nothing was changed. Please try again in a minute.</p>',
        },
        { 'retry-after': '60' },
      ),
  };
}

function describe(
  subscription: SubscriptionState,
  done: Choice['kind'] | null,
): { title: string; body: string } {
  const { isUnsubscribed, mayResubscribe, lists } = subscription;
  const sender = `<strong>${escapeHtml(subscription.senderName)}</strong>`;
  const address =
    subscription.address === null ? '' : ` to <strong>${maskAddress(subscription.address)}</strong>`;
  if (isUnsubscribed) {
    const undo = mayResubscribe ? writeForm('resubscribe', 'Subscribe again') : '';
    return {
      title: 'You are unsubscribed',
      body: `<p>${sender} will not send newsletters${address} any more.</p>${undo}`,
    };
  }
  const unsubscribe = writeForm('unsubscribe', 'Unsubscribe', { isMain: true });
  const leaving = lists.map(({ id, name }) =>
    writeForm('leave_list', `Only from ${name}`, { fields: { list_id: id } }),
  );
  const choices = unsubscribe + (leaving.length === 0 ? '' : `<h2>Or unsubscribe</h2>${leaving.join('')}`);
  switch (done) {
    case 'resubscribe':
      return {
        title: 'You are subscribed again',
        body: `<p>${sender} may send newsletters${address}.</p>${choices}`,
      };
    case 'leave_list':
      return {
        title: 'You have left the list',
        body: `<p>${sender} will not send mail of that list${address} any more.</p>${choices}`,
      };
    case 'unsubscribe':
    case null:
      return {
        title: 'Unsubscribe?',
        body: `<p>${sender} sends newsletters${address}.</p>${choices}`,
      };
  }
}

function writeForm(
  action: Choice['kind'],
  label: string,
  options: { isMain?: boolean; fields?: Readonly<Record<string, string>> } = {},
): string {
  const fields = Object.entries({ action, ...options.fields })
    .map(([name, value]) => `<input type="hidden" name="${name}" value="${escapeHtml(value)}">`)
    .join('');
  const look = options.isMain === true ? ' class="main"' : '';
  return `<form method="post">${fields}<button${look}>${escapeHtml(label)}</button></form>`;
}

/** Shows enough for a reader to recognise their own address, and too little for a stranger to learn it. */
function maskAddress(address: string): string {
  const [first = ''] = address;
  return escapeHtml(`${first}•••${address.slice(address.lastIndexOf('@'))}`);
}

function writeDocument({ title, body, style }: { title: string; body: string; style: string }): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<link rel="icon" href="data:,">
<title>${title}</title>
<style>${style}</style>
</head>
<body>
<main>
<h1>${title}</h1>
${body}
</main>
</body>
</html>
`;
}
