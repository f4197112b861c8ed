export const colorSchemes = ['light', 'dark'] as const;

export type ColorScheme = (typeof colorSchemes)[number];

/**
 * The HTML as a browser with that preference shows it, whatever the browser at hand prefers: what asks for the
 * preference is answered, and what is declared for both schemes is declared for the one. A template that declares
 * only one scheme, or none, keeps to it. For templates of our own: of HTML from outside a pattern could miss parts.
 */
export function fixColorScheme(html: string, scheme: ColorScheme): string {
  return html
    .replaceAll(preferenceQuery, (_query, asked: string | undefined) =>
      asked === undefined || asked.toLowerCase() === scheme ? alwaysTrue : neverTrue,
    )
    .replaceAll(schemeDeclaration, (_declaration, property: string) => property + scheme)
    .replaceAll(metaTag, (tag) => (schemeMeta.test(tag) ? tag.replace(bothSchemes, scheme) : tag));
}

const preferenceQuery = /\(\s*prefers-color-scheme\s*(?::\s*([a-z-]+)\s*)?\)/gi;

/** Features, which can stand wherever the one that they replace did; a frame without width shows nothing anyway. */
const alwaysTrue = '(min-width: 0)';
const neverTrue = '(max-width: 0)';

const schemeDeclaration = /((?<![\w-])color-scheme\s*:\s*)(?:light\s+dark|dark\s+light)\b/gi;

const metaTag = /<meta\s[^<>]*>/gi;
const schemeMeta = /\bname\s*=\s*["']?color-scheme\b/i;
const bothSchemes = /\b(?:light\s+dark|dark\s+light)\b/i;
