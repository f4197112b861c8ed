export type MxRecord = { exchange: string; preference: number };

/**
 * `found`: at least one record. `absent`: a definite answer that there is none. `failed`: no server could say.
 * Of the reasons, `timeout` stands for no answer at all: none in time, no server reached, or the resolver closed.
 * `detail` is for logs and people, at most 500 characters; it names servers, and holds nothing that a server wrote.
 */
export type DnsAnswer<T> =
  | { kind: 'found'; records: readonly T[] }
  | { kind: 'absent'; reason: 'no_such_domain' | 'no_such_record' }
  | DnsFailed;

export type DnsFailed = {
  kind: 'failed';
  reason: 'timeout' | 'server_failure' | 'refused' | 'malformed';
  detail: string;
};

export function failed(reason: DnsFailed['reason'], detail: string): DnsFailed {
  return { kind: 'failed', reason, detail: detail.slice(0, 500) };
}

/** In words for a diagnostic, for example `MX lookup: timeout (…)`. */
export function describeDnsFailure(type: string, { reason, detail }: DnsFailed): string {
  return `${type} lookup: ${reason.replaceAll('_', ' ')} (${detail})`;
}
