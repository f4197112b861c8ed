import type { Database } from '../platform/postgres/database.ts';
import type { Acceptor } from './accept.ts';
import type { ReadHorizon } from './kept.ts';

export type MessageRouteTools = { database: Database; acceptor: Acceptor; readHorizon: ReadHorizon };
