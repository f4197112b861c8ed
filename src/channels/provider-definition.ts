import type { Setting } from '../platform/setting.ts';
import type { ProviderCallbacks } from './provider-callbacks.ts';

/**
 * A provider as the installation knows it before it is made: one folder under `<channel>/providers/`, whose
 * `definition.ts` says this, and one line in the registry next to it. Settings, choices, what a start says and what the
 * doctor says come from here. Every process reads the definitions of all providers, so that a definition imports what
 * it makes only when it is asked to.
 */
export type ProviderDefinition<Settings extends ProviderSettings, Tools, Provider, Told> = {
  /** Its own settings, by their names. */
  settings: Settings;
  /** What must be set where it is chosen, and why, unless the name says it. */
  requires: readonly { setting: NameOf<Settings> | SharedSetting; why?: string }[];
  /** The setting that chooses it where none is named; the first in the registry goes before the others. */
  isChosenBy: NameOf<Settings> | null;
  words: {
    /** What follows its name in the documentation of settings: `hands it to the server of POSTILLION_SMTP_URL`. */
    settings: string;
    /** What a start says: `Email leaves through your SMTP server`. */
    greeting: string;
    /** What the doctor advises where it cannot be used. */
    advice: string;
  };
  /** Whether all of it stays in the built-in inbox, so that nothing leaves the machine. */
  isSandbox: boolean;
  /**
   * Reads them, and throws in words for the operator where one of them cannot be read. Each start and the doctor do so
   * with the provider that is chosen. Absent if their types say all that there is to say.
   */
  readSettings?: (values: SettingValues<Settings>) => unknown;
  /**
   * What does not work as things are set, while all else does: told by a start and by the doctor. `publicUrl` is
   * POSTILLION_PUBLIC_URL, or null. Settings that cannot be read are no matter of it. Absent if there is never any such
   * thing.
   */
  findShortcoming?: (
    values: SettingValues<Settings>,
    publicUrl: string | null,
  ) => Promise<Shortcoming | null>;
  /**
   * How many processes of one machine may hand off, since the other side counts together what all of them do: its
   * connections, its window, its rate. Each has its part of it (`ProcessShare`). Absent if any number may.
   */
  processesMax?: (values: SettingValues<Settings>) => Promise<number>;
  create: (tools: Tools, values: SettingValues<Settings>) => Promise<Provider>;
  /** The requests by which it reports what became of messages, and anything else. Absent if it makes none. */
  callbacks?: (values: SettingValues<Settings>) => Promise<ProviderCallbacks<Told>>;
};

export type Shortcoming = { found: string; advice: string };

export type ProviderSettings = Readonly<Record<string, Setting>>;

/** Settings of the whole installation that a provider may require. */
export type SharedSetting = 'POSTILLION_PUBLIC_URL';

export type SettingValues<Settings extends ProviderSettings> = Readonly<Record<NameOf<Settings>, string>>;

type NameOf<Settings> = keyof Settings & string;

/** Of whatever channel and settings: what is read without making anything. */
export type DescribedProvider = Omit<
  ProviderDefinition<ProviderSettings, never, unknown, unknown>,
  'create' | 'callbacks' | 'findShortcoming' | 'processesMax' | 'readSettings'
>;

/** Providers by their names. */
type Registry = Readonly<Record<string, DescribedProvider>>;

export type ProviderName<Providers extends Registry> = keyof Providers & string;

export type ProviderSettingName<Providers extends Registry> = {
  [Name in keyof Providers]: NameOf<Providers[Name]['settings']>;
}[keyof Providers];

export function namesOf<Providers extends Registry>(providers: Providers): ProviderName<Providers>[] {
  return Object.keys(providers);
}

/** The settings of all of them, in the order of the registry. */
export function settingsOf<Providers extends Registry>(
  providers: Providers,
): Readonly<Record<ProviderSettingName<Providers>, Setting>> {
  const entries = Object.values(providers).flatMap(({ settings }) => Object.entries(settings));
  return Object.fromEntries(entries) as Record<ProviderSettingName<Providers>, Setting>; // All of them are there.
}

/** As in `sandbox keeps it in the built-in inbox, smtp hands it to …`. */
export function describeProviders(providers: Registry): string {
  return Object.entries(providers)
    .map(([name, { words }]) => `${name} ${words.settings}`)
    .join(', ');
}

/** Which one is taken where none is named and a setting chooses one: `smtp where POSTILLION_SMTP_URL is set`. */
export function describeChoice(providers: Registry): string {
  const chosen = Object.entries(providers).filter(([, { isChosenBy }]) => isChosenBy !== null);
  return chosen.length > 1
    ? 'the one whose URL is set'
    : chosen.map(([name, { isChosenBy }]) => `${name} where ${isChosenBy ?? ''} is set`).join('');
}

/** The settings of which one chooses a provider by being there. */
export function choosingSettings(providers: Registry): string[] {
  return Object.values(providers).flatMap(({ isChosenBy }) => (isChosenBy === null ? [] : [isChosenBy]));
}
