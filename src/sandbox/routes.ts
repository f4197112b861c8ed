import type { Page } from '../platform/http/route.ts';
import type { Database } from '../platform/postgres/database.ts';

export function sandboxPages(_tools: {
  database: Database;
  isPublic: boolean;
  publicUrl: string | null;
}): Page[] {
  return [];
}
