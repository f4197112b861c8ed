import { type TObject, Type } from 'typebox';

/** Shapes that the schemas of every room are made of. */

/** A page of a list, as `toList` makes it. */
export const listOf = (item: TObject) =>
  Type.Object({ object: Type.Literal('list'), has_more: Type.Boolean(), data: Type.Array(item) });

/** The parameters of a path with `:id`. */
export const idParameter = Type.Object({ id: Type.String({ format: 'uuid' }) });

/** One of these texts. */
export const literals = <Values extends readonly string[]>(values: Values) =>
  Type.Unsafe<Values[number]>(Type.String({ enum: [...values] }));

/** A time, as RFC 3339 writes it. */
export const instant = Type.String({ format: 'date-time' });

/** What a DELETE answers. */
export const deletedOf = (resource: string) =>
  Type.Object({
    object: Type.Literal(resource),
    id: Type.String({ format: 'uuid' }),
    deleted: Type.Literal(true),
  });

/** A text of an answer, or null. */
export const textOrNull = Type.Union([Type.String(), Type.Null()]);

/** A field of a request that may be left out, or null: said in one type, so that what is wrong with it is said once. */
export const optional = <Value>(type: string, options: Record<string, unknown>) =>
  Type.Optional(Type.Unsafe<Value | null>({ type: [type, 'null'], ...options }));

export const optionalText = (options: Record<string, unknown>) => optional<string>('string', options);
