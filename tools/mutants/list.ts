/** The mutants of all rooms. */
import { accounts } from './list/accounts.ts';
import { campaigns } from './list/campaigns.ts';
import { leases } from './list/leases.ts';
import { messages } from './list/messages.ts';
import type { Mutant } from './mutant.ts';

export const allMutants: readonly Mutant[] = [...messages, ...campaigns, ...accounts, ...leases];
