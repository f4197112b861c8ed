import { type TObject, type TSchema, Type } from 'typebox';

/**
 * Shapes that the schemas of every room are made of. A schema with a `title` is a named one of the API's description:
 * described once under `components/schemas`, and referred to from wherever it is used.
 */

/** A page of a list, as `toList` makes it: of `Contact` it is `ContactPage`, and of `ListedTemplate` `TemplatePage`. */
export const listOf = (item: TObject) =>
  Type.Object(
    {
      object: Type.Literal('list'),
      has_more: Type.Boolean({ description: 'Whether there are more items in the requested direction.' }),
      data: Type.Array(item),
    },
    { title: `${titleOf(item).replace(/^Listed/, '')}Page` },
  );

function titleOf(schema: TSchema): string {
  const title: unknown = Reflect.get(schema, 'title');
  if (typeof title !== 'string') throw new Error('what a list is of needs a title');
  return title;
}

/** The parameters of a path with `:id`. */
export const idParameter = Type.Object({ id: Type.String({ format: 'uuid' }) });

/** One of these texts. */
export const literals = <Values extends readonly string[]>(
  values: Values,
  options: { title?: string; description?: string } = {},
) => Type.Unsafe<Values[number]>(Type.String({ enum: [...values], ...options }));

/** A time, as RFC 3339 writes it. */
export const instant = Type.String({ format: 'date-time' });

/** What a DELETE answers. */
export const deletedOf = (resource: string) =>
  Type.Object(
    {
      object: Type.Literal(resource),
      id: Type.String({ format: 'uuid' }),
      deleted: Type.Literal(true),
    },
    { title: `Deleted${toPascalCase(resource)}` },
  );

/** `email_campaign` as `EmailCampaign`. */
function toPascalCase(name: string): string {
  return name
    .split('_')
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join('');
}

/** The response of an operation that created something and returns only its id. */
export const referenceOf = (title: string) => Type.Object({ id: Type.String({ format: 'uuid' }) }, { title });

/** What a placeholder or a property may stand for. */
export const scalar = Type.Unsafe<string | number | boolean>({
  type: ['string', 'number', 'boolean'],
  sensitive: true,
});

/** What people call a thing: it is found however its letters were composed. */
export const nameText = (maxLength: number, options: { description?: string } = {}) =>
  Type.String({ minLength: 1, maxLength, format: 'not-blank', composed: true, ...options });

/** A text of an answer, or null. */
export const textOrNull = Type.Union([Type.String(), Type.Null()]);

/** A field of a request that may be left out, or null: one type, so that what is wrong with it is reported once. */
export const optional = <Value>(type: string, options: Record<string, unknown>) =>
  Type.Optional(Type.Unsafe<Value | null>({ type: [type, 'null'], ...options }));

export const optionalText = (options: Record<string, unknown>) => optional<string>('string', options);

/** Where an item of a request with many stands, in its result. */
export const itemIndex = Type.Integer({ description: 'Its place in the request, from 0.' });

/** Why one of many is refused: the error that a request for it alone would have. */
export const itemError = Type.Object({
  status_code: Type.Integer(),
  name: Type.String(),
  message: Type.String(),
});
