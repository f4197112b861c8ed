/** Of statements that PostgreSQL gets at once, and of what is kept in memory and stored by them. */
import type { Mutant } from '../mutant.ts';

const sequence = 'src/platform/postgres/sequence.test.ts';

export const roundTrips: readonly Mutant[] = [
  {
    file: 'src/platform/postgres/sequence.ts',
    from: 'for (const { name } of this.parts.slice(this.current)) {',
    to: 'for (const { name } of this.parts.slice(this.current, 1)) {',
    tests: [sequence],
    named: 'if one of them fails nothing is kept',
    harm: 'after one message that PostgreSQL refuses, a connection refuses all that follow',
  },
  {
    file: 'src/platform/postgres/sequence.ts',
    from: 'for (const part of this.parts) part.prepare(withoutSync);',
    to: 'for (const part of this.parts) part.prepare(connection);',
    tests: [sequence],
    named: 'if one of them fails nothing is kept',
    harm: 'half of a message is stored',
  },
  {
    file: 'src/platform/postgres/database.ts',
    from: ": { ...prepare(enterTenantRoleByIndex), values: [organizationIds.join(',')] };",
    to: ': { ...prepare(planByIndex), values: [] };',
    tests: [sequence],
    named: 'inside the wall they see the rows of their organizations alone',
    harm: 'messages are accepted without the second wall between organizations',
  },
];
