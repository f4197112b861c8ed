/**
 * The URL that a text is; null for what is none. `URL.canParse` of Node.js 22 denies texts with letters such as `ü` once it
 * has been called often enough to be compiled.
 */
export function parseUrl(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}
