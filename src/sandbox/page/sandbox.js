/**
 * The sandbox in the browser: a list of what was sent, and one message of it. What messages say comes from outside:
 * it is put in as text, and their HTML is only ever shown in a frame without any rights.
 */

/**
 * Asking again and again is right here: it is one developer's inbox, on their own machine, and costs a look at an
 * index. A push channel would be one more thing that can break. Nobody asks while the tab is out of sight.
 */
const pollMs = 2_000;

/** Until the person has stopped typing. */
const typingPauseMs = 200;

/** Entries that the list holds; behind them one has to filter. */
const listedMax = 1_000;

const pageSize = 30;

/** More text in one element makes browsers slow; the whole is in the download. */
const shownCharactersMax = 500_000;

const tabNames = ['html', 'text', 'headers', 'source', 'attachments'];

/** What is no email has one text and nothing around it. */
const tabsOf = ({ channel }) => (channel === 'email' ? tabNames : ['text', 'source']);

const channelNames = { email: 'Email', sms: 'SMS', push: 'Push', chatapp: 'Chat app' };

/** How long a button waits for the second click that deletes. */
const askingMs = 4_000;

const byId = (id) => document.getElementById(id);

const state = {
  messages: [],
  next: null,
  /** Null, or the message that is shown or on its way. */
  chosenId: null,
  /** Null while it is on its way, and if it is not there any more. */
  shown: null,
  isGone: false,
  /** Null until one was chosen. */
  tab: null,
  isPhoneWide: false,
  /** What the list was asked for with. */
  filters: { search: '', channel: '' },
  /** Counts up with every new question: the answer to an older one is dropped. */
  listing: 0,
};

/** Makes an element; whatever is given as a child and is no element becomes text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function urlOf(path, query = {}) {
  const url = new URL(`sandbox/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) if (value !== '') url.searchParams.set(name, value);
  return url;
}

async function fetchJson(path, query, method = 'GET', posted = undefined) {
  const json = { headers: { 'content-type': 'application/json' }, body: JSON.stringify(posted) };
  const response = await fetch(urlOf(path, query), { method, ...(posted !== undefined && json) });
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.message), { status: response.status });
  return body;
}

/** Asks for the newest, and puts what is new on top; `isAnew` forgets what is listed. */
async function refresh(isAnew) {
  if (isAnew) {
    state.listing += 1;
    state.filters = { search: byId('search').value.trim(), channel: byId('channel').value };
  }
  const { listing } = state;
  const { data, next } = await fetchJson('messages', { ...state.filters, limit: pageSize });
  if (listing !== state.listing) return;
  const known = data.findIndex(({ id }) => id === state.messages[0]?.id);
  if (isAnew || known === -1) {
    const newestId = state.messages[0]?.id;
    state.messages = data;
    state.next = next;
    byId('messages').replaceChildren(...data.map(listEntry));
    // Ids sort by time. What was newest may have been deleted, and then nothing is new.
    const arrived = data.filter(({ id }) => newestId !== undefined && id > newestId);
    if (!isAnew && arrived.length > 0) announce(arrived.length);
  } else if (known > 0) {
    prepend(data.slice(0, known));
  }
  settleList();
  if (isAnew && data.length === 0 && next !== null) await loadOlder();
  await openNewest();
}

/** A wide window shows a message as long as there is one: the newest, until another is chosen. */
async function openNewest() {
  const newest = state.messages[0];
  if (state.chosenId !== null || newest === undefined || !isWide()) return;
  history.replaceState(null, '', `#${newest.id}`);
  await choose(newest.id);
}

function prepend(messages) {
  const list = byId('messages');
  const entries = messages.map(listEntry);
  for (const entry of entries) entry.classList.add('is-new');
  list.prepend(...entries);
  state.messages = [...messages, ...state.messages];
  if (state.messages.length > listedMax) {
    state.messages.length = listedMax;
    state.next = state.messages.at(-1).id;
    while (list.children.length > listedMax) list.lastElementChild.remove();
  }
  announce(messages.length);
}

async function loadOlder() {
  const { listing } = state;
  // A search looks through a part of the messages at a time, and may find nothing in one: it ends with the last part.
  for (;;) {
    const after = state.next;
    const { data, next } = await fetchJson('messages', { ...state.filters, limit: pageSize, after });
    if (listing !== state.listing || after !== state.next) return;
    state.messages.push(...data);
    state.next = next;
    byId('messages').append(...data.map(listEntry));
    settleList();
    if (data.length > 0 || next === null) return;
  }
}

function settleList() {
  const { search, channel } = state.filters;
  const isFiltered = search !== '' || channel !== '';
  byId('unlisted').hidden = !isFiltered || !isOpenUnlisted();
  const isBare = state.messages.length === 0 && !isFiltered && state.chosenId === null;
  byId('empty').hidden = !isBare;
  document.querySelector('.inbox').hidden = isBare;
  byId('no-match').hidden = state.messages.length > 0 || state.next !== null || isBare;
  byId('delete-all').hidden = state.messages.length === 0;
  if (!byId('delete-all').classList.contains('is-asking'))
    byId('delete-all').textContent = isFiltered ? 'Delete all that match' : 'Delete all';
  byId('older').hidden = state.next === null || state.messages.length >= listedMax;
  settlePlaceholder();
  markChosen();
}

/** Whether the open message is none of those listed, and will not be found further down either. */
function isOpenUnlisted() {
  const { chosenId, messages, next } = state;
  if (chosenId === null || state.isGone || messages.some(({ id }) => id === chosenId)) return false;
  return next === null || chosenId > next;
}

function settlePlaceholder() {
  byId('nothing-chosen').hidden = state.chosenId !== null || !byId('empty').hidden;
}

function listEntry(message) {
  const title = titleOf(message);
  const link = make(
    'a',
    { href: `#${message.id}` },
    make(
      'span',
      { class: 'row' },
      make('span', { class: 'line to' }, message.to),
      timeOf(message.created_at),
    ),
    make('span', { class: 'line subject' }, title.slice(0, 200) || '(no subject)'),
    make(
      'span',
      { class: 'row' },
      make('span', { class: 'line from' }, `${message.channel === 'push' ? 'on' : 'from'} ${message.from}`),
      make('span', { class: 'badge' }, message.channel),
      badgeOf(message.outcome),
    ),
  );
  return make('li', {}, link);
}

function titleOf(message) {
  if (message.channel === 'email') return message.subject ?? '';
  return bubbleOf(message)?.body ?? notificationOf(message)?.title ?? message.text ?? '';
}

/** What a push consists of; null if this is none. Its beginning alone cannot be read. */
function notificationOf({ channel, text }) {
  if (channel !== 'push') return null;
  try {
    const notification = JSON.parse(text);
    return typeof notification.title === 'string' && typeof notification.body === 'string'
      ? notification
      : null;
  } catch {
    return null;
  }
}

/** What a message of a chat app consists of; null if this is none. Its beginning alone cannot be read. */
function bubbleOf({ channel, text }) {
  if (channel !== 'chatapp') return null;
  try {
    const bubble = JSON.parse(text);
    return typeof bubble.body === 'string' ? bubble : null;
  } catch {
    return null;
  }
}

function badgeOf(outcome) {
  const badge = make('span', { class: 'badge' }, outcome);
  if (/^[a-z]+$/.test(outcome)) badge.classList.add(outcome);
  return badge;
}

const dayFormat = new Intl.DateTimeFormat(undefined, { month: 'short', day: 'numeric' });
const hourFormat = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
});
const fullFormat = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });

function timeOf(timestamp) {
  const date = new Date(timestamp);
  const isToday = date.toDateString() === new Date().toDateString();
  const short = isToday ? hourFormat.format(date) : dayFormat.format(date);
  return make('time', { datetime: timestamp, title: fullFormat.format(date) }, short);
}

function markChosen() {
  for (const link of byId('messages').querySelectorAll('a')) {
    if (link.hash === `#${state.chosenId}`) link.setAttribute('aria-current', 'true');
    else link.removeAttribute('aria-current');
  }
}

/** Arrows walk through the list, and show what they come by. */
function walkList(event) {
  const links = [...byId('messages').querySelectorAll('a')];
  const at = links.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (at === -1 || to === undefined || links[to] === undefined) return;
  event.preventDefault();
  links[to].focus();
  if (isWide()) {
    history.replaceState(null, '', links[to].hash);
    void choose(links[to].hash.slice(1));
  }
}

function isWide() {
  return matchMedia('(min-width: 761px)').matches;
}

async function choose(id) {
  state.chosenId = id === '' ? null : id;
  state.isGone = false;
  document.body.classList.toggle('has-choice', state.chosenId !== null);
  markChosen();
  settlePlaceholder();
  if (state.chosenId === null) {
    state.shown = null;
    byId('message').hidden = true;
    settleList();
    return;
  }
  settleList();
  const listed = state.messages.find((message) => message.id === id);
  if (listed !== undefined && !listed.truncated) {
    show(listed);
    return;
  }
  showComing(listed);
  await fetchChosen(id);
}

async function fetchChosen(id) {
  try {
    const message = await fetchJson(`messages/${id}`);
    if (state.chosenId === id) show(message);
  } catch (cause) {
    if (state.chosenId !== id) return;
    if (cause.status !== 404) throw cause;
    showMissing();
  }
}

function show(message) {
  state.shown = message;
  showHead(message);
  document.querySelector('.tabs').hidden = false;
  const count = byId('attachment-count');
  count.hidden = message.attachments.length === 0;
  count.textContent = message.attachments.length;
  byId('delete').hidden = false;
  const tabs = tabsOf(message);
  for (const name of tabNames) byId(`tab-${name}`).hidden = !tabs.includes(name);
  byId('tab-text').textContent = message.channel === 'email' ? 'Text' : 'Message';
  showTab(preferredTab(message));
}

function showHead(message) {
  byId('empty').hidden = true;
  byId('message').hidden = false;
  byId('subject').textContent =
    message.subject ?? (message.channel === 'email' ? '(no subject)' : channelNames[message.channel]);
  byId('envelope').replaceChildren(
    ...envelopeOf(message),
    envelopeEntry('At', fullFormat.format(new Date(message.created_at))),
    envelopeEntry('Outcome', badgeOf(message.outcome)),
  );
}

/** A large message takes a moment to come: nothing of the one before stays on the page. */
function showComing(listed) {
  state.shown = null;
  if (listed === undefined) showWithoutHead('Loading…');
  else showHead(listed);
  document.querySelector('.tabs').hidden = true;
  byId('delete').hidden = true;
  byId('panel').replaceChildren();
}

/** Whom it came to first: that is this copy. Then what the message itself says, as everybody sees it who got one. */
function envelopeOf({ channel, from, to, addresses, return_path: returnPath }) {
  if (channel === 'push') return [envelopeEntry('Platform', from), envelopeEntry('Device', to)];
  if (channel !== 'email') return [envelopeEntry('From', from), envelopeEntry('To', to)];
  const headers = [
    ['From', addresses.from],
    ['To', addresses.to],
    ['Cc', addresses.cc],
    ['Bcc', addresses.bcc],
    ['Reply to', addresses.reply_to],
  ];
  return [
    envelopeEntry('Delivered to', to),
    ...headers
      .filter(([, list]) => list.length > 0)
      .map(([name, list]) => envelopeEntry(name, list.map(addressText).join(', '))),
    envelopeEntry('Return path', returnPath),
  ];
}

function addressText({ name, address }) {
  return name === '' ? address : `${name} <${address}>`;
}

/** It is said of the message that was open: nobody wonders where it went, and nothing of it stays. */
function showMissing() {
  const { chosenId } = state;
  state.shown = null;
  state.isGone = true;
  state.messages = state.messages.filter(({ id }) => id !== chosenId);
  for (const link of byId('messages').querySelectorAll('a'))
    if (link.hash === `#${chosenId}`) link.parentElement.remove();
  showWithoutHead('This message is not here any more');
  document.querySelector('.tabs').hidden = true;
  byId('delete').hidden = true;
  byId('panel').replaceChildren(hint('It was deleted, or had to make room: the newest messages are kept.'));
  settleList();
}

function showWithoutHead(title) {
  byId('empty').hidden = true;
  byId('message').hidden = false;
  byId('subject').textContent = title;
  byId('envelope').replaceChildren();
}

function envelopeEntry(name, value) {
  return make('div', {}, make('dt', {}, name), make('dd', {}, value));
}

/** The tab that was asked for last, unless this message has no HTML to show in it. */
function preferredTab(message) {
  const wanted = state.tab ?? 'html';
  if (!tabsOf(message).includes(wanted)) return 'text';
  return wanted === 'html' && message.html === null ? 'text' : wanted;
}

function showTab(current) {
  for (const name of tabNames) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute('aria-selected', String(name === current));
    tab.tabIndex = name === current ? 0 : -1;
  }
  const panel = byId('panel');
  panel.setAttribute('aria-labelledby', `tab-${current}`);
  panel.scrollTop = 0;
  panel.replaceChildren(...panels[current](state.shown));
}

const panels = {
  html: htmlPanel,
  text: (message) => {
    const bubble = bubbleOf(message);
    if (bubble !== null) return [bubblePaper(bubble), answerBox(message)];
    const notification = notificationOf(message);
    if (notification !== null) return [notificationPaper(notification, message.from)];
    if (message.text === null) return [hint('This message has no text part.')];
    return message.channel === 'sms'
      ? [...textPaper(message.text), answerBox(message)]
      : textPaper(message.text);
  },
  headers: ({ headers }) => {
    if (headers.length === 0) return [hint('This message has no headers.')];
    const rows = headers.map(({ name, value }) =>
      make('tr', {}, make('th', { scope: 'row' }, name), make('td', {}, value)),
    );
    return [make('table', {}, make('tbody', {}, ...rows))];
  },
  source: sourcePanel,
  attachments: ({ id, attachments }) => {
    if (attachments.length === 0) return [hint('This message has no attachments.')];
    const entries = attachments.map(({ filename, content_type, size, content_id, can_be_shown }, index) =>
      make(
        'li',
        {},
        make('b', {}, filename ?? '(no name)'),
        make('span', { class: 'hint' }, `${content_type}, ${sizeText(size)}`),
        ...(content_id === null ? [] : [make('span', { class: 'hint' }, `inline as cid:${content_id}`)]),
        attachmentActions(`messages/${id}/attachments/${index}`, filename ?? '(no name)', can_be_shown),
      ),
    );
    return [make('ul', { class: 'attachments' }, ...entries)];
  },
};

/** What could run in a browser is saved, and never opened. */
function attachmentActions(path, filename, canBeShown) {
  const open = make(
    'a',
    {
      href: urlOf(path).href,
      target: '_blank',
      rel: 'noopener noreferrer',
      'aria-label': `Open ${filename}`,
    },
    'Open',
  );
  const save = make(
    'a',
    { href: urlOf(path, { download: '1' }).href, download: '', 'aria-label': `Save ${filename}` },
    'Save',
  );
  return make('span', { class: 'actions' }, ...(canBeShown ? [open] : []), save);
}

function htmlPanel(message) {
  if (message.html === null) return [hint('This message has no HTML part.')];
  const address = urlOf(`messages/${message.id}/html`).href;
  // No script, form or navigation of this page. A link opens a window, and that is a page like any other.
  const frame = make('iframe', {
    sandbox: 'allow-popups allow-popups-to-escape-sandbox',
    title: 'HTML of the message',
    referrerpolicy: 'no-referrer',
  });
  const widths = [
    { name: 'Desktop', isPhoneWide: false },
    { name: 'Phone', isPhoneWide: true },
  ].map(({ name, isPhoneWide }) => {
    const button = make('button', { type: 'button' }, name);
    button.addEventListener('click', () => {
      state.isPhoneWide = isPhoneWide;
      settleWidth();
    });
    return { button, isPhoneWide };
  });
  const settleWidth = () => {
    frame.classList.toggle('is-phone', state.isPhoneWide);
    for (const { button, isPhoneWide } of widths) {
      button.setAttribute('aria-pressed', String(isPhoneWide === state.isPhoneWide));
    }
  };
  settleWidth();
  frame.src = address;
  const bar = make(
    'div',
    { class: 'bar' },
    make(
      'div',
      { class: 'switch', role: 'group', 'aria-label': 'Width of the frame' },
      ...widths.map(({ button }) => button),
    ),
    make(
      'span',
      { class: 'hint' },
      'Links open in a new tab. Scripts, forms and pictures from elsewhere are off.',
    ),
    make('a', { href: address, target: '_blank', rel: 'noopener noreferrer' }, 'Open alone'),
  );
  return [bar, frame];
}

function sourcePanel(message) {
  const paper = make('pre', { class: 'paper' }, 'Loading…');
  const download = make(
    'a',
    { href: urlOf(`messages/${message.id}/source`, { download: '1' }).href },
    'Download',
  );
  const note = make('span', { class: 'hint' }, 'The message as it left.');
  void fetch(urlOf(`messages/${message.id}/source`))
    .then(async (response) => {
      if (!response.ok) throw new Error(`status ${response.status}`);
      const source = await response.text();
      paper.textContent = source.slice(0, shownCharactersMax);
      if (source.length > shownCharactersMax) note.textContent = cutNote(source.length);
    })
    .catch(() => {
      paper.textContent = 'The source could not be loaded.';
    });
  return [make('div', { class: 'bar' }, note, download), paper];
}

/** A message of a chat app as its reader sees it. */
function bubblePaper({ header, body, footer, buttons = [] }) {
  const bubble = make('div', { class: 'bubble' });
  if (header !== undefined) bubble.append(make('strong', {}, header));
  const text = make('p', {});
  appendLinked(text, body);
  bubble.append(text);
  if (footer !== undefined) bubble.append(make('small', {}, footer));
  const actions = buttons.map((button, position) => make('li', {}, bubbleButton(button, position)));
  return make('div', { class: 'chat' }, bubble, make('ul', { class: 'replies' }, ...actions));
}

/** A link is followed, and a quick reply said, as on a phone. A number and a code only show what they have. */
function bubbleButton({ type, text, url, phoneNumber, code }, position) {
  if (type === 'url' && /^https:/i.test(url))
    return make('a', { href: url, target: '_blank', rel: 'noopener noreferrer', title: url }, text);
  if (type !== 'quick_reply') return make('span', { title: phoneNumber ?? code ?? '' }, text);
  const button = make('button', { type: 'button', title: 'Say this as the recipient' }, text);
  button.addEventListener('click', () => void attempt(() => answer({ button: position })));
  return button;
}

const platformNotes = {
  android: 'An app without the SDK shows title, text and picture alone.',
  ios: 'iOS shows the icon of the app itself, and picture and buttons where the app has an extension for them.',
  web: 'Browsers differ: some leave out the picture, or show two of three buttons.',
};

/** A push as its reader sees it on a device. Pictures stay where they are: nobody is to learn that it was looked at. */
function notificationPaper({ title, body, imageUrl, iconUrl, deepLink, actionButtons, ...rest }, platform) {
  const buttons = (Array.isArray(actionButtons) ? actionButtons : []).filter(
    (button) => typeof button?.label === 'string',
  );
  const card = make(
    'section',
    { class: 'notification', 'aria-label': 'Notification' },
    make(
      'p',
      { class: 'row app' },
      make('span', { class: 'app-icon', 'aria-hidden': 'true' }),
      make('span', { class: 'line' }, platform === 'web' ? 'Your site' : 'Your app'),
      make('span', {}, '· now'),
    ),
    make('strong', {}, title),
    make('p', { class: 'notification-text' }, body),
  );
  if (typeof imageUrl === 'string') card.append(pictureFrame(imageUrl));
  if (buttons.length > 0)
    card.append(
      make(
        'ul',
        { class: 'notification-buttons' },
        ...buttons.map(({ label, deepLink: link }) => make('li', {}, destination(link, label))),
      ),
    );
  const facts = [
    ['A tap opens', deepLink],
    ...buttons.map(({ label, actionId, deepLink: link }) => [
      `Button “${label}”`,
      [
        typeof link === 'string' && `opens ${link}`,
        typeof actionId === 'string' && `is reported as ${actionId}`,
      ]
        .filter(Boolean)
        .join(', '),
    ]),
    ['Icon', iconUrl],
    ['Priority', rest.priority],
    ['Channel on Android', rest.androidChannelId],
    ...Object.entries(rest.dataPayload ?? {}).map(([name, value]) => [`Data: ${name}`, value]),
  ].filter(([, value]) => typeof value === 'string' && value !== '');
  const rows = facts.map(([name, value]) =>
    make('tr', {}, make('th', { scope: 'row' }, name), make('td', {}, value)),
  );
  return make(
    'div',
    { class: 'device' },
    card,
    ...(Object.hasOwn(platformNotes, platform) ? [hint(platformNotes[platform])] : []),
    ...(rows.length > 0 ? [make('table', {}, make('tbody', {}, ...rows))] : []),
  );
}

function pictureFrame(url) {
  return make('p', { class: 'picture' }, destination(url, 'Look at the picture'));
}

/** What leads to the web is a link; to follow one into an app takes the app. */
function destination(url, text) {
  if (typeof url !== 'string' || !/^https?:/i.test(url)) return make('span', { title: url ?? '' }, text);
  return make('a', { href: url, target: '_blank', rel: 'noopener noreferrer', title: url }, text);
}

/** Where one says as the recipient what a person would; filled once it is known whether one can. */
function answerBox(message) {
  const box = make('section', { class: 'answers', id: 'answers', 'aria-label': 'Answers' });
  void attempt(() => loadStanding(message));
  return box;
}

/** What was said is applied a moment later. */
const applyingMs = 300;

async function answer(said) {
  const message = state.shown;
  const { said: words } = await fetchJson(`messages/${message.id}/replies`, {}, 'POST', said);
  if (words !== null && state.shown === message)
    byId('answers')?.before(make('p', { class: 'own-bubble' }, words));
  await new Promise((resolve) => setTimeout(resolve, applyingMs));
  await loadStanding(message);
}

/** Also says whether the message is still there, of whatever channel. */
async function loadStanding({ id }) {
  let standing;
  try {
    standing = await fetchJson(`messages/${id}/replies`);
  } catch (cause) {
    if (cause.status !== 404) throw cause;
    if (state.shown?.id === id) showMissing();
    return;
  }
  const box = byId('answers');
  if (box !== null && state.shown?.id === id) showStanding(box, standing);
}

/** Leaves alone what has not changed: somebody may be typing, or about to press. */
function showStanding(box, standing) {
  const known = JSON.stringify(standing);
  if (box.dataset.standing === known) return;
  box.dataset.standing = known;
  if (!standing.can_reply) {
    box.replaceChildren(hint(standing.obstacle));
    return;
  }
  if (box.querySelector('form') === null)
    box.replaceChildren(answerForm(), make('div', { class: 'standing', role: 'status' }));
  const isFocused = document.activeElement?.parentElement?.className === 'standing';
  box.querySelector('.standing').replaceChildren(...standingOf(standing));
  if (isFocused) box.querySelector('.standing button')?.focus();
}

function answerForm() {
  const input = make('input', {
    type: 'text',
    maxlength: 4_096,
    required: '',
    placeholder: 'Answer as the recipient',
    'aria-label': 'Answer as the recipient',
    autocomplete: 'off',
  });
  const form = make('form', {}, input, make('button', { type: 'submit' }, 'Say it'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const text = input.value;
    input.value = '';
    void attempt(() => answer({ text }));
  });
  return form;
}

/** What holds for the number now, and what its owner can set in the chat app itself. */
function standingOf({ opted_out: hasOptedOut, marketing_stopped: hasStoppedMarketing, consent }) {
  const sentence = hint(describeStanding(hasOptedOut, consent));
  if (hasStoppedMarketing === null) return [sentence];
  const value = hasStoppedMarketing ? 'resume' : 'stop';
  const button = make(
    'button',
    { type: 'button' },
    hasStoppedMarketing ? 'Resume marketing' : 'Stop marketing',
  );
  button.addEventListener('click', () => void attempt(() => answer({ marketing: value })));
  return [sentence, button];
}

function describeStanding(hasOptedOut, consent) {
  if (hasOptedOut) return 'This number has said STOP: it gets nothing on this channel until it says START.';
  if (consent === null) return 'This number gets messages. No contact has it.';
  return consent === 'subscribed'
    ? 'This number gets messages, and its contact those of campaigns too.'
    : 'This number gets messages. Its contact is unsubscribed: campaigns leave it out.';
}

/** Web addresses become links that open elsewhere: following them is what one tests a message for. */
function textPaper(text) {
  const paper = make('pre', { class: 'paper' });
  appendLinked(paper, text.slice(0, shownCharactersMax));
  if (text.length <= shownCharactersMax) return [paper];
  return [make('div', { class: 'bar' }, hint(cutNote(text.length))), paper];
}

function appendLinked(paper, shown) {
  let copiedTo = 0;
  for (const match of shown.matchAll(/https?:\/\/[^\s<>"'()]+/g)) {
    const address = match[0].replace(/[.,;:!?]+$/, '');
    paper.append(
      shown.slice(copiedTo, match.index),
      make('a', { href: address, target: '_blank', rel: 'noopener noreferrer' }, address),
    );
    copiedTo = match.index + address.length;
  }
  paper.append(shown.slice(copiedTo));
}

function cutNote(length) {
  return `The first ${shownCharactersMax.toLocaleString()} of ${length.toLocaleString()} characters.`;
}

function hint(text) {
  return make('p', { class: 'hint' }, text);
}

function sizeText(bytes) {
  if (bytes < 1_024) return `${bytes} bytes`;
  return bytes < 1_048_576 ? `${(bytes / 1_024).toFixed(1)} KB` : `${(bytes / 1_048_576).toFixed(1)} MB`;
}

function walkTabs(event) {
  const tabs = tabsOf(state.shown);
  const at = tabs.findIndex((name) => event.target.id === `tab-${name}`);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (at === -1 || step === undefined) return;
  event.preventDefault();
  const name = tabs[(at + step + tabs.length) % tabs.length];
  byId(`tab-${name}`).focus();
  chooseTab(name);
}

function chooseTab(name) {
  state.tab = name;
  showTab(name);
}

function announce(count) {
  say(count === 1 ? '1 new message' : `${count} new messages`, false);
}

function say(text, isTrouble) {
  const status = byId('status');
  status.textContent = text;
  status.classList.toggle('is-trouble', isTrouble);
}

/** The first click asks, the second deletes: nothing brings a message back. */
function deleteOnSecondClick(button, work) {
  let timer;
  let label = '';
  const stopAsking = () => {
    clearTimeout(timer);
    button.classList.remove('is-asking');
    button.textContent = label;
  };
  button.addEventListener('click', () => {
    if (button.classList.contains('is-asking')) {
      stopAsking();
      void attempt(work);
      return;
    }
    label = button.textContent;
    button.classList.add('is-asking');
    button.textContent = `${label}? Click again`;
    timer = setTimeout(stopAsking, askingMs);
  });
}

async function deleteChosen() {
  const id = state.chosenId;
  const at = state.messages.findIndex((message) => message.id === id);
  const neighbor = state.messages[at + 1] ?? state.messages[at - 1];
  await remove(`messages/${id}`, {});
  say('Deleted', false);
  await leaveChosen(isWide() ? (neighbor?.id ?? '') : '');
}

async function deleteListed() {
  const { deleted } = await remove('messages', state.filters);
  say(deleted === 1 ? '1 message deleted' : `${deleted} messages deleted`, false);
  await leaveChosen();
}

/** Meanwhile nobody asks whether the open message is still there, or its own deletion would be told as another's. */
async function remove(path, query) {
  state.isGone = true;
  await following;
  try {
    return await fetchJson(path, query, 'DELETE');
  } catch (cause) {
    state.isGone = false;
    throw cause;
  }
}

/** For another message, or with an empty id for the list. */
async function leaveChosen(id = '') {
  history.replaceState(null, '', id === '' ? location.pathname : `#${id}`);
  await choose(id);
  await refresh(true);
}

/** Tells of what went wrong, until it works again. */
async function attempt(work) {
  try {
    await work();
    if (byId('status').classList.contains('is-trouble')) say('', false);
  } catch (cause) {
    say(cause.status === undefined ? 'The server cannot be reached. Trying again.' : cause.message, true);
  }
}

async function refreshIfNewer() {
  const { listing } = state;
  const { data } = await fetchJson('messages', { ...state.filters, limit: 1 });
  if (listing === state.listing && data[0]?.id !== state.messages[0]?.id) await refresh(false);
}

let following = Promise.resolve();
let pollTimer;
async function poll() {
  clearTimeout(pollTimer);
  if (document.visibilityState === 'visible') await attempt(refreshIfNewer);
  if (document.visibilityState === 'visible') {
    following = attempt(followChosen);
    await following;
  }
  clearTimeout(pollTimer);
  pollTimer = setTimeout(() => void poll(), pollMs);
}

/** The open message may be answered or deleted elsewhere, and one that did not come is asked for again. */
async function followChosen() {
  const { chosenId, shown, isGone } = state;
  if (chosenId === null || isGone) return;
  await (shown === null ? fetchChosen(chosenId) : loadStanding(shown));
}

let typingTimer;
function filterSoon(delayMs) {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => void attempt(() => refresh(true)), delayMs);
}

/** The token of the link is in a cookie by now; an address without it can be shown around. */
function dropToken() {
  const url = new URL(location.href);
  if (!url.searchParams.has('token')) return;
  url.searchParams.delete('token');
  history.replaceState(history.state, '', url);
}

async function start() {
  dropToken();
  byId('first-email').textContent = [
    `curl -X POST ${new URL('v1/email/send', document.baseURI).href} \\`,
    `  -H 'Authorization: Bearer YOUR_KEY' \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -d '{"from":"hello@postillion.test","from_name":"Hello","to":["you@example.com"],"subject":"It works","html":"<h1>It works</h1>"}'`,
  ].join('\n');
  byId('copy').addEventListener('click', () => {
    void navigator.clipboard.writeText(byId('first-email').textContent).then(
      () => say('Copied', false),
      () => say('The browser does not let this page copy.', true),
    );
  });
  byId('refresh').addEventListener('click', () => {
    say('', false);
    void attempt(() => refresh(false));
  });
  byId('older').addEventListener('click', () => void attempt(loadOlder));
  byId('search').addEventListener('input', () => filterSoon(typingPauseMs));
  byId('channel').addEventListener('change', () => filterSoon(0));
  byId('filters').addEventListener('submit', (event) => {
    event.preventDefault();
    filterSoon(0);
  });
  byId('show-all').addEventListener('click', () => {
    byId('search').value = '';
    byId('channel').value = '';
    filterSoon(0);
  });
  deleteOnSecondClick(byId('delete'), deleteChosen);
  deleteOnSecondClick(byId('delete-all'), deleteListed);
  byId('messages').addEventListener('keydown', walkList);
  for (const name of tabNames) byId(`tab-${name}`).addEventListener('click', () => chooseTab(name));
  document.querySelector('.tabs').addEventListener('keydown', walkTabs);
  addEventListener('hashchange', () => void attempt(() => choose(location.hash.slice(1))));
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible') void poll();
  });

  await attempt(async () => {
    if (location.hash.length > 1) await choose(location.hash.slice(1));
    await refresh(true);
  });
  await poll();
}

void start();
