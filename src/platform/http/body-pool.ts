import type { IncomingMessage } from 'node:http';
import type { Clock } from '../clock.ts';
import type { Shares } from '../shares.ts';
import type { ArrivalLimits } from './arrival.ts';
import { type CollectedBody, collectBody, declaredBytes } from './body-reader.ts';
import { overloaded } from './errors.ts';

/** What bodies are collected with, and what all of one kind hold together, each holder a share. */
export type BodyPool = { arriving: Shares; bytes: Shares; arrival: ArrivalLimits; clock: Clock };

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
