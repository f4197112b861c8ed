/**
 * Shows the log of an organization as the requests that an endpoint would get. Nothing is sent anywhere: a request can be
 * copied as a command, and run against a program.
 */

const pollMs = 2_000;

const byId = (id) => document.getElementById(id);

/** The address of the page, without a token that it was opened with. */
const pageUrl = new URL('webhooks', new URL('.', location.href)).href;

const state = { organization: null, newest: null, oldest: null };

async function fetchJson(path, body) {
  const request =
    body === undefined
      ? {}
      : { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
  const response = await fetch(`${pageUrl}/${path}`, request);
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.message), { status: response.status });
  return answer;
}

function say(text, isTrouble = false) {
  byId('status').textContent = text;
  byId('status').classList.toggle('is-trouble', isTrouble);
}

/** Tells of what went wrong, in the server's words where it has any. */
async function attempt(work) {
  try {
    await work();
    if (byId('status').classList.contains('is-trouble')) say('');
  } catch (cause) {
    say(cause.status === undefined ? 'The server cannot be reached. Trying again.' : cause.message, true);
  }
}

const requestsPath = (before) =>
  `requests?organization=${state.organization}${before === undefined ? '' : `&before=${before}`}`;

function describeKept(kept, isKeptByPage) {
  if (kept.length === 0)
    return 'No webhook of this organization asks for anything, so that nothing is logged. A webhook of the kind poll has it logged, without an address.';
  const others = isKeptByPage ? ' A webhook of this page has everything logged.' : '';
  return `Logged, since webhooks ask for it: ${kept.join(', ')}.${others}`;
}

function showSetup({ kept, is_kept_by_page: isKeptByPage, secret }) {
  byId('secret').textContent = secret;
  byId('kept').textContent = describeKept(kept, isKeptByPage);
  byId('keep').hidden = kept.includes('*');
  byId('stop').hidden = !isKeptByPage;
}

function make(name, attributes, ...content) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...content);
  return element;
}

function itemOf(request) {
  const time = new Date(request.timestamp);
  const copy = make('button', { type: 'button' }, 'Copy as curl');
  copy.addEventListener('click', () => void attempt(() => copyRequest(request.sequence)));
  const details = make(
    'details',
    {},
    make(
      'summary',
      {},
      make('strong', {}, request.type),
      make('time', { datetime: request.timestamp }, time.toLocaleString()),
    ),
    make('pre', {}, describeRequest(request)),
    copy,
  );
  return make('li', {}, details);
}

/** With a body that can be read; the octets that were signed have neither line ends nor blanks. */
function describeRequest({ headers, body }) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return ['POST /hooks HTTP/1.1', ...lines, '', JSON.stringify(JSON.parse(body), null, 2)].join('\n');
}

/** Asked for again: a receiver believes a signature for five minutes. */
async function copyRequest(sequence) {
  const { data } = await fetchJson(requestsPath(sequence + 1));
  const request = data.find((one) => one.sequence === sequence);
  if (request === undefined) throw Object.assign(new Error('It is not kept any more.'), { status: 404 });
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const headers = Object.entries(request.headers)
    .filter(([name]) => name !== 'accept-encoding')
    .map(([name, value]) => `-H ${quote(`${name}: ${value}`)}`);
  const command = ['curl -X POST http://localhost:3000/hooks', ...headers, `-d ${quote(request.body)}`];
  try {
    await navigator.clipboard.writeText(command.join(' \\\n  '));
    say('Copied: it verifies for five minutes');
  } catch {
    say('The browser does not let this page copy.', true);
  }
}

/** Adds what is new above what is there, so that what was opened stays open. */
async function look() {
  const { organization } = state;
  const page = await fetchJson(requestsPath());
  if (organization !== state.organization) return;
  showSetup(page);
  const isFirst = state.newest === null;
  const fresh = page.data.filter(({ sequence }) => isFirst || sequence > state.newest);
  const isGap = !isFirst && fresh.length === page.data.length && fresh.length > 0;
  if (isFirst || isGap) {
    byId('requests').replaceChildren(...page.data.map(itemOf));
    state.oldest = page.data.at(-1)?.sequence ?? null;
    byId('older').hidden = !page.has_more;
  } else byId('requests').prepend(...fresh.map(itemOf));
  state.newest = page.data[0]?.sequence ?? 0;
  byId('empty').hidden = state.newest !== 0;
  byId('setup').hidden = false;
  byId('listing').hidden = false;
}

async function lookOlder() {
  const page = await fetchJson(requestsPath(state.oldest));
  byId('requests').append(...page.data.map(itemOf));
  state.oldest = page.data.at(-1)?.sequence ?? state.oldest;
  byId('older').hidden = !page.has_more;
}

async function setKept(kept) {
  await fetchJson('kept', { organization: state.organization, kept });
  await look();
}

async function choose(organization) {
  Object.assign(state, { organization, newest: null, oldest: null });
  history.replaceState(null, '', `${pageUrl}#${organization}`);
  await look();
}

let pollTimer;
async function poll() {
  clearTimeout(pollTimer);
  if (document.visibilityState === 'visible') await attempt(look);
  clearTimeout(pollTimer);
  pollTimer = setTimeout(() => void poll(), pollMs);
}

async function start() {
  // The token of the link is in a cookie by now.
  if (new URL(location.href).searchParams.has('token'))
    history.replaceState(null, '', `${pageUrl}${location.hash}`);
  const { data } = await fetchJson('organizations');
  byId('organization').replaceChildren(...data.map(({ id, name }) => make('option', { value: id }, name)));
  const wanted = location.hash.slice(1);
  const chosen = data.find(({ id }) => id === wanted) ?? data[0];
  if (chosen === undefined) throw Object.assign(new Error('There is no organization yet.'), { status: 404 });
  byId('organization').value = chosen.id;
  byId('organization').addEventListener('change', ({ target }) => void attempt(() => choose(target.value)));
  byId('keep').addEventListener('click', () => void attempt(() => setKept(true)));
  byId('stop').addEventListener('click', () => void attempt(() => setKept(false)));
  byId('older').addEventListener('click', () => void attempt(lookOlder));
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible') void poll();
  });
  await choose(chosen.id);
  await poll();
}

void attempt(async () => {
  try {
    await start();
  } catch (cause) {
    if (cause.status !== 403) throw cause;
    byId('obstacle').textContent = cause.message;
    byId('obstacle').hidden = false;
  }
});
