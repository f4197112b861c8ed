import { type Static, type TSchema, Type } from 'typebox';
import { templateCategories, templateQualities, templateStates } from '../channels/chatapp/chatapp.ts';
import { paginationParameters } from '../platform/http/pagination.ts';
import { instant, literals, textOrNull } from '../platform/http/shapes.ts';

const nullable = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()]);

export const templateStatuses = ['pending', 'approved', 'rejected'] as const;

const namePattern = '^[a-z][a-z0-9_]*$';
/** A language, a script and a region, as in `en`, `en_US` or `zh_Hant_TW`. */
const languagePattern = '^[a-z]{2,3}(_[A-Z][a-z]{3})?(_[A-Z]{2})?$';

const category = literals(templateCategories, { title: 'ChatAppTemplateCategory' });
const status = literals(templateStatuses, { title: 'ChatAppTemplateStatus' });

const componentTypes = ['header', 'body', 'footer', 'buttons'] as const;
const buttonTypes = ['quick_reply', 'url', 'phone_number'] as const;

const button = Type.Object(
  {
    type: literals(buttonTypes, { title: 'ChatAppButtonType' }),
    text: Type.String({ description: 'At most 25 characters, without placeholders.' }),
    url: Type.Optional(
      Type.String({ description: 'Of a `url`: https, and at most one placeholder, at its very end.' }),
    ),
    phone_number: Type.Optional(Type.String({ description: 'Of a `phone_number`: in E.164.' })),
  },
  { title: 'ChatAppButton', additionalProperties: false, rules: ['chat-template-button'] },
);

export type ButtonShape = Static<typeof button>;

/** More are refused in words of their own. */
const componentsMax = 20;

const component = Type.Object(
  {
    type: literals(componentTypes, { title: 'ChatAppComponentType' }),
    format: Type.Optional(
      Type.Literal('text', { description: 'Of a header: `text`, the only one there is.' }),
    ),
    text: Type.Optional(
      Type.String({
        description:
          'Of a header (60 characters, one placeholder), a body (1,024 characters) or a footer (60 characters, no placeholder).',
      }),
    ),
    buttons: Type.Optional(Type.Array(button, { maxItems: 10, description: 'Of `buttons`.' })),
  },
  { title: 'ChatAppComponent', additionalProperties: false, rules: ['chat-template-component'] },
);

export type ComponentShape = Static<typeof component>;

const examples = Type.Record(Type.String({ pattern: '^[a-z][a-z0-9_]{0,254}$' }), Type.String(), {
  additionalProperties: false,
  // A body of 1,024 characters has room for fewer.
  maxProperties: 250,
  description: 'For the reviewer: a value for each placeholder, by its name.',
});

const copyButton = Type.Object(
  {
    type: Type.Literal('copy_code'),
    text: Type.String({ description: 'At most 25 characters.' }),
  },
  { title: 'ChatAppCopyButton', additionalProperties: false },
);

const codeOptions = Type.Object(
  {
    add_security_recommendation: Type.Optional(
      Type.Boolean({ description: 'Whether the text asks to keep the code to oneself; `false` by default.' }),
    ),
    code_expiration_minutes: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 90,
        description: 'What the text says of its end; nothing if left out.',
      }),
    ),
    button: copyButton,
  },
  {
    title: 'ChatAppAuthenticationOptions',
    additionalProperties: false,
    description:
      "Of an `authentication` template. Its text is the provider's; the code is the parameter `code`.",
  },
);

/** Body of `POST /chatapp/templates`. */
export const templateBody = Type.Object(
  {
    name: Type.String({ minLength: 1, maxLength: 512, pattern: namePattern }),
    language: Type.String({ maxLength: 16, pattern: languagePattern, description: 'As in `en_US`.' }),
    category,
    components: Type.Optional(
      Type.Array(component, {
        minItems: 1,
        maxItems: componentsMax,
        description: 'Of a `marketing` or `utility` template: a body, and at most one of each other type.',
      }),
    ),
    examples: Type.Optional(examples),
    authentication: Type.Optional(codeOptions),
  },
  { title: 'CreateChatAppTemplateRequest', additionalProperties: false, rules: ['chat-template'] },
);

export type TemplateBody = Static<typeof templateBody>;

export const listQuery = Type.Object(
  {
    ...paginationParameters,
    name: Type.Optional(Type.String({ minLength: 1, maxLength: 512, description: 'Exactly this name.' })),
    language: Type.Optional(Type.String({ minLength: 1, maxLength: 16 })),
    status: Type.Optional(status),
    category: Type.Optional(category),
  },
  { additionalProperties: false },
);

/** Body of `PATCH /chatapp/templates/:id`. */
export const templatePatch = Type.Object(
  {
    components: Type.Optional(
      Type.Array(component, {
        minItems: 1,
        maxItems: componentsMax,
        description: 'All of them: those that are left out are removed.',
      }),
    ),
    examples: Type.Optional(examples),
    authentication: Type.Optional(codeOptions),
  },
  { title: 'UpdateChatAppTemplateRequest', additionalProperties: false },
);

export type TemplatePatch = Static<typeof templatePatch>;

const unsendabilities = templateStates.filter((state) => state !== 'approved');

const contentRecord = {
  components: nullable(Type.Array(component)),
  examples: nullable(Type.Record(Type.String(), Type.String())),
  authentication: nullable(
    Type.Object(
      {
        add_security_recommendation: Type.Boolean(),
        code_expiration_minutes: nullable(Type.Integer()),
        button: copyButton,
      },
      { title: 'ChatAppAuthentication' },
    ),
  ),
};

export const templateRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Type.String(),
    language: Type.String(),
    category,
    ...contentRecord,
    edit: Type.Union([Type.Object(contentRecord, { title: 'ChatAppTemplateEdit' }), Type.Null()], {
      description: 'What it is to say as soon as the provider has taken it; null if no edit is under way.',
    }),
    parameters: Type.Array(Type.String(), { description: 'The names that a message must give values for.' }),
    status,
    rejection_reason: textOrNull,
    sendable: Type.Boolean({ description: 'Whether messages can be made of it now.' }),
    sendable_reason: nullable(
      literals(unsendabilities, {
        title: 'ChatAppTemplateUnsendability',
        description: 'Why not: its review is not over, or what the provider has done with it since.',
      }),
    ),
    quality: literals(templateQualities, {
      title: 'ChatAppTemplateQuality',
      description: 'What the provider makes of the reactions to it.',
    }),
    provider_category: Type.Union([category, Type.Null()], {
      description: 'The category that the provider has it in, which it may change by itself.',
    }),
    warnings: Type.Array(Type.String(), { description: 'What you should know of it, in sentences.' }),
    created_at: instant,
    updated_at: instant,
    reviewed_at: nullable(instant),
  },
  { title: 'ChatAppTemplate' },
);

export type TemplateRecord = Static<typeof templateRecord>;

/** What a template says. */
export type ContentRecord = Pick<TemplateRecord, keyof typeof contentRecord>;
