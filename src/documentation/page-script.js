// What the documentation's page does besides being read: searching, copying, and marking the place of the reader.
const contents = document.getElementById('contents');
const search = document.getElementById('search');
const found = document.getElementById('found');
const menu = document.getElementById('menu');
const phone = matchMedia('(max-width: 52rem)');

/** By the anchor that it leads to. */
const links = new Map(
  [...contents.querySelectorAll('a[href^="#"]')].map((link) => [link.hash.slice(1), link]),
);

search.parentElement.hidden = false;
menu.hidden = false;

function fold(isFolded) {
  contents.hidden = isFolded;
  menu.setAttribute('aria-expanded', String(!isFolded));
}

phone.addEventListener('change', () => fold(phone.matches));
fold(phone.matches);
menu.addEventListener('click', () => fold(!contents.hidden));
contents.addEventListener('click', ({ target }) => {
  if (phone.matches && target.closest('a') !== null) fold(true);
});

/** What can be found: operations and schemas, by all that stands in them. */
const articles = [...document.querySelectorAll('article')].map((article) => ({
  article,
  text: article.textContent.toLowerCase(),
}));

search.addEventListener('input', () => {
  const words = search.value
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word !== '');
  let count = 0;
  for (const { article, text } of articles) {
    const isFound = words.every((word) => text.includes(word));
    if (isFound) count += 1;
    article.hidden = !isFound;
    const link = links.get(article.id);
    if (link !== undefined) link.parentElement.hidden = !isFound;
  }
  for (const group of contents.querySelectorAll('div')) {
    const items = [...group.querySelectorAll('li')];
    group.hidden = items.length > 0 && items.every((item) => item.hidden);
  }
  found.textContent = words.length === 0 ? '' : `${count} found`;
});

for (const button of document.querySelectorAll('.copy')) {
  // Browsers lend the clipboard to pages by HTTPS, and of this machine.
  button.hidden = navigator.clipboard === undefined;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(button.nextElementSibling.textContent);
    button.textContent = 'Copied';
  });
}

let current = null;

function mark(link) {
  current?.removeAttribute('aria-current');
  current = link;
  current.setAttribute('aria-current', 'true');
  if (!phone.matches) current.scrollIntoView({ block: 'nearest' });
}

/** The place of the reader: what lies across the upper part of the window. */
const observer = new IntersectionObserver(
  (entries) => {
    const seen = entries.filter(({ isIntersecting }) => isIntersecting).at(-1);
    const link = seen === undefined ? undefined : links.get(seen.target.id);
    if (link !== undefined) mark(link);
  },
  { rootMargin: '-15% 0px -80% 0px' },
);
for (const { article } of articles) observer.observe(article);
