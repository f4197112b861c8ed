/**
 * An ESLint rule: what stands as a condition of its own in the text of a statement, after `and` for instance, is a
 * `Predicate` (src/platform/postgres/predicate.ts) and not a string, which might have an `or` at its top level.
 */

/** The text before an expression, where the expression is to be a whole condition unless it is compared below. */
const beginsCondition = /\b(?:where|and|or|not|on|when|having)\s*\(?\s*$/i;
/** The text after an expression that is only one side of a comparison, or part of a name. */
const isCompared = /^\s*(?:[=<>~:.\w+-]|\|\|)/;
const joinsConditions = /^\s*(?:and|or)\s*$/i;
const joinsFurther = /^\s*(?:and|or|then|order|limit|group|offset|for)\b/i;

/** @type {import('eslint').Rule.RuleModule} */
export const closedPredicates = {
  meta: {
    type: 'problem',
    messages: {
      open: 'A condition in a statement must be a Predicate: make it by toPredicate, allOf or anyOf.',
      joined: 'Join conditions by allOf or anyOf, which keep them together.',
    },
  },
  create: (context) => {
    const { parserServices } = context.sourceCode;
    const checker = parserServices.program.getTypeChecker();
    return {
      TemplateLiteral: ({ quasis, expressions }) => {
        for (const [index, expression] of expressions.entries()) {
          const [before, after] = [quasis[index].value.raw, quasis[index + 1].value.raw];
          if (!beginsCondition.test(before) || (isCompared.test(after) && !joinsFurther.test(after)))
            continue;
          const type = checker.typeToString(parserServices.getTypeAtLocation(expression));
          if (type !== 'Predicate') context.report({ node: expression, messageId: 'open' });
        }
      },
      'CallExpression[callee.property.name="join"]': (node) => {
        const [separator] = node.arguments;
        if (separator?.type === 'Literal' && joinsConditions.test(separator.value))
          context.report({ node, messageId: 'joined' });
      },
    };
  },
};
