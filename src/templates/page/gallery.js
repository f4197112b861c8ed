/**
 * The gallery in the browser: templates to choose from, and one of them seen large. The address says all that is
 * chosen, so that it can be kept and shared: everything shown follows from it, and every choice is a new address.
 * Names and texts are put in as text; the HTML of a template is only ever shown in a frame without any rights.
 */

const filters = [
  { name: 'types', title: 'Type' },
  { name: 'seasons', title: 'Season' },
  { name: 'features', title: 'Feature' },
  { name: 'industries', title: 'Industry' },
];

/** Until the person has stopped typing: browsers limit how often an address may change. */
const typingPauseMs = 200;

/** As the field allows. */
const searchLengthMax = 100;

/** Wider than what templates take for a phone; on narrower screens the frame is drawn smaller. */
const desktopWidthMin = 720;

/** An iPhone's. */
const phoneWidth = 375;

const phoneScreen = matchMedia('(max-width: 600px)');
const darkScreen = matchMedia('(prefers-color-scheme: dark)');

const byId = (id) => document.getElementById(id);

const gallery = {
  templates: [],
  /** By slug. */
  cards: new Map(),
  /** By filter and slug: the name, the checkbox and what shows how many templates there are. */
  options: new Map(),
  /** Those that match, in the order in which they are shown. */
  matching: [],
};

/** What the address says. */
let choice = readChoice();

/** What the frame shows: a new one only where that changes. */
let shown = { slug: null, scheme: null };

/** Makes an element; whatever is given as a child and is no element becomes text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function urlOf(path) {
  return new URL(path, document.baseURI).href;
}

/** What the gallery does not know is left out. */
function readChoice() {
  const query = new URLSearchParams(location.search);
  const chosen = filters.map(({ name }) => [
    name,
    query.getAll(name).filter((slug) => gallery.options.has(optionKey(name, slug))),
  ]);
  const oneOf = (name, values) => (values.includes(query.get(name)) ? query.get(name) : null);
  return {
    search: (query.get('search') ?? '').trim().slice(0, searchLengthMax),
    chosen: Object.fromEntries(chosen),
    slug: oneOf('template', [...gallery.cards.keys()]),
    width: oneOf('width', ['desktop', 'phone']),
    scheme: oneOf('scheme', ['light', 'dark']),
  };
}

/** The address, relative to the page's own. */
function addressOf({ search, chosen, slug, width, scheme }) {
  const query = new URLSearchParams();
  if (search !== '') query.set('search', search);
  for (const { name } of filters) for (const option of chosen[name]) query.append(name, option);
  if (slug !== null) {
    query.set('template', slug);
    if (width !== null) query.set('width', width);
    if (scheme !== null) query.set('scheme', scheme);
  }
  const text = query.toString();
  return text === '' ? location.pathname : `?${text}`;
}

/** `isStep` makes it something that Back undoes. */
function choose(change, isStep) {
  if (isStep) settleSearch();
  const address = addressOf({ ...choice, ...change });
  if (isStep) history.pushState({ isFromList: 'slug' in change }, '', address);
  else history.replaceState(history.state, '', address);
  show();
}

function show() {
  choice = readChoice();
  showList();
  showPreview();
}

function optionKey(name, slug) {
  return `${name} ${slug}`;
}

function matches(template, { search, chosen }) {
  const words = search.toLowerCase().split(/\s+/);
  return (
    words.every((word) => template.searched.includes(word)) &&
    filters.every(
      ({ name }) =>
        chosen[name].length === 0 || template[name].some(({ slug }) => chosen[name].includes(slug)),
    )
  );
}

function showList() {
  gallery.matching = gallery.templates.filter((template) => matches(template, choice));
  const matching = new Set(gallery.matching.map(({ slug }) => slug));
  for (const [slug, card] of gallery.cards) card.hidden = !matching.has(slug);

  const isNarrowed = matching.size < gallery.templates.length;
  const countText = isNarrowed
    ? `${matching.size} of ${countOf(gallery.templates.length)}`
    : countOf(matching.size);
  // Said again only if it says something else.
  if (byId('count').textContent !== countText) byId('count').textContent = countText;
  byId('no-match').hidden = matching.size > 0;
  // What one is typing stays as one types it.
  if (byId('search').value.trim() !== choice.search) byId('search').value = choice.search;
  showOptions();
  showChosen();
}

function countOf(count) {
  return count === 1 ? '1 template' : `${count} templates`;
}

/** Beside each option, how many templates there would be with it. */
function showOptions() {
  for (const { filter, slug, input, count } of gallery.options.values()) {
    const chosen = { ...choice.chosen, [filter]: [slug] };
    const found = gallery.templates.filter((template) => matches(template, { ...choice, chosen })).length;
    count.textContent = found;
    input.checked = choice.chosen[filter].includes(slug);
    input.parentElement.classList.toggle('is-bare', found === 0);
  }
}

function showChosen() {
  const chosen = [...gallery.options.values()].filter(({ filter, slug }) =>
    choice.chosen[filter].includes(slug),
  );
  byId('chosen').replaceChildren(
    ...chosen.map(({ filter, slug, name }) => {
      const button = make('button', { type: 'button', 'aria-label': `Remove the filter ${name}` }, name);
      button.addEventListener('click', () => {
        toggleOption(filter, slug);
        // The button is gone by now.
        byId(chosen.length > 1 ? 'clear' : 'search').focus();
      });
      return make('li', {}, button);
    }),
  );
  byId('clear').hidden = chosen.length === 0 && choice.search === '';
  byId('chosen-count').hidden = chosen.length === 0;
  byId('chosen-count').textContent = chosen.length;
}

function toggleOption(filter, slug) {
  const before = choice.chosen[filter];
  const after = before.includes(slug) ? before.filter((other) => other !== slug) : [...before, slug];
  choose({ chosen: { ...choice.chosen, [filter]: after } }, true);
}

function clearChoice() {
  choose({ search: '', chosen: Object.fromEntries(filters.map(({ name }) => [name, []])) }, true);
  byId('search').focus();
}

/** What no template has could only lead to nothing. */
function buildFilters(categories) {
  const isUsed = (name, option) =>
    gallery.templates.some((template) => template[name].some(({ slug }) => slug === option.slug));
  const groups = filters.flatMap(({ name, title }) => {
    const options = categories[name].filter((option) => isUsed(name, option));
    if (options.length === 0) return [];
    const labels = options.map((option) => buildOption(name, option));
    return [make('fieldset', {}, make('legend', {}, title), ...labels)];
  });
  byId('filters').replaceChildren(...groups);
}

function buildOption(filter, { slug, name }) {
  const input = make('input', { type: 'checkbox' });
  const count = make('span', { class: 'count', 'aria-hidden': 'true' });
  input.addEventListener('change', () => toggleOption(filter, slug));
  gallery.options.set(optionKey(filter, slug), { filter, slug, name, input, count });
  return make('label', {}, input, make('span', {}, name), count);
}

function buildCard(template) {
  const { slug, name, description, types } = template;
  const image = make('img', { alt: '', loading: 'lazy', decoding: 'async' });
  image.addEventListener('error', () => image.remove());
  image.src = urlOf(`gallery/thumbnails/${encodeURIComponent(slug)}`);
  const link = make('a', { href: `?template=${encodeURIComponent(slug)}` }, name);
  link.addEventListener('click', (event) => {
    // In a new tab or window it is a link like any other.
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    choose({ slug, width: null, scheme: null }, true);
  });
  const card = make(
    'li',
    {},
    make('div', { class: 'thumbnail' }, image),
    make('h2', {}, link),
    make('p', { class: 'hint' }, description),
    make('p', { class: 'badges' }, ...types.map((type) => make('span', { class: 'badge' }, type.name))),
  );
  gallery.cards.set(slug, card);
  return card;
}

function showPreview() {
  const dialog = byId('preview');
  const template = gallery.templates.find(({ slug }) => slug === choice.slug);
  document.title = [...(template === undefined ? [] : [template.name]), 'Gallery', 'Postillion'].join(' · ');
  if (template === undefined) {
    shown = { slug: null, scheme: null };
    if (dialog.open) dialog.close();
    byId('device').replaceChildren();
    return;
  }
  if (shown.slug !== template.slug) {
    showDetails(template);
    byId('dialog-body').scrollTop = 0;
  }
  if (!dialog.open) dialog.showModal();
  showPosition(template);
  showFrame(template);
}

function showPosition(template) {
  const at = gallery.matching.indexOf(template);
  byId('position').textContent = at === -1 ? '' : `${at + 1} of ${gallery.matching.length}`;
  byId('previous').disabled = at <= 0;
  byId('next').disabled = at === -1 || at === gallery.matching.length - 1;
}

function step(by) {
  const at = gallery.matching.findIndex(({ slug }) => slug === choice.slug);
  const next = gallery.matching[at + by];
  if (at === -1 || next === undefined) return;
  const button = document.activeElement;
  choose({ slug: next.slug }, false);
  // At the end of the list a button is switched off, and would take the focus with it.
  if (button?.disabled) byId('name').focus();
}

function showFrame({ slug, name }) {
  const scheme = choice.scheme ?? (darkScreen.matches ? 'dark' : 'light');
  const address = urlOf(`gallery/templates/${encodeURIComponent(slug)}?scheme=${scheme}`);
  byId('open-alone').href = address;
  for (const button of document.querySelectorAll('[data-scheme]')) {
    button.setAttribute('aria-pressed', String(button.dataset.scheme === scheme));
  }
  if (shown.slug !== slug || shown.scheme !== scheme) {
    shown = { slug, scheme };
    // No exception in `sandbox`: no script, form, pop-up or navigation of this page. Always a frame of its own:
    // leading one frame from address to address would put each into what Back goes through.
    const frame = make('iframe', { sandbox: '', referrerpolicy: 'no-referrer', title: `Preview of ${name}` });
    frame.src = address;
    byId('device').replaceChildren(frame);
    byId('device').dataset.shows = scheme;
  }
  settleWidth();
}

/** A desktop is never narrower than it is: where there is no room, it is drawn smaller. */
function settleWidth() {
  const stage = byId('stage');
  const device = byId('device');
  const frame = device.querySelector('iframe');
  if (frame === null) return;
  const current = choice.width ?? (phoneScreen.matches ? 'phone' : 'desktop');
  const isPhone = current === 'phone';
  for (const button of document.querySelectorAll('[data-width]')) {
    button.setAttribute('aria-pressed', String(button.dataset.width === current));
  }
  device.classList.toggle('is-phone', isPhone);
  const edge = device.offsetWidth - device.clientWidth;
  const room = stage.clientWidth - edge;
  const width = isPhone ? phoneWidth : Math.max(desktopWidthMin, room);
  const scale = Math.min(1, room / width);
  device.style.width = `${width * scale + edge}px`;
  frame.style.width = `${width}px`;
  frame.style.height = `${100 / scale}%`;
  frame.style.transform = scale === 1 ? 'none' : `scale(${scale})`;
}

function showDetails(template) {
  byId('name').textContent = template.name;
  byId('description').textContent = template.description;
  byId('copy-command').textContent = [
    `curl -X POST ${urlOf(`v1/templates/gallery/${template.id}/copy`)} \\`,
    `  -H 'Authorization: Bearer YOUR_KEY'`,
  ].join('\n');
  byId('copied').textContent = '';
  byId('facts').replaceChildren(
    fact('Id', idWithCopy(template.id)),
    fact('Subject', template.subject),
    fact('Preview text', template.preview_text),
    ...filters
      .filter(({ name }) => template[name].length > 0)
      .map(({ name, title }) =>
        fact(title, ...template[name].map((option) => make('span', { class: 'badge' }, option.name))),
      ),
  );
  const variables = Object.entries(template.variables);
  byId('variables-section').hidden = variables.length === 0;
  byId('variables').replaceChildren(
    ...variables.map(([name, sample]) =>
      make('tr', {}, make('th', { scope: 'row' }, make('code', {}, `{{${name}}}`)), make('td', {}, sample)),
    ),
  );
  if (byId('plain').open) void showText(template.slug);
  else byId('text').textContent = '';
}

function fact(name, ...values) {
  return make('div', {}, make('dt', {}, name), make('dd', {}, ...values));
}

function idWithCopy(id) {
  const button = make('button', { type: 'button', 'data-copies': 'template-id' }, 'Copy');
  button.setAttribute('aria-label', 'Copy the id');
  button.addEventListener('click', () => void copy(button));
  return make('span', { class: 'with-copy' }, make('code', { id: 'template-id' }, id), button);
}

async function showText(slug) {
  const paper = byId('text');
  paper.textContent = 'Loading…';
  let text = 'The text could not be loaded.';
  try {
    const response = await fetch(urlOf(`gallery/templates/${encodeURIComponent(slug)}/text`));
    if (response.ok) text = await response.text();
  } catch {
    // Said in the text's place.
  }
  if (choice.slug === slug) paper.textContent = text;
}

async function copy(button) {
  const source = byId(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    byId('copied').textContent = 'Copied.';
  } catch {
    // Over plain HTTP from another machine, pages may not copy.
    getSelection().selectAllChildren(source);
    byId('copied').textContent = 'The browser does not let this page copy. It is selected for you to copy.';
  }
}

/** By Escape or by a button. Where one came from the list, that is where Back leads. */
function leavePreview() {
  if (choice.slug === null) return;
  const card = gallery.cards.get(choice.slug);
  if (history.state?.isFromList) history.back();
  else choose({ slug: null }, false);
  if (!card.hidden) card.querySelector('a').focus();
}

let typingTimer;
function searchSoon(delayMs) {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(settleSearch, delayMs);
}

/** What was typed counts before whatever comes next. */
function settleSearch() {
  clearTimeout(typingTimer);
  const search = byId('search').value.trim();
  if (search !== choice.search) choose({ search }, false);
}

function listen() {
  byId('search').addEventListener('input', () => searchSoon(typingPauseMs));
  byId('search-form').addEventListener('submit', (event) => {
    event.preventDefault();
    searchSoon(0);
  });
  byId('filters').addEventListener('submit', (event) => event.preventDefault());
  byId('show-filters').addEventListener('click', ({ currentTarget: button }) => {
    const isOpen = button.getAttribute('aria-expanded') === 'true';
    button.setAttribute('aria-expanded', String(!isOpen));
  });
  byId('clear').addEventListener('click', clearChoice);
  byId('clear-empty').addEventListener('click', clearChoice);

  const dialog = byId('preview');
  dialog.addEventListener('close', leavePreview);
  dialog.addEventListener('click', (event) => {
    // The dialog itself is only hit beside what it holds: on the backdrop.
    if (event.target === dialog) dialog.close();
  });
  byId('close').addEventListener('click', () => dialog.close());
  byId('previous').addEventListener('click', () => step(-1));
  byId('next').addEventListener('click', () => step(1));
  for (const button of document.querySelectorAll('[data-width]')) {
    button.addEventListener('click', () => choose({ width: button.dataset.width }, false));
  }
  for (const button of document.querySelectorAll('[data-scheme]')) {
    button.addEventListener('click', () => choose({ scheme: button.dataset.scheme }, false));
  }
  for (const button of document.querySelectorAll('[data-copies]')) {
    button.addEventListener('click', () => void copy(button));
  }
  byId('plain').addEventListener('toggle', () => {
    if (byId('plain').open && choice.slug !== null) void showText(choice.slug);
  });
  new ResizeObserver(settleWidth).observe(byId('stage'));
  darkScreen.addEventListener('change', showPreview);
  addEventListener('popstate', show);
}

async function start() {
  try {
    const response = await fetch(urlOf('gallery/templates.json'));
    if (!response.ok) throw new Error(`status ${response.status}`);
    const { templates, categories } = await response.json();
    gallery.templates = templates.map((template) => ({ ...template, searched: searchedText(template) }));
    buildFilters(categories);
    byId('templates').replaceChildren(...gallery.templates.map(buildCard));
  } catch {
    byId('count').textContent = 'The gallery could not be loaded. Reload the page to try again.';
    return;
  }
  listen();
  // What was typed before the templates were there.
  const typed = byId('search').value.trim();
  if (typed !== '' && choice.search === '') choose({ search: typed }, false);
  else show();
}

function searchedText(template) {
  const options = filters.flatMap(({ name }) => template[name].map((option) => option.name));
  return [template.name, template.description, ...options].join(' ').toLowerCase();
}

void start();
