import { Ajv } from 'ajv';
import { type Described, readDescription } from './graph-description.ts';

/**
 * The shapes of Meta's published description of the API (github.com/facebook/openapi, business-messaging-api_v23.0),
 * as far as we use them, in our own words. The stand-in checks what it gets by them, and a test what it sends. Where the
 * description itself is at hand (graph-description.ts), both are checked by it, too.
 */

const ajv = new Ajv({ allErrors: false, strict: true });

const described = readDescription();

/** What is wrong with a value, or null. */
type Shape = (value: unknown) => string | null;

function shape(name: keyof Described, schema: object): Shape {
  const validators = [ajv.compile(schema), ...(described === null ? [] : [described[name]])];
  return (value) => {
    const refusing = validators.find((isValid) => !isValid(value));
    return refusing === undefined ? null : ajv.errorsText(refusing.errors);
  };
}

const text = { type: 'string' } as const;
const digits = { type: 'string', pattern: '^[0-9]+$' } as const;

function object(
  properties: Readonly<Record<string, object>>,
  required: readonly string[] = Object.keys(properties),
  isClosed = true,
) {
  return { type: 'object', properties, required, additionalProperties: !isClosed };
}

function list(items: object, minItems = 1) {
  return { type: 'array', items, minItems };
}

const textParameter = object({ type: { const: 'text' }, text: { ...text, minLength: 1, maxLength: 32_768 } });
const namedParameter = object({
  type: { const: 'text' },
  text: { ...text, minLength: 1, maxLength: 32_768 },
  parameter_name: { ...text, pattern: '^[a-z_][a-z0-9_]*$' },
});
const anyTextParameter = { anyOf: [textParameter, namedParameter] };

/** `TemplateMessage`. `biz_opaque_callback_data` stands in the description of calls only. */
export const findMessageFault = shape(
  'isMessage',
  object({
    messaging_product: { const: 'whatsapp' },
    recipient_type: { const: 'individual' },
    to: digits,
    type: { const: 'template' },
    biz_opaque_callback_data: { ...text, minLength: 1, maxLength: 512 },
    template: object(
      {
        name: text,
        language: object({ policy: { const: 'deterministic' }, code: text }),
        components: list({
          anyOf: [
            object({ type: { enum: ['header', 'body'] }, parameters: list(anyTextParameter) }),
            object({
              type: { const: 'button' },
              sub_type: { const: 'url' },
              index: { type: 'string', pattern: '^[0-9]$' },
              parameters: list(textParameter),
            }),
          ],
        }),
      },
      ['name', 'language'],
    ),
  }),
);

const namedExample = list(object({ param_name: text, example: { ...text, minLength: 1 } }));

const components = list({
  anyOf: [
    object(
      {
        type: { const: 'HEADER' },
        format: { const: 'TEXT' },
        text,
        example: object({ header_text_named_params: namedExample }),
      },
      ['type', 'format', 'text'],
    ),
    object({ type: { const: 'BODY' }, text, example: object({ body_text_named_params: namedExample }) }, [
      'type',
      'text',
    ]),
    object({ type: { const: 'BODY' }, add_security_recommendation: { type: 'boolean' } }),
    object({ type: { const: 'FOOTER' }, text }),
    object({
      type: { const: 'FOOTER' },
      code_expiration_minutes: { type: 'integer', minimum: 1, maximum: 90 },
    }),
    object({
      type: { const: 'BUTTONS' },
      buttons: list({
        anyOf: [
          object({ type: { const: 'QUICK_REPLY' }, text }),
          object({ type: { const: 'PHONE_NUMBER' }, text, phone_number: digits }),
          object({ type: { const: 'URL' }, text, url: text, example: list(text) }, ['type', 'text', 'url']),
          object({ type: { const: 'OTP' }, otp_type: { const: 'COPY_CODE' }, text }),
        ],
      }),
    }),
  ],
});

const ttl = { type: 'integer', minimum: 30, maximum: 900 } as const;

/** The body by which a template is submitted. */
export const findTemplateFault = shape(
  'isTemplate',
  object(
    {
      name: { ...text, pattern: '^[a-z0-9_]{1,512}$' },
      language: text,
      category: { enum: ['MARKETING', 'UTILITY', 'AUTHENTICATION'] },
      parameter_format: { const: 'NAMED' },
      message_send_ttl_seconds: ttl,
      components,
    },
    ['name', 'language', 'category', 'components'],
  ),
);

/** The body by which it is edited. */
export const findTemplateEditFault = shape(
  'isTemplateEdit',
  object({ message_send_ttl_seconds: ttl, components }, ['components']),
);

const status = object(
  {
    id: text,
    status: { enum: ['sent', 'delivered', 'read', 'failed'] },
    timestamp: digits,
    recipient_id: digits,
    recipient_user_id: text,
    biz_opaque_callback_data: text,
    errors: list(
      object(
        {
          code: { type: 'integer' },
          title: text,
          message: text,
          href: text,
          error_data: object({ details: text }),
        },
        ['code', 'title'],
      ),
    ),
  },
  ['id', 'status', 'timestamp'],
);

const message = object(
  { from: digits, id: text, timestamp: digits, type: text },
  ['from', 'id', 'timestamp'],
  false,
);

/** `WebhookPayload`, of the field `messages` alone: the description knows no others of ours. */
export const findWebhookFault = shape(
  'isWebhook',
  object({
    object: { const: 'whatsapp_business_account' },
    entry: list(
      object({
        id: digits,
        changes: list(
          object({
            field: text,
            value: object(
              {
                messaging_product: { const: 'whatsapp' },
                metadata: object({ display_phone_number: digits, phone_number_id: digits }),
                statuses: list(status),
                messages: list(message),
              },
              ['messaging_product', 'metadata'],
              false,
            ),
          }),
        ),
      }),
    ),
  }),
);
