import {
  listTemplateParameters,
  listTemplateTexts,
  listTemplateWarnings,
  type TemplateButton,
  type TemplateComponent,
  type TemplateContent,
} from '../channels/chatapp/chatapp.ts';
import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import { describeRefusals } from './refusals.ts';
import { findUnsendability } from './review.ts';
import type { ButtonShape, ComponentShape, ContentRecord, TemplateRecord } from './schema.ts';
import type { TemplateRow } from './store.ts';

export function showTemplate(row: TemplateRow): TemplateRecord {
  const { content } = row;
  const unsendability = findUnsendability(row);
  return {
    id: row.id,
    name: row.name,
    language: row.language,
    category: row.category,
    ...showContent(content),
    edit: row.edited_content && showContent(row.edited_content),
    parameters: listTemplateParameters(content),
    status: row.status,
    rejection_reason: row.rejection_reason,
    sendable: unsendability === null,
    sendable_reason: unsendability,
    quality: row.quality,
    provider_category: row.provider_category,
    warnings: listWarnings(row),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    reviewed_at: row.reviewed_at?.toISOString() ?? null,
  };
}

/** What it says, in the fields of the API. */
export function showContent(content: TemplateContent): ContentRecord {
  return {
    components: content.kind === 'written' ? content.components.map(showComponent) : null,
    examples: content.kind === 'written' ? { ...content.examples } : null,
    authentication:
      content.kind === 'code'
        ? {
            add_security_recommendation: content.addSecurityRecommendation,
            code_expiration_minutes: content.codeExpirationMinutes,
            button: { type: 'copy_code', text: content.buttonText },
          }
        : null,
  };
}

function showComponent(component: TemplateComponent): ComponentShape {
  switch (component.type) {
    case 'header':
      return { type: 'header', format: 'text', text: component.text };
    case 'buttons':
      return { type: 'buttons', buttons: component.buttons.map(showButton) };
    case 'body':
    case 'footer':
      return component;
  }
}

function showButton(button: TemplateButton): ButtonShape {
  if (button.type !== 'phone_number') return button;
  const { phoneNumber, ...rest } = button;
  return { ...rest, phone_number: phoneNumber };
}

function listWarnings(row: TemplateRow): string[] {
  const { status, problem } = row;
  const refusals = describeRefusals(row);
  return [
    ...(status === 'pending' ? listTemplateWarnings(row.content) : []),
    ...describeForeignSyntax(listTemplateTexts(row.edited_content ?? row.content)),
    ...listMoves(row),
    ...(row.edit_refusal === null ? [] : [`The provider refused its last edit: ${row.edit_refusal}`]),
    ...(problem === null ? [] : [describeProblem(row, problem)]),
    ...(refusals === null ? [] : [refusals]),
  ];
}

function listMoves({ category, provider_category: moved, marketing_from: from }: TemplateRow): string[] {
  const until = from?.toISOString();
  if (until === undefined)
    return moved === null || moved === category
      ? []
      : [
          `The provider has moved it to the category ${moved}, and charges for that. It is still sent as ${category}.`,
        ];
  return moved === 'marketing'
    ? [
        `The provider has moved it to the category marketing, and charges for that. It is sent as ${category} until ${until}, to people who have not unsubscribed, and in campaigns alone from then on.`,
      ]
    : [
        `The provider will move it to the category marketing on ${until}. From then on it is sent in campaigns alone.`,
      ];
}

function describeProblem({ status, edited_content: edited }: TemplateRow, problem: string): string {
  if (edited !== null) return `It is not edited yet, which is tried again: ${problem}`;
  return status === 'pending'
    ? `It is not submitted yet, which is tried again: ${problem}`
    : `The provider says: ${problem}`;
}
