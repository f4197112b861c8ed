import type { IncomingMessage } from 'node:http';
import type { Clock } from '../clock.ts';
import type { Shares } from '../shares.ts';
import type { ArrivalLimits } from './arrival.ts';
import { type CollectedBody, collectBody, declaredBytes } from './body-reader.ts';
import { overloaded } from './errors.ts';

/**
 * Every body belongs to one of these, and takes nothing of the others: those of routes, which have a key, those that people
 * and their mail programs post to pages, and those in which providers report. In the first an organization is the holder
 * of a share, in the others a site.
 */
export const bodyPoolNames = ['routes', 'pages', 'callbacks'] as const;

export type BodyPoolName = (typeof bodyPoolNames)[number];

/** What bodies are collected with, and what all of one pool hold together, each holder a share. */
export type BodyPool = { arriving: Shares; bytes: Shares; arrival: ArrivalLimits; clock: Clock };

/** How much each pool holds: bodies that are arriving, and bytes of large ones. */
export type HeldInBodyPools = Record<`${BodyPoolName}${'Arriving' | 'Bytes'}`, number>;

export function heldIn(pools: Readonly<Record<BodyPoolName, BodyPool>>): HeldInBodyPools {
  const held = bodyPoolNames.flatMap((name) => [
    [`${name}Arriving`, pools[name].arriving.held()],
    [`${name}Bytes`, pools[name].bytes.held()],
  ]);
  return Object.fromEntries(held) as HeldInBodyPools; // Two of each name.
}

/** Holds one of the places for bodies that arrive until it is there. */
export async function collectInPlace(
  tools: BodyPool,
  request: IncomingMessage,
  bytesMax: number,
  holder: string,
): Promise<CollectedBody> {
  const place = declaredBytes(request) === 0 ? null : tools.arriving.take(holder, 1);
  if (declaredBytes(request) !== 0 && place === null) {
    throw overloaded('Too many requests are arriving at the moment.');
  }
  try {
    return await collectBody(request, { ...tools, bytesMax, holder });
  } finally {
    place?.release();
  }
}
