import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import { compileSms, fillSms, readAlphabet } from '../channels/sms/sms.ts';
import type { StoredSmsContent } from './stored.ts';
import type { Submission } from '../messages/messages.ts';
import { submitSms } from './send.ts';
import type { PreparedMessage, Sample, SampleCopy, TestCopy } from '../campaigns/campaigns.ts';

/** Sample copies of an SMS campaign, before it is sent. */

export function renderSmsSample(message: PreparedMessage, copy: SampleCopy): Sample | null {
  const body = renderCopy(message, copy);
  if (body === null) return null;
  const { encoding, segments } = readAlphabet(body);
  const warnings = [...findWarnings(body), ...describeForeignSyntax([textOf(message)])];
  return { record: { from: message.sender, body, encoding, segments }, warnings };
}

function renderCopy(message: PreparedMessage, { values }: SampleCopy): string | null {
  return fillSms(compileSms(textOf(message)), values);
}

function textOf({ content }: PreparedMessage): string {
  return (JSON.parse(content) as StoredSmsContent).text; // As campaigns.ts wrote it.
}

/** Warns of texts that may cost more than intended. Warnings do not prevent sending. */
function findWarnings(body: string): string[] {
  const { encoding, segments } = readAlphabet(body);
  const warnings: string[] = [];
  if (segments > 1)
    warnings.push(`This copy is sent in ${segments} segments, each of which counts as one text.`);
  if (encoding === 'ucs2')
    warnings.push(
      `A segment holds ${segments > 1 ? '67 characters instead of 153' : '70 characters instead of 160'}, because of ` +
        `what the GSM alphabet does not have: ${listForeign(body)}.`,
    );
  return warnings;
}

/** Characters named in a warning. More would add nothing. */
const foreignMax = 5;

/** Lists the characters that are not in the GSM alphabet, each once. */
function listForeign(body: string): string {
  const foreign = [...new Set(body)].filter((character) => readAlphabet(character).encoding === 'ucs2');
  const shown = foreign.slice(0, foreignMax).map(describeCharacter);
  return foreign.length > foreignMax ? `${shown.join(', ')} and others` : shown.join(', ');
}

/** Includes the code, since an invisible character is the usual cause. */
function describeCharacter(character: string): string {
  const code = `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}`;
  return /[\p{L}\p{N}\p{P}\p{S}]/u.test(character) ? `“${character}” (${code})` : code;
}

export function submitSmsTest(message: PreparedMessage, copy: TestCopy): Submission | null {
  const text = renderCopy(message, copy);
  if (text === null) return null;
  const { organizationId, to } = copy;
  const { sender, category } = message;
  return submitSms({
    organizationId,
    sender,
    to,
    text,
    category,
    // The response to a test names them for all of its messages.
    missingVariables: [],
    warnings: [],
    idempotencyKey: null,
  });
}
