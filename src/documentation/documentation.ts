/** The front door: the pages by which the service describes itself. */
export { documentationPages } from './documentation-pages.ts';
export { fitNavigation, startPage } from './start-page.ts';
