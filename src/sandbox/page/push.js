/**
 * Has the browser that looks at this page sent a push, by the SDK that any site uses. What a site's own server does, the
 * sandbox does here: it holds no key, and the page gets none.
 */
import { connectPush } from '../../push/sdk.js';

/** A click is reported within a second or so. Nobody asks while the tab is out of sight. */
const pollMs = 1_000;

const byId = (id) => document.getElementById(id);

/** The address of the page, without a token that it was opened with. */
const pageUrl = new URL('push', new URL('.', location.href)).href;

/** Push services answer within a second or two. */
const waitingMs = 15_000;

const state = { push: null, installationId: null, pushId: null, sentAtMs: null, isSandbox: false };

async function fetchJson(path, body) {
  const request =
    body === undefined
      ? {}
      : { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
  const response = await fetch(`${pageUrl}/${path}`, request);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.message);
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
    say(cause.message, true);
  }
}

const browserStates = {
  on: 'This browser is registered.',
  off: 'This browser is not registered yet. It will ask whether this site may show notifications.',
  closed:
    'The question was closed, or this browser did not ask it. Try again, and look for a bell in the address bar: browsers that were refused often enough ask there.',
  denied: 'This browser does not let this site show notifications. Nothing but you can change that:',
  unreachable:
    'This browser does not reach the push service of its maker, so that it cannot be registered. Postillion has no part in that:',
  unsupported:
    'This browser gets no pushes here. It takes HTTPS or the address http://localhost or http://127.0.0.1, and on an iPhone a site on the home screen. Private windows of some browsers have no push.',
};

/** Where one looks, and what one does there. */
const steps = {
  denied: [
    'Chrome, Edge, Brave: the sign to the left of the address, then Notifications: Allow. All sites are at chrome://settings/content/notifications.',
    'Firefox: the lock to the left of the address shows “Blocked”; the cross next to it takes that back. All sites are in Settings, Privacy & Security, Permissions, Notifications.',
    'Safari: Settings, Websites, Notifications.',
    'Then load this page again. If it is allowed and nothing shows, look into the notification settings of the system: it can silence the whole browser.',
  ],
  unreachable: [
    'A firewall, VPN or blocker may be in between. Chrome and its kin connect to mtalk.google.com on port 5228 or 443, Edge to *.notify.windows.com, Firefox to push.services.mozilla.com, Safari to Apple on port 5223 or 443.',
    'Brave: Settings, Privacy and security, “Use Google services for push messaging”. Builds of Chromium without the services of Google have no push.',
    'Whether there is a connection: chrome://gcm-internals in Chrome; in Firefox about:config, where dom.push.connection.enabled must be true.',
    'Private windows of some browsers have no push. Then try again.',
  ],
};

async function showBrowser(browserState) {
  byId('browser-state').textContent = browserStates[browserState];
  const items = (steps[browserState] ?? []).map((text) => {
    const item = document.createElement('li');
    item.textContent = text;
    return item;
  });
  byId('steps').replaceChildren(...items);
  byId('steps').hidden = items.length === 0;
  byId('enable').hidden = !['off', 'closed', 'unreachable'].includes(browserState);
  byId('send').disabled = browserState !== 'on';
  state.installationId = await state.push.installationId();
}

function describeSetup({ provider, is_sandbox: isSandbox, organization, public_key: publicKey }) {
  if (publicKey === null)
    return 'No organization can send to browsers yet. Have a VAPID pair made: bin/postillion push credentials --org ORGANIZATION --platform web';
  byId('owner').textContent =
    `These are the browsers of the contact with the external id postillion-sandbox, in the organization ${organization.name}. Each of them gets the push.`;
  if (isSandbox)
    return `Nothing reaches this browser: pushes stay in the sandbox, since the push provider is ${provider}. Start Postillion with POSTILLION_PUSH_PROVIDER=direct.`;
  return null;
}

function timeOf(instant) {
  return instant === null ? '' : new Date(instant).toLocaleTimeString();
}

function cell(text) {
  const element = document.createElement('td');
  element.textContent = text;
  return element;
}

function showState({ devices, push }) {
  byId('push-state').textContent = describePush(push);
  const isWaiting = push?.status === 'queued' && performance.now() - state.sentAtMs > waitingMs;
  if (byId('waiting').hidden === isWaiting) byId('waiting').hidden = !isWaiting;
  byId('devices').hidden = devices.length === 0;
  byId('devices')
    .querySelector('tbody')
    .replaceChildren(
      ...devices.map((device) => {
        const fate = push?.devices.find(({ device_id: id }) => id === device.id);
        const isThis = device.installation_id === state.installationId;
        const row = document.createElement('tr');
        row.append(
          cell(isThis ? 'This one' : device.installation_id.slice(0, 8)),
          cell(device.status),
          cell(fate === undefined ? '' : [fate.status, fate.error?.message].filter(Boolean).join(': ')),
          cell(timeOf(fate?.attempted_at ?? null)),
          cell(timeOf(fate?.displayed_at ?? null)),
          cell([timeOf(fate?.clicked_at ?? null), fate?.action_id].filter(Boolean).join(', ')),
        );
        return row;
      }),
    );
}

function describePush(push) {
  if (push === null) return 'Nothing was sent yet.';
  const words = {
    queued: 'waits to be handed over to the push service of the browser.',
    sent: state.isSandbox ? 'stays in the sandbox.' : 'was taken by the push service of the browser.',
    skipped: 'had no browser to go to.',
    failed: 'could not be sent.',
  };
  return `“${push.title}” ${words[push.status]}`;
}

async function send() {
  say('');
  const content = { title: byId('title').value, body: byId('body').value, deep_link: pageUrl };
  const { id } = await fetchJson('messages', content);
  state.pushId = id;
  state.sentAtMs = performance.now();
  await look();
}

async function look() {
  showState(await fetchJson(state.pushId === null ? 'state' : `state?push=${state.pushId}`));
}

/** Asks the person, and says what stands in the way: they themselves, or the push service of their browser. */
async function enable() {
  say('');
  const result = await register(() => state.push.enable());
  await showBrowser(result === 'off' ? 'closed' : result);
  await look();
}

/** Browsers reject with an AbortError if they have no connection to their push service. */
async function register(work) {
  try {
    return await work();
  } catch (cause) {
    if (cause.name !== 'AbortError') throw cause;
    return 'unreachable';
  }
}

let pollTimer;
async function poll() {
  clearTimeout(pollTimer);
  if (document.visibilityState === 'visible' && state.pushId !== null) await attempt(look);
  clearTimeout(pollTimer);
  pollTimer = setTimeout(() => void poll(), pollMs);
}

async function start() {
  // The token of the link is in a cookie by now.
  if (new URL(location.href).searchParams.has('token')) history.replaceState(null, '', pageUrl);
  const setup = await fetchJson('setup');
  state.isSandbox = setup.is_sandbox;
  const notice = describeSetup(setup);
  byId('notice').textContent = notice ?? '';
  byId('notice').hidden = notice === null;
  if (setup.public_key === null) {
    byId('browser-state').hidden = true;
    return;
  }
  state.push = connectPush({
    publicKey: setup.public_key,
    worker: new URL('../push/sw.js', pageUrl).href,
    register: (device) => fetchJson('devices', device),
  });
  byId('enable').addEventListener('click', () => void attempt(enable));
  byId('content').addEventListener('submit', (event) => {
    event.preventDefault();
    void attempt(send);
  });
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible') void poll();
  });
  await showBrowser(await register(() => state.push.start()));
  await look();
  await poll();
}

void attempt(start);
