/** What Skylark would be, on loopback. The beginning of an address says what becomes of an email to it. */
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type TakenEmail = { id: string; from: string; to: string; source: Buffer; token: string };

export type SkylarkPeer = {
  /** With the account's key. */
  url: string;
  key: string;
  taken: TakenEmail[];
  /** Resolves with the next email to the address. */
  whenTaken: (to: string) => Promise<TakenEmail>;
  /** Answers the requests for `held@` addresses. */
  release: () => void;
  stop: () => Promise<void>;
};

/** `prefix` is what its ids begin with. */
export async function startSkylarkPeer(prefix = 'sky'): Promise<SkylarkPeer> {
  const key = 'a-key-of-skylark';
  const taken: TakenEmail[] = [];
  const waiting: { to: string; resolve: (email: TakenEmail) => void }[] = [];
  const held: (() => void)[] = [];

  const respond = (response: ServerResponse, status: number, body: object) => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  };
  const take = (body: string, response: ServerResponse) => {
    const { source, ...email } = JSON.parse(body) as Omit<TakenEmail, 'source'> & { source: string };
    const [kind] = email.to.split(/[@+]/);
    if (kind === 'gone') {
      respond(response, 422, { message: 'There is no such mailbox' });
      return;
    }
    if (kind === 'later') {
      respond(response, 429, { message: 'Not so fast' });
      return;
    }
    const id = `${prefix}-${taken.length + 1}`;
    const message = { ...email, id, source: Buffer.from(source, 'base64') };
    taken.push(message);
    if (kind === 'lost') response.socket?.destroy();
    else if (kind === 'held')
      held.push(() => {
        respond(response, 202, { id });
      });
    else if (kind !== 'silent') respond(response, 202, { id });
    for (const { to, resolve } of waiting) if (to === email.to) resolve(message);
  };
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      if (request.headers.authorization !== `Bearer ${key}`) respond(response, 401, {});
      else if (request.method === 'GET') respond(response, 200, {});
      else take(Buffer.concat(chunks).toString('utf8'), response);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://${key}@127.0.0.1:${(server.address() as AddressInfo).port}`,
    key,
    taken,
    whenTaken: (to) =>
      new Promise((resolve) => {
        waiting.push({ to, resolve });
      }),
    release: () => {
      for (const answer of held.splice(0)) answer();
    },
    stop: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
