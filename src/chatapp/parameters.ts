import {
  codeParameter,
  fillTemplateText,
  findComponent,
  hasControlCharacters,
  listTemplateParameters,
  type TemplateContent,
  type TemplateParameters,
} from '../channels/chatapp/template.ts';
import { type CompiledText, compileText, fillText, type Values } from '../channels/placeholders.ts';
import { isLongerThan } from '../platform/characters.ts';

/** Values for the placeholders of a template, and what the provider is known to refuse of them. */

/** The texts that fill the parameters of a campaign, cut at their own placeholders. */
export type CompiledParameters = ReadonlyMap<string, CompiledText>;

export function compileParameters(parameters: TemplateParameters): CompiledParameters {
  return new Map(Object.entries(parameters).map(([name, text]) => [name, compileText(text, 'text')]));
}

/** More than any filled text may have. */
const filledUnitsMax = 8_192;

/**
 * The parameters for one contact. White space and control characters are folded, since the field of a contact is not the sender's typing. A
 * parameter is empty if one of its placeholders has no value, or it is too long for any template: both are refused.
 */
export function fillParameters(compiled: CompiledParameters, values: Values): TemplateParameters {
  return Object.fromEntries(
    [...compiled].map(([name, text]) => {
      const isWhole = text.placeholders.every((placeholder) => Object.hasOwn(values, placeholder.name));
      const filled = isWhole ? fillText(text, values, filledUnitsMax) : null;
      return [name, (filled ?? '').replace(/[\s\p{Cc}]+/gu, ' ').trim()];
    }),
  );
}

/** Names that a message lists; more would not be read. */
const namesShownMax = 20;

/** What is wrong with the values of a message, each text beginning with the path of its field. */
export function findParameterIssues(content: TemplateContent, parameters: TemplateParameters): string[] {
  const wanted = listTemplateParameters(content);
  const issues = findNameIssues(wanted, parameters);
  if (issues.length > 0) return issues;
  const ofValues = wanted.flatMap((name) => {
    const problem = findValueProblem(content, parameters[name] ?? '');
    return problem === null ? [] : [`parameters.${name} ${problem}`];
  });
  return ofValues.length > 0 ? ofValues : findLengthIssues(content, parameters);
}

/** Whether there is a value for each of the wanted names, and for no other. */
export function findNameIssues(wanted: readonly string[], parameters: TemplateParameters): string[] {
  const missing = wanted.filter((name) => !Object.hasOwn(parameters, name));
  const extra = Object.keys(parameters).filter((name) => !wanted.includes(name));
  return [
    ...(missing.length > 0 ? [`parameters lacks ${listNames(missing)}`] : []),
    ...(extra.length > 0 ? [`parameters has ${listNames(extra)}, which the template does not have`] : []),
  ];
}

function listNames(names: readonly string[]): string {
  const shown = names.slice(0, namesShownMax).map(showStart).join(', ');
  return names.length > namesShownMax ? `${shown} and ${names.length - namesShownMax} more` : shown;
}

function showStart(name: string): string {
  return name.length > 64 ? `${name.slice(0, 64).toWellFormed()}…` : name;
}

const codeLengthMax = 15;

/** The value itself is never shown: it may be a code. */
function findValueProblem({ kind }: TemplateContent, value: string): string | null {
  if (value.trim() === '') return 'must not be empty';
  // The provider refuses all three.
  if (/[\r\n\t]/.test(value)) return 'must not contain a line break or a tab';
  if (hasControlCharacters(value)) return 'must not contain control characters';
  if (/ {5}/.test(value)) return 'must not contain more than four blanks in a row';
  if (kind === 'code' && isLongerThan(value, codeLengthMax))
    return `must be at most ${codeLengthMax} characters`;
  return null;
}

/** What a person may get, with its values filled in; the rules of a template have the same numbers without them. */
const filledLengthsMax = { header: 60, body: 1_024, footer: 60, url: 2_000 } as const;

type FilledPart = keyof typeof filledLengthsMax;

function findLengthIssues(content: TemplateContent, parameters: TemplateParameters): string[] {
  if (content.kind === 'code') return [];
  const texts: [FilledPart, string][] = (['header', 'body', 'footer'] as const).flatMap((part) => {
    const component = findComponent(content, part);
    return component === null ? [] : [[part, component.text]];
  });
  for (const button of findComponent(content, 'buttons')?.buttons ?? [])
    if (button.type === 'url') texts.push(['url', button.url]);
  return texts.flatMap(([part, text]) => {
    const filled = fillTemplateText(text, parameters);
    const lengthMax = filledLengthsMax[part];
    return filled === null || isLongerThan(filled, lengthMax)
      ? [`parameters make the ${nounOf[part]} longer than ${lengthMax} characters`]
      : [];
  });
}

const nounOf: Readonly<Record<FilledPart, string>> = {
  header: 'header',
  body: 'body',
  footer: 'footer',
  url: 'address of a button',
};

/** The parameters as they are stored, and the code, which is stored apart. */
export function takeCode(
  { kind }: TemplateContent,
  parameters: TemplateParameters,
): { shown: TemplateParameters; code: string | null } {
  if (kind !== 'code') return { shown: parameters, code: null };
  const { [codeParameter]: code = '', ...shown } = parameters;
  return { shown, code };
}

/** What takes the place of a code wherever it would be shown. */
export const redacted = '[redacted]';
