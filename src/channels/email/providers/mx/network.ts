import { createSocket } from 'node:dgram';

/**
 * Whether this machine has a way to anywhere. Nothing is sent: to connect a UDP socket only asks the routing table.
 * The addresses are those of the first DNS root server, which stands outside of every private network.
 */
export async function hasRoute(): Promise<boolean> {
  const found = await Promise.all([isRouted('udp4', '198.41.0.4'), isRouted('udp6', '2001:503:ba3e::2:30')]);
  return found.includes(true);
}

function isRouted(family: 'udp4' | 'udp6', address: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = createSocket(family);
    const end = (isFound: boolean) => {
      socket.close();
      resolve(isFound);
    };
    socket.once('error', () => {
      end(false);
    });
    socket.once('connect', () => {
      end(true);
    });
    socket.connect(53, address);
  });
}
