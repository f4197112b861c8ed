import { defineError, PublicError } from '../platform/http/errors.ts';
import type { Conversion, DefinitionPatch, EventSchema, Payload } from './schema.ts';

export const conversionValueFieldInvalid = defineError(
  400,
  'conversion_value_field_invalid',
  'The `value_field` of the conversion is not a numeric field of the schema.',
);
export const conversionCurrencyFieldInvalid = defineError(
  400,
  'conversion_currency_field_invalid',
  'The `currency_field` of the conversion is not a string field of the schema.',
);
export const conversionCurrenciesInvalid = defineError(
  400,
  'conversion_currencies_invalid',
  'The `currencies` of the conversion are not currencies of ISO 4217.',
);
export const conversionValueFieldRequired = defineError(
  400,
  'conversion_value_field_required',
  'The conversion has currencies but no value.',
);

export const conversionErrors = [
  conversionValueFieldInvalid,
  conversionCurrencyFieldInvalid,
  conversionCurrenciesInvalid,
  conversionValueFieldRequired,
];

export const noConversion: Conversion = {
  enabled: false,
  value_field: null,
  currency_field: null,
  currencies: null,
};

/** What is given replaces what is there; what is not given stays. */
export function mergeConversion(
  present: Conversion,
  given: NonNullable<DefinitionPatch['conversion']>,
): Conversion {
  const { enabled, value_field: valueField, currency_field: currencyField, currencies } = given;
  return {
    enabled: enabled ?? present.enabled,
    value_field: valueField === undefined ? present.value_field : valueField,
    currency_field: currencyField === undefined ? present.currency_field : currencyField,
    currencies: currencies === undefined ? present.currencies : currencies && [...new Set(currencies)],
  };
}

/** Returns what a conversion is refused for beside a schema, or null. */
export function refuseConversion(conversion: Conversion, { fields }: EventSchema): PublicError | null {
  const { enabled, value_field: valueField, currency_field: currencyField, currencies } = conversion;
  const typeOf = (name: string) => fields.find((field) => field.name === name)?.type;
  if (valueField !== null) {
    const type = typeOf(valueField);
    if (type !== 'number' && type !== 'integer')
      return new PublicError(
        conversionValueFieldInvalid,
        'conversion.value_field must name a field of the schema that is a number or an integer.',
      );
  }
  if (currencyField !== null && typeOf(currencyField) !== 'string')
    return new PublicError(
      conversionCurrencyFieldInvalid,
      'conversion.currency_field must name a field of the schema that is a string.',
    );
  if (currencies !== null && (currencies.length === 0 || !currencies.every(isCurrency)))
    return new PublicError(
      conversionCurrenciesInvalid,
      'conversion.currencies must be codes of ISO 4217, such as EUR, or null.',
    );
  if (enabled && valueField === null && (currencies !== null || currencyField !== null))
    return new PublicError(
      conversionValueFieldRequired,
      'conversion.value_field is required where the conversion has currencies.',
    );
  return null;
}

let currencyCodes: ReadonlySet<string> | null = null;

/** As the Unicode CLDR knows them, which Node.js brings: those of ISO 4217, former ones among them. */
export function isCurrency(code: string): boolean {
  currencyCodes ??= new Set(Intl.supportedValuesOf('currency'));
  return currencyCodes.has(code);
}

/** What a conversion is worth. Without a value there is no currency. */
export type Worth = {
  /** As a number of JSON: sums are made of decimals, which lose no cents. */
  value: string | null;
  /** Of ISO 4217. */
  currency: string | null;
};

/**
 * Reads what an event is worth from a payload that fits its schema. A value in a currency that nobody knows counts as one
 * without a currency, so that payloads cannot make up any number of sums.
 */
export function readWorth(conversion: Conversion, payload: Payload): Worth {
  const { value_field: valueField, currency_field: currencyField, currencies } = conversion;
  const read = (field: string | null) =>
    field !== null && Object.hasOwn(payload, field) ? payload[field] : null;
  const value = read(valueField);
  if (typeof value !== 'number') return { value: null, currency: null };
  const [only = null, ...others] = currencies ?? [];
  const told = read(currencyField) ?? (others.length === 0 ? only : null);
  const currency = typeof told === 'string' ? told.toUpperCase() : '';
  return { value: String(value), currency: isCurrency(currency) ? currency : null };
}
