// Before anything is shown, so that nothing moves: in which language the reader wants examples. Without it, all are shown.
{
  let language = 'curl';
  try {
    language = localStorage.getItem('postillion-language') ?? language;
  } catch {
    // The browser stores nothing for this site.
  }
  document.documentElement.dataset.language = ['typescript', 'python'].includes(language) ? language : 'curl';
}
