import type { Database } from '../platform/postgres/database.ts';
import type { Acceptor } from './accept.ts';

export type MessageRouteTools = { database: Database; acceptor: Acceptor };
