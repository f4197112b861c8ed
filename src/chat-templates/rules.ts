import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import type { ButtonShape, ComponentShape, TemplateBody } from './schema.ts';
import { findBodyIssues } from './template-body.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const chatTemplateRules: Record<
  'chat-template' | 'chat-template-component' | 'chat-template-button',
  FieldRule
> = {
  'chat-template': defineRule<TemplateBody>(findBodyIssues),
  'chat-template-component': defineRule<ComponentShape>(({ type }, isGiven) => [
    ...(type === undefined || type === 'header' || !isGiven('format')
      ? []
      : [`format must be left out where type is ${type}`]),
    ...findForm(isGiven, 'buttons', { type, isWanted: type === 'buttons' }),
    ...findForm(isGiven, 'text', { type, isWanted: type !== 'buttons' }),
  ]),
  'chat-template-button': defineRule<ButtonShape>(({ type }, isGiven) => [
    ...findForm(isGiven, 'url', { type, isWanted: type === 'url' }),
    ...findForm(isGiven, 'phone_number', { type, isWanted: type === 'phone_number' }),
  ]),
};

/** Of a field that some types need, and no others may have. */
function findForm(
  isGiven: (name: string) => boolean,
  field: string,
  { type, isWanted }: { type: string | undefined; isWanted: boolean },
): string[] {
  if (type === undefined || isGiven(field) === isWanted) return [];
  return [`${field} ${isWanted ? 'is required' : 'must be left out'} where type is ${type}`];
}
