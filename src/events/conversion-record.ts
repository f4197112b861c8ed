import { type Static, Type } from 'typebox';
import { textOrNull } from '../platform/http/shapes.ts';
import { type ConversionGroup, type Grouping, groupOfNone } from './conversion-store.ts';

export const currencySum = Type.Object(
  {
    currency: Type.Union([Type.String(), Type.Null()], {
      description: 'Of ISO 4217; null for the values whose currency is not known.',
    }),
    value: Type.Number({ description: 'The sum of the values.' }),
  },
  { title: 'ConversionValue' },
);

export const groupRecord = Type.Object(
  {
    id: Type.String({
      format: 'uuid',
      description: 'Of the group, for `after` and `before`; the id of the campaign or message if it has one.',
    }),
    campaign_id: Type.Optional(textOrNull),
    message_id: Type.Optional(textOrNull),
    category: Type.Optional(textOrNull),
    count: Type.Integer({ description: 'How many events converted, with a value or without.' }),
    values: Type.Array(currencySum, { description: 'By currency; empty if none of them has a value.' }),
  },
  {
    title: 'ConversionGroup',
    description: 'It has the field that it is grouped by: null for the conversions that have none.',
  },
);

export type GroupRecord = Static<typeof groupRecord>;

export function showGroup(group: ConversionGroup, groupedBy: Grouping): GroupRecord {
  const { id, count, values, category } = group;
  const ownId = id === groupOfNone ? null : id;
  return {
    id,
    [groupedBy]: groupedBy === 'category' ? category : ownId,
    count,
    values,
  };
}
