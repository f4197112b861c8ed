/**
 * Key pairs of domains, made once for all tests of a run: to make one takes 0.2 s of processor time, which was two thirds
 * of what the start of a test server took.
 */
import { inject } from 'vitest';
import type { TestProject } from 'vitest/node';
import { type DkimKeyPair, generateDkimKeyPair } from '../../src/channels/email/dkim.ts';

declare module 'vitest' {
  // eslint-disable-next-line @typescript-eslint/consistent-type-definitions -- only interfaces can be merged into
  export interface ProvidedContext {
    /** Private keys in base64. */
    dkimKeyPairs: { privateKey: string; publicKey: string }[];
  }
}

/** As many as a test has domains beside each other: what is signed with another's key must be seen to be. */
const pairsCount = 4;

/** A part of the set-up of the run. */
export default async function provideKeyPairs(project: TestProject): Promise<void> {
  const pairs = await Promise.all(Array.from({ length: pairsCount }, generateDkimKeyPair));
  project.provide(
    'dkimKeyPairs',
    pairs.map(({ privateKey, publicKey }) => ({ privateKey: privateKey.toString('base64'), publicKey })),
  );
}

let taken = 0;

/** Another one each time, until they have all had their turn. */
export function nextDkimKeyPair(): DkimKeyPair {
  const pairs = inject('dkimKeyPairs');
  const pair = pairs[taken % pairs.length];
  if (pair === undefined) throw new Error('the run was set up without key pairs');
  taken += 1;
  return { privateKey: Buffer.from(pair.privateKey, 'base64'), publicKey: pair.publicKey };
}
