import type { Condition, Group } from './conditions.ts';

/** A condition as it was given, and whether it holds for one contact. */
export type ExplainedCondition =
  | { type: 'group'; match: Group['match']; conditions: ExplainedCondition[]; holds: boolean }
  | (Readonly<Record<string, unknown>> & { holds: boolean });

/** `truths` are those of the leaves, in the order of `compileLeaves`. */
export function explainConditions(condition: Condition, truths: readonly boolean[]): ExplainedCondition {
  const remaining = truths.values();
  const explain = (explained: Condition): ExplainedCondition => {
    if (explained.kind === 'group') return explainGroup(explained, explained.conditions.map(explain));
    const { value: holds, done } = remaining.next();
    if (done === true) throw new Error('there are more leaves than truths');
    return { ...explained.given, holds };
  };
  const explained = explain(condition);
  if (remaining.next().done !== true) throw new Error('there are more truths than leaves');
  return explained;
}

function explainGroup({ match }: Group, conditions: ExplainedCondition[]): ExplainedCondition {
  return { type: 'group', match, conditions, holds: holdsAsGroup(match, conditions) };
}

function holdsAsGroup(match: Group['match'], conditions: readonly ExplainedCondition[]): boolean {
  switch (match) {
    case 'all':
      return conditions.every(({ holds }) => holds);
    case 'any':
      return conditions.some(({ holds }) => holds);
    case 'none':
      return !conditions.some(({ holds }) => holds);
  }
}
