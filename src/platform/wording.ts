/** The word that agrees with a count: 1 `day`, 2 `days`, 0 `days`; `other` where it takes more than an s. */
export function wordFor(count: number, one: string, other = `${one}s`): string {
  return count === 1 ? one : other;
}
