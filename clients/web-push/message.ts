/** What a push brings, as `composeForWeb` wrote it: whatever has no value has no key. */
export type Message = {
  id: string;
  title: string;
  body: string;
  image?: string;
  icon?: string;
  link?: string;
  actions?: readonly { id: string; label: string; link?: string }[];
  /** Of the site, under keys of its own. */
  data?: Readonly<Record<string, string>>;
};

/** What a notification of ours carries in its `data` beside what is the site's, under a key that is reserved: `postillion_message`. */
export type Carried = {
  id: string;
  link: string | null;
  /** Of the buttons that have one, by their id. */
  links: Readonly<Record<string, string>>;
};

/** What TypeScript's own type does not have yet. */
export type ShownOptions = Omit<NotificationOptions, 'actions'> & {
  image?: string;
  actions?: readonly { action: string; title: string }[];
};

/** Null for what is none of ours. */
export function readMessage(text: string | null): Message | null {
  try {
    const message = JSON.parse(text ?? '') as Partial<Message> | null; // Checked as far as it is needed.
    return typeof message?.id === 'string' && typeof message.title === 'string' ? (message as Message) : null;
  } catch {
    return null;
  }
}

/** `actionsMax` is how many buttons the browser shows; of more it shows the first. */
export function toOptions(message: Message, actionsMax: number) {
  const { id, body, image, icon, link, actions = [], data } = message;
  const links = actions.flatMap((action) =>
    action.link === undefined ? [] : [[action.id, action.link] as const],
  );
  const carried: Carried = { id, link: link ?? null, links: Object.fromEntries(links) };
  return {
    body,
    ...(image !== undefined && { image }),
    ...(icon !== undefined && { icon }),
    // A message that came twice is shown once.
    tag: id,
    actions: actions.slice(0, actionsMax).map((action) => ({ action: action.id, title: action.label })),
    data: { ...data, postillion_message: carried },
  } satisfies ShownOptions;
}

/** Null for a notification that the site has shown by itself. */
export function readCarried(data: unknown): Carried | null {
  return (data as { postillion_message?: Carried } | null)?.postillion_message ?? null; // As `toOptions` wrote it.
}

/**
 * Where a click leads: to the button's link, or else to the message's. Null for no link, and for one that a browser must
 * not be sent to: `https` only, or the site itself.
 */
export function linkOf(carried: Carried, actionId: string, siteUrl: string): string | null {
  const link = (Object.hasOwn(carried.links, actionId) ? carried.links[actionId] : null) ?? carried.link;
  if (link === null) return null;
  try {
    const url = new URL(link, siteUrl);
    return url.protocol === 'https:' || url.origin === new URL(siteUrl).origin ? url.href : null;
  } catch {
    return null;
  }
}
