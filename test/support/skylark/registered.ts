import { emailProviders } from '../../../src/channels/email/providers/registry.ts';
import type { Config } from '../../../src/config.ts';
import { skylark } from './definition.ts';

/** Adds Skylark's line to the registry of providers. Other test files share the registry: it must be removed again. */
export function registerSkylark(): { unregister: () => void } {
  const registry: Record<string, unknown> = emailProviders;
  registry.skylark = skylark;
  return {
    unregister: () => {
      delete registry.skylark;
    },
  };
}

/** What a server is started with that hands its email to Skylark at this address. */
export function settingsOfSkylark(url: string): Pick<Config, 'emailProvider' | 'publicUrl'> & {
  providerSettings: Partial<Config['providerSettings']>;
} {
  return {
    // The compiler knows only the providers of the program.
    emailProvider: 'skylark' as Config['emailProvider'],
    publicUrl: 'https://post.test',
    providerSettings: { POSTILLION_SKYLARK_URL: url } as Partial<Config['providerSettings']>,
  };
}
