/** The short form of the hostile neighbour: `npm run chaos -- --neighbour 60` is the long one, which also compares times. */
import { afterEach, expect, test } from 'vitest';
import { runNeighbour } from '../chaos/neighbour.ts';

let abandon: () => Promise<void> = () => Promise.resolve();

afterEach(() => abandon());

test('whatever an organization and strangers do at once, nothing is refused to another one, and nothing of it is lost', async () => {
  const report = await runNeighbour({ seconds: 6 }, (remove) => {
    abandon = remove;
  });
  expect(report.violations).toEqual([]);
  expect(report).toMatchObject({ lost: 0 });
  // What it proves, it proves only if everything was tried.
  expect(report.deeds.filter(({ alone, beside }) => alone.count === 0 || beside.count === 0)).toEqual([]);
  const tried = new Set(report.neighbour.map(({ what }) => what.split(':')[0]));
  const wanted = [
    'answers left unread',
    'page',
    'page of events',
    'declared length',
    'segment made',
    'reports',
  ];
  expect(wanted.filter((what) => !tried.has(what))).toEqual([]);
});
