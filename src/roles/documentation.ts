import type { Page } from '../platform/http/route.ts';

export function documentationPages(): Page[] {
  return [];
}
