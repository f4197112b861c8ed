// What the documentation does besides being read: it searches, copies, remembers a language, and marks where one is.
const contents = document.getElementById('contents');
const pages = document.getElementById('pages');
const search = document.getElementById('search');
const found = document.getElementById('found');
const results = document.getElementById('results');
const menu = document.getElementById('menu');
const { root } = document.body.dataset;

/** More would be no answer. */
const resultsMax = 50;

function open(isOpen) {
  contents.classList.toggle('is-open', isOpen);
  menu.setAttribute('aria-expanded', String(isOpen));
}

menu.addEventListener('click', () => open(!contents.classList.contains('is-open')));
contents.addEventListener('click', ({ target }) => {
  if (target.closest('a') !== null) open(false);
});

/** `[title, page, anchor, words]` of whatever can be found. Loaded when somebody is about to search. */
let index;
function loadIndex() {
  index ??= fetch(`${root}docs/search.json`)
    .then((response) => {
      if (!response.ok) throw new Error(`status ${response.status}`);
      return response.json();
    })
    .catch((cause) => {
      index = undefined;
      throw cause;
    });
  return index;
}

async function find() {
  const asked = search.value;
  const words = asked
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word !== '');
  pages.hidden = words.length > 0;
  if (words.length === 0) {
    found.textContent = '';
    results.replaceChildren();
    return;
  }
  const matches = (await loadIndex()).filter((entry) => words.every((word) => entry[3].includes(word)));
  if (search.value !== asked) return;
  found.textContent = `${matches.length} found`;
  // What has the words in its title comes first.
  const rank = ([title]) => (words.every((word) => title.toLowerCase().includes(word)) ? 0 : 1);
  matches.sort((one, other) => rank(one) - rank(other));
  results.replaceChildren(...matches.slice(0, resultsMax).map(resultOf));
}

function resultOf([title, page, anchor, , kind]) {
  const link = document.createElement('a');
  link.href = `${root}docs/${page}${anchor === '' ? '' : `#${anchor}`}`;
  link.textContent = title;
  const about = document.createElement('small');
  about.textContent = kind;
  const item = document.createElement('li');
  item.append(link, about);
  return item;
}

search.addEventListener('focus', () => void loadIndex().catch(() => {}));
search.addEventListener('input', () => {
  find().catch(() => {
    found.textContent = 'The search could not be loaded. Try again.';
  });
});

for (const button of document.querySelectorAll('.copy')) {
  // Browsers lend the clipboard to pages by HTTPS, and of this machine.
  button.hidden = navigator.clipboard === undefined;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(button.nextElementSibling.textContent);
    button.textContent = 'Copied';
  });
}

const choices = [...document.querySelectorAll('[data-choice]')];

function markLanguage() {
  const { language } = document.documentElement.dataset;
  for (const button of choices)
    button.setAttribute('aria-pressed', String(button.dataset.choice === language));
}

for (const button of choices) {
  button.addEventListener('click', () => {
    // The example that was chosen at stays where it is, though those above it change their heights.
    const { top } = button.getBoundingClientRect();
    document.documentElement.dataset.language = button.dataset.choice;
    scrollBy({ top: button.getBoundingClientRect().top - top, behavior: 'instant' });
    markLanguage();
    try {
      localStorage.setItem('postillion-language', button.dataset.choice);
    } catch {
      // It holds for this page then.
    }
  });
}
markLanguage();

/** By the anchor that it leads to. */
const links = new Map([...pages.querySelectorAll('a[href^="#"]')].map((link) => [link.hash.slice(1), link]));
let current = null;

/** Where the menu lies beside the page, it scrolls by itself. */
function bringIntoMenu(link) {
  if (getComputedStyle(menu).display === 'none') link.scrollIntoView({ block: 'nearest' });
}

function mark(link) {
  current?.removeAttribute('aria-current');
  current = link;
  current.setAttribute('aria-current', 'true');
  bringIntoMenu(current);
}

bringIntoMenu(pages.querySelector('[aria-current="page"]'));

/** The place of the reader: what lies across the upper part of the window. */
const observer = new IntersectionObserver(
  (entries) => {
    const seen = entries.filter(({ isIntersecting }) => isIntersecting).at(-1);
    const link = seen === undefined ? undefined : links.get(seen.target.id);
    if (link !== undefined) mark(link);
  },
  { rootMargin: '-15% 0px -80% 0px' },
);
for (const id of links.keys()) {
  const place = document.getElementById(id);
  if (place !== null) observer.observe(place);
}
