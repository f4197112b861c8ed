import { type Static, Type } from 'typebox';
import { subjectLengthMax } from '../channels/email/email.ts';
import { valueNamePattern } from '../channels/placeholders.ts';
import { instant, nameText, optionalText, scalar, textOrNull } from '../platform/http/shapes.ts';
import type { TextFormat } from '../platform/http/validation.ts';
import { isUuid } from '../platform/ids.ts';

/** Of HTML and of text, in UTF-8. */
export const bodyBytesMax = 2 * 1_048_576;

/** Text formats of this room's schemas, to be handed to `createValidation`. */
export const templateFormats: Record<string, TextFormat> = {
  'template-body': {
    test: (text) => Buffer.byteLength(text) <= bodyBytesMax,
    mustBe: 'at most 2 MB',
  },
  'template-ids': {
    test: (text) => text.length <= 4_000 && text.split(',').every(isUuid),
    mustBe: 'ids, separated by commas',
  },
};

export const templateNameLengthMax = 100;

const templateName = nameText(templateNameLengthMax);

const contentFields = {
  subject: optionalText({
    minLength: 1,
    maxLength: subjectLengthMax,
    format: 'filled-line',
    description: 'Taken where an email has none of its own.',
  }),
  html: optionalText({ minLength: 1, format: 'template-body', description: 'HTML body, at most 2 MB.' }),
  text: optionalText({
    minLength: 1,
    format: 'template-body',
    description: 'Plain text body, at most 2 MB; generated from the HTML when omitted.',
  }),
  preview_text: optionalText({
    minLength: 1,
    maxLength: 500,
    format: 'filled-line',
    description: 'What mail clients show beside the subject.',
  }),
};

/** Body of `POST /templates`. That there is HTML or text is checked in templates.ts. */
export const templateBody = Type.Object(
  { name: templateName, ...contentFields },
  { title: 'CreateTemplateRequest', additionalProperties: false, rules: ['template-content'] },
);

export type TemplateBody = Static<typeof templateBody>;

/** Body of `PATCH /templates/:id`. */
export const templatePatch = Type.Object(
  { name: Type.Optional(templateName), ...contentFields },
  { title: 'UpdateTemplateRequest', additionalProperties: false },
);

export type TemplatePatch = Static<typeof templatePatch>;

const listedFields = {
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  subject: textOrNull,
  preview_text: textOrNull,
  variables: Type.Array(Type.String(), { description: 'The names of its placeholders.' }),
  source_gallery_template_id: textOrNull,
  created_at: instant,
  updated_at: instant,
};

/** As it stands in a list: without its bodies. */
export const listedTemplateRecord = Type.Object(listedFields, { title: 'ListedTemplate' });

export type ListedTemplateRecord = Static<typeof listedTemplateRecord>;

const warnings = Type.Array(Type.String(), {
  description: 'Likely mistakes, in words: placeholders of other template languages stay as written.',
});

export const templateRecord = Type.Object(
  { ...listedFields, html: textOrNull, text: textOrNull, warnings },
  { title: 'Template' },
);

export type TemplateRecord = Static<typeof templateRecord>;

/** Body of `POST /templates/:id/render`. */
export const renderBody = Type.Object(
  {
    variables: Type.Optional(
      Type.Record(Type.String({ pattern: valueNamePattern }), scalar, {
        additionalProperties: false,
        description: 'Values by the names of placeholders.',
      }),
    ),
  },
  { title: 'RenderTemplateRequest', additionalProperties: false },
);

export const renderedRecord = Type.Object(
  {
    subject: textOrNull,
    html: textOrNull,
    text: textOrNull,
    missing_variables: Type.Array(Type.String(), { description: 'Names for which no value was given.' }),
    warnings,
  },
  { title: 'RenderedTemplate' },
);
