import {
  fillTemplate,
  listTemplateTexts,
  type TemplateContent,
  type TemplateParameters,
} from '../channels/chatapp/template.ts';
import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import type { Values } from '../channels/placeholders.ts';
import type { PreparedMessage, Sample, SampleCopy, TestCopy } from '../campaigns/campaigns.ts';
import type { Submission } from '../messages/messages.ts';
import { compileParameters, fillParameters, findParameterIssues } from './parameters.ts';
import { submitChatApp } from './send.ts';
import type { StoredChatAppContent, StoredChatAppDetails } from './stored.ts';

/** Sample copies of a chat-app campaign, before it is sent. */

export function renderChatAppSample(message: PreparedMessage, copy: SampleCopy): Sample | null {
  const filled = fillCopy(message, copy.values);
  const bubble = filled && fillTemplate(filled.template, filled.parameters);
  if (bubble === null) return null;
  const { header, body, footer } = bubble;
  const buttons = bubble.buttons.map((button) => ({
    text: button.text,
    url: button.type === 'url' ? button.url : null,
    phone_number: button.type === 'phone_number' ? button.phoneNumber : null,
  }));
  return {
    record: { header, body, footer, buttons },
    warnings: describeForeignSyntax(filled?.written ?? []),
  };
}

type FilledCopy = {
  stored: StoredChatAppContent;
  template: TemplateContent;
  parameters: TemplateParameters;
  /** What the campaign's author and the template's have written. */
  written: readonly string[];
};

/** Null if its values make it impossible to send. */
function fillCopy({ content }: PreparedMessage, values: Values): FilledCopy | null {
  const stored = JSON.parse(content) as StoredChatAppContent; // As campaigns.ts wrote it.
  const { template, defaults } = stored;
  if (template === undefined) return null;
  const parameters = fillParameters(compileParameters(stored.parameters), { ...defaults, ...values });
  const written = [...listTemplateTexts(template), ...Object.values(stored.parameters)];
  return findParameterIssues(template, parameters).length > 0
    ? null
    : { stored, template, parameters, written };
}

/** As `POST /chatapp/send` would send it to a number, also of a marketing template: whoever tests it knows. */
export function submitChatAppTest(message: PreparedMessage, copy: TestCopy): Submission | null {
  const filled = fillCopy(message, copy.values);
  if (filled === null) return null;
  const { stored, template: content, parameters } = filled;
  const { template: name, language } = JSON.parse(message.details) as StoredChatAppDetails;
  return submitChatApp({
    organizationId: copy.organizationId,
    recipient: { to: copy.to, contactId: null },
    template: { id: stored.template_id, name, language, category: stored.category, content },
    parameters,
    idempotencyKey: null,
  });
}
