/** A plain TCP forwarder in a process of its own, such as socat or HAProxy in `mode tcp`: it adds not a word. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';

export type TcpForwarder = { port: number; stop: () => Promise<void> };

/** `uid` is the user that it runs as; another than our own takes root. */
export async function startTcpForwarder(target: { port: number; uid?: number }): Promise<TcpForwarder> {
  const child = spawn(process.execPath, ['-e', program, String(target.port)], {
    cwd: '/',
    stdio: ['ignore', 'pipe', 'inherit'],
    ...(target.uid === undefined ? {} : { uid: target.uid }),
  });
  const [line] = (await once(child.stdout, 'data')) as [Buffer];
  return {
    port: Number(String(line)),
    stop: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  };
}

const program = `
const net = require('node:net');
const target = Number(process.argv[1]);
const server = net.createServer({ allowHalfOpen: true }, (client) => {
  const upstream = net.connect({ port: target, host: '127.0.0.1', allowHalfOpen: true });
  for (const [one, other] of [[client, upstream], [upstream, client]]) {
    one.on('error', () => other.destroy());
    one.pipe(other);
  }
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
`;
