/** Reads what `/metrics` says, by the rules of the text format and not by those of what wrote it. */

export type Sample = { name: string; labels: Readonly<Record<string, string>>; value: number };

export type Scrape = {
  text: string;
  samples: readonly Sample[];
  /** The sum of the samples of that name that have all of these labels; null if there is none. */
  sum: (name: string, labels?: Readonly<Record<string, string>>) => number | null;
};

export async function scrape(url: string): Promise<Scrape> {
  const response = await fetch(`${url}/metrics`);
  const text = await response.text();
  if (response.status !== 200) throw new Error(`not measured: ${text}`);
  const samples = text
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map(parseSample);
  return {
    text,
    samples,
    sum: (name, labels = {}) => {
      const found = samples.filter(
        (sample) =>
          sample.name === name &&
          Object.entries(labels).every(([label, value]) => sample.labels[label] === value),
      );
      return found.length === 0 ? null : found.reduce((sum, { value }) => sum + value, 0);
    },
  };
}

function parseSample(line: string): Sample {
  const [, name = '', , labels = '', value = ''] =
    /^([a-z_0-9]+)(\{((?:[a-z_]+="[^"]*",?)*)\})? (\S+)$/.exec(line) ?? [];
  if (name === '') throw new Error(`no sample: ${line}`);
  return {
    name,
    labels: Object.fromEntries(
      [...labels.matchAll(/([a-z_]+)="([^"]*)"/g)].map(([, label = '', text = '']) => [label, text]),
    ),
    value: Number(value),
  };
}
