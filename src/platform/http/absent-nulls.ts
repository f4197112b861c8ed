import type { TSchema } from 'typebox';

/**
 * A null in place of an optional field is the same as leaving the field out: clients in many languages write one for what
 * they do not have, and records of ours are full of them. They are taken out before a body is checked, so that no schema has
 * to name them and no route to think of them.
 *
 * Three sorts stay. Null is a value where a schema says so itself. In a change (PATCH) it clears a field, and is refused of
 * one that cannot be cleared; what stands in a list there is whole and new, and no change. And a field may refuse it
 * (`nullIsRefused`), where leaving it out does something at once that somebody who wrote null may not have meant.
 */
export type NullRemoval = (value: unknown) => void;

/** What is read of a JSON Schema. */
type Shape = {
  type?: string | readonly string[];
  properties?: Readonly<Record<string, Shape>>;
  required?: readonly string[];
  items?: Shape;
  anyOf?: readonly Shape[];
  enum?: readonly unknown[];
  const?: unknown;
  nullIsRefused?: boolean;
};

/** Null where the schema has nothing to look for. */
export function planNullRemoval(schema: TSchema, { isChange }: { isChange: boolean }): NullRemoval | null {
  return plan(schema, isChange);
}

function plan(schema: Shape, isChange: boolean): NullRemoval | null {
  if (schema.anyOf !== undefined) return planAlternatives(schema.anyOf, isChange);
  if (schema.items !== undefined) return planItems(schema.items);
  return schema.properties === undefined ? null : planFields(schema, schema.properties, isChange);
}

/** By the type of the value: alternatives of the same type say nothing of which is meant. */
function planAlternatives(alternatives: readonly Shape[], isChange: boolean): NullRemoval | null {
  const planOf = (isOfType: (shape: Shape) => boolean) => {
    const [only, ...others] = alternatives.filter(isOfType);
    return only === undefined || others.length > 0 ? null : plan(only, isChange);
  };
  const ofLists = planOf(({ items }) => items !== undefined);
  const ofObjects = planOf(({ properties }) => properties !== undefined);
  if (ofLists === null && ofObjects === null) return null;
  return (value) => (Array.isArray(value) ? ofLists : ofObjects)?.(value);
}

function planItems(items: Shape): NullRemoval | null {
  const remove = plan(items, false);
  if (remove === null) return null;
  return (value) => {
    if (Array.isArray(value)) value.forEach(remove);
  };
}

function planFields(
  { required = [] }: Shape,
  properties: Readonly<Record<string, Shape>>,
  isChange: boolean,
): NullRemoval | null {
  const fields = Object.entries(properties);
  const removable = fields
    .filter(([name, field]) => !isChange && !required.includes(name) && !keepsNull(field))
    .map(([name]) => name);
  const inner = fields.flatMap(([name, field]) => {
    const remove = plan(field, isChange);
    return remove === null ? [] : [{ name, remove }];
  });
  if (removable.length + inner.length === 0) return null;
  return (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return;
    const object = value as Record<string, unknown>;
    for (const name of removable) if (object[name] === null) Reflect.deleteProperty(object, name);
    for (const { name, remove } of inner) if (Object.hasOwn(object, name)) remove(object[name]);
  };
}

function keepsNull(field: Shape): boolean {
  return field.nullIsRefused === true || takesNull(field);
}

function takesNull({ type, anyOf, enum: values, const: only }: Shape): boolean {
  if (anyOf !== undefined) return anyOf.some(takesNull);
  if (values !== undefined) return values.includes(null);
  if (only !== undefined) return only === null;
  return type === undefined || type === 'null' || (Array.isArray(type) && type.includes('null'));
}
