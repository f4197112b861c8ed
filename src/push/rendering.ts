import { fitsEveryPlatform } from '../channels/push/notification.ts';
import {
  type CompiledText,
  compileText,
  fillText,
  listPlaceholders,
  type Values,
} from '../channels/placeholders.ts';
import { codeUnitsMax, isLongerThan } from '../platform/characters.ts';
import {
  bodyLengthMax,
  isHttpsUrl,
  labelLengthMax,
  type PushContentBody,
  titleLengthMax,
  urlLengthMax,
} from './schema.ts';
import { toPushContent } from './stored.ts';

/**
 * What the push of a campaign says to each contact. Every text that a person reads, an app opens or an app is given may
 * have placeholders; the names of channels, buttons and keys may not, since apps know them by heart. A filled push keeps
 * the rules of one that is sent to a single contact.
 */
export type CompiledPush = {
  content: PushContentBody;
  /** By their forms, since a title may say what a link is. */
  texts: Readonly<Record<'text' | 'url', ReadonlyMap<string, CompiledText>>>;
};

export type FilledPush =
  | { kind: 'filled'; content: PushContentBody }
  /** `diagnostic` is a sentence. */
  | { kind: 'unfit'; reason: 'invalid_message' | 'message_too_large'; diagnostic: string };

type TextKind = 'title' | 'body' | 'label' | 'image' | 'link' | 'data';

export function compilePush(content: PushContentBody): CompiledPush {
  const texts = { text: new Map<string, CompiledText>(), url: new Map<string, CompiledText>() };
  mapTexts(content, (text, kind) => {
    texts[formOf(kind)].set(text, compileText(text, formOf(kind)));
    return text;
  });
  return { content, texts };
}

function formOf(kind: TextKind): 'text' | 'url' {
  return kind === 'image' || kind === 'link' ? 'url' : 'text';
}

/** The names of the placeholders, each once. */
export function listPushPlaceholders(content: PushContentBody): string[] {
  return listPlaceholders(textsOf(content), Number.POSITIVE_INFINITY);
}

/** What is left of it where every value is empty: no copy is smaller. */
export function withoutPlaceholders(content: PushContentBody): PushContentBody {
  return mapTexts(content, (text) => compileText(text, 'text').literals.join(''));
}

/** Of a data payload, which has no other limit than the size of the whole. */
const dataLengthMax = 4_096;

const lengthsMax: Readonly<Record<TextKind, number>> = {
  title: titleLengthMax,
  body: bodyLengthMax,
  label: labelLengthMax,
  image: urlLengthMax,
  link: urlLengthMax,
  data: dataLengthMax,
};

/** What has no value stays as it was written. A link that is filled with nothing is left out. */
export function fillPush({ content, texts }: CompiledPush, values: Values): FilledPush {
  let problem: FilledPush | null = null;
  const filled = mapTexts(content, (text, kind, name) => {
    const compiled = texts[formOf(kind)].get(text) ?? compileText(text, formOf(kind));
    if (compiled.placeholders.length === 0) return text;
    const found = fillText(compiled, values, codeUnitsMax(lengthsMax[kind]));
    if (found === null || isLongerThan(found, lengthsMax[kind])) {
      problem ??=
        kind === 'data'
          ? tooLarge
          : unfit(`${name} has more than ${lengthsMax[kind]} characters with its placeholders filled.`);
      return '';
    }
    const line = kind === 'body' || kind === 'data' ? found : found.replace(/[\r\n]+/g, ' ');
    if (isRequired[kind] && line.trim() === '')
      problem ??= unfit(`${name} is empty with its placeholders filled.`);
    if (kind === 'image' && !isHttpsUrl(line))
      problem ??= unfit(`${name} is not an https URL with its placeholders filled.`);
    return line;
  });
  if (problem !== null) return problem;
  return fitsEveryPlatform(toPushContent(filled)) ? { kind: 'filled', content: filled } : tooLarge;
}

const isRequired: Readonly<Record<TextKind, boolean>> = {
  title: true,
  body: true,
  label: true,
  image: false,
  link: false,
  data: false,
};

const tooLarge: FilledPush = {
  kind: 'unfit',
  reason: 'message_too_large',
  diagnostic: 'The push is larger than a platform takes with its placeholders filled.',
};

function unfit(diagnostic: string): FilledPush {
  return { kind: 'unfit', reason: 'invalid_message', diagnostic };
}

/** Those that may have placeholders. */
export function textsOf(content: PushContentBody): string[] {
  const texts: string[] = [];
  mapTexts(content, (text) => {
    texts.push(text);
    return text;
  });
  return texts;
}

/** The content with its texts changed, of which `name` is the path. Links that become empty are left out. */
function mapTexts(
  content: PushContentBody,
  change: (text: string, kind: TextKind, name: string) => string,
): PushContentBody {
  const {
    title,
    body,
    image_url: image,
    icon_url: icon,
    deep_link: link,
    action_buttons: buttons,
    data_payload: data,
    ...rest
  } = content;
  return {
    title: change(title, 'title', 'title'),
    body: change(body, 'body', 'body'),
    ...(image !== undefined && { image_url: change(image, 'image', 'image_url') }),
    ...(icon !== undefined && { icon_url: change(icon, 'image', 'icon_url') }),
    ...changeLink(link, (text) => change(text, 'link', 'deep_link')),
    ...(buttons !== undefined && {
      action_buttons: buttons.map(({ action_id, label, deep_link }, index) => ({
        action_id,
        label: change(label, 'label', `action_buttons[${index}].label`),
        ...changeLink(deep_link, (text) => change(text, 'link', `action_buttons[${index}].deep_link`)),
      })),
    }),
    ...(data !== undefined && {
      data_payload: Object.fromEntries(
        Object.entries(data).map(([key, text]) => [key, change(text, 'data', `data_payload.${key}`)]),
      ),
    }),
    ...rest,
  };
}

function changeLink(link: string | undefined, change: (text: string) => string): { deep_link?: string } {
  const changed = link === undefined ? '' : change(link);
  return changed === '' ? {} : { deep_link: changed };
}
