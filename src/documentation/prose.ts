/** Our own notation of descriptions, as HTML: whatever else they hold is text. */

/** Paragraphs, lists of `- ` lines, and code between backticks: what our descriptions use. */
export function renderProse(text: string): string {
  return text
    .split(/\n{2,}/)
    .filter((block) => block.trim() !== '')
    .map((block) => {
      const lines = block.split('\n');
      return lines.every((line) => line.startsWith('- '))
        ? `<ul>${lines.map((line) => `<li>${renderSpans(line.slice(2))}</li>`).join('\n')}</ul>`
        : `<p>${renderSpans(block)}</p>`;
    })
    .join('\n');
}

export function renderSpans(text: string): string {
  return text
    .split('`')
    .map((part, index) => (index % 2 === 1 ? `<code>${escapeHtml(part)}</code>` : escapeHtml(part)))
    .join('');
}

export function escapeHtml(text: string): string {
  return text
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
    .replaceAll("'", '&#39;');
}
