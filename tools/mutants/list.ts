/** The mutants of all rooms. */
import { messages } from './list/messages.ts';
import type { Mutant } from './mutant.ts';

export const allMutants: readonly Mutant[] = [...messages];
