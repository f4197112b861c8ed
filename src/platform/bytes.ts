/** Sizes as people write and read them, in powers of ten, as disks have them. */

const units = ['B', 'kB', 'MB', 'GB', 'TB'] as const;

/** `4.2 GB`. */
export function formatBytes(bytes: number): string {
  const power = Math.min(Math.floor(Math.log10(Math.max(1, bytes)) / 3), units.length - 1);
  // What rounds up to a thousand of one unit is one of the next.
  const isNext = Number((bytes / 1_000 ** power).toFixed(1)) >= 1_000 && power < units.length - 1;
  const shown = isNext ? power + 1 : power;
  return `${(bytes / 1_000 ** shown).toFixed(shown === 0 ? 0 : 1)} ${units[shown] ?? ''}`;
}

/** `500MB`, `2.5 GB` or plain bytes, as bytes; null for anything else, and for what is more than a thousand terabytes. */
export function parseBytes(text: string): number | null {
  const match = /^(\d{1,16}(?:\.\d{1,3})?) ?(B|kB|MB|GB|TB)?$/i.exec(text.trim());
  if (match === null) return null;
  const [, number = '', unit = 'B'] = match;
  const power = units.findIndex((known) => known.toLowerCase() === unit.toLowerCase());
  const bytes = Math.round(Number(number) * 1_000 ** power);
  return bytes <= bytesMax ? bytes : null;
}

const bytesMax = 1_000 ** 5;
