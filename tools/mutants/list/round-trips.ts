/** Of statements that PostgreSQL gets at once, and of what is kept in memory and stored by them. */
import type { Mutant } from '../mutant.ts';

const keptTemplates = 'test/journeys/kept-templates.test.ts';
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
  {
    file: 'src/templates/store.ts',
    from: 'select t.xmin::text = kept.version',
    to: 'select true',
    tests: [keptTemplates],
    named: 'is sent as it is now, by the first request after the change',
    harm: 'mail says what a template said before it was corrected on another node',
  },
  {
    file: 'src/templates/store.ts',
    from: 'select t.xmin::text = kept.version',
    to: 'select t.updated_at <= now() or t.xmin::text = kept.version',
    tests: [keptTemplates],
    named: 'even if the change has the time of the one before',
    harm: 'of two corrections within a millisecond the first goes on being sent',
  },
  {
    file: 'src/messages/accept.ts',
    from: '  await prepareAllAnew(candidates);',
    to: '',
    tests: [keptTemplates],
    named: 'is sent as it is now',
    harm: 'a request that is checked step by step is sent with a template that is out of date',
  },
  {
    file: 'src/email/send.ts',
    from: 'return prepared instanceof PublicError ? null : { ...prepared, templateVersion: recalled.version };',
    to: 'return prepared instanceof PublicError ? null : prepared;',
    tests: [keptTemplates],
    named: 'is sent as it is now, by the first request after the change',
    harm: 'nobody asks whether a template in memory has changed',
  },
  {
    file: 'src/accounts/store.ts',
    from: "select not '${channel}' = any (o.suspended_channels)",
    to: 'select true',
    tests: [keptTemplates],
    named: 'is suspended, limited and freed',
    harm: 'an organization that was suspended goes on sending',
  },
  {
    file: 'src/domains/store.ts',
    from: "select d.status = 'verified' from domains d where",
    to: 'select true from domains d where',
    tests: ['test/journeys/email-send.test.ts', 'test/journeys/sending-domains.test.ts'],
    harm: 'mail is sent from domains that nobody has proved to be theirs',
  },
  {
    file: 'src/platform/http/idempotency.ts',
    from: '"bool_and(',
    to: '"true or bool_and(',
    tests: ['src/messages/accept.test.ts'],
    named: 'make one message of it',
    harm: 'a request that is repeated at another node while it is under way is sent twice',
  },
  {
    file: 'src/platform/http/idempotency.ts',
    from: "`select ${stopUnless(toPredicate('false'))}\n",
    to: "`select ${stopUnless(toPredicate('true'))}\n",
    tests: ['src/messages/accept.test.ts'],
    named: 'is repeated as one that was carried out',
    harm: 'a request that is repeated is sent twice',
  },
  {
    file: 'src/messages/store.ts',
    from: "${stopUnless(toPredicate('is_accepted'))},",
    to: "'' as stop,",
    tests: ['src/messages/accept.test.ts'],
    named: 'is repeated as one that was carried out',
    harm: 'a request that was refused is told as accepted when it is repeated',
  },
];
