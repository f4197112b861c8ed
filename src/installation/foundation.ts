import type { Config } from '../config.ts';
import type { InstanceHosts } from '../domains/domains.ts';
import type { AcceptTools, DeliveryObserver } from '../messages/messages.ts';
import type { LoggedCounts } from '../request-log/request-log.ts';
import type { Clock } from '../platform/clock.ts';
import type { AnsweredRequest } from '../platform/http/server.ts';
import type { Resolver } from '../platform/dns/dns.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import type { Database } from '../platform/postgres/database.ts';

/** Told what happens in this process, so that it can be counted. */
export type Observers = {
  delivery: DeliveryObserver;
  onAccepted: NonNullable<AcceptTools['onAccepted']>;
  onAnswered: (answered: AnsweredRequest) => void;
  onLogged: (logged: LoggedCounts) => void;
};

/** An installation whose secret was not looked at. */
export type Foundation = {
  config: Config;
  database: Database;
  clock: Clock;
  newId: NewId;
  /** From 0 up to 1, as `Math.random`: what spreads retries. */
  random: () => number;
  log: Log;
  resolver: Resolver;
  /** Left out where nobody asks for what they would count. */
  observers?: Observers;
  /** What other people's DNS records point to. */
  hosts: InstanceHosts;
  /** Closes the database, and stops the embedded PostgreSQL unless another process uses it. */
  close: () => Promise<void>;
};
