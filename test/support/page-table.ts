import type { Installation } from '../../src/installation/opening.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import type { WebPage } from '../../src/platform/http/route.ts';
import { listPages, listRoutes } from '../../src/roles/api.ts';
import { textFormats } from '../../src/roles/text-formats.ts';
import { openGallery } from '../../src/templates/templates.ts';

/** Every page that the API of this installation serves, for tests that hold for all of them. */
export function listPagesOf(
  installation: Installation,
  routes = listRoutes(installation),
): Promise<WebPage[]> {
  return listPages(installation, {
    routes,
    validation: createValidation(textFormats),
    loadGallery: openGallery(`${import.meta.dirname}/../../gallery`),
    recorder: { note: () => undefined, stop: () => Promise.resolve() },
    onContactsChanged: () => undefined,
  });
}
