/** A registration on one node, and at each of its statements in turn another change of its device. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { makeVapidPair, retireDevices, setCredentials } from '../../src/devices/devices.ts';
import { registerDevices } from '../../src/devices/registration.ts';
import type { RegistrationBody } from '../../src/devices/schema.ts';
import { type Database, type DatabaseAddress, openDatabase } from '../../src/platform/postgres/database.ts';
import { sha256 } from '../../src/platform/secrets.ts';
import { rowsOf as rowsOfServer } from '../support/email-journey.ts';
import { meetAtEachStatement } from '../support/interleaving.ts';
import {
  androidApp,
  aPushContact,
  browser,
  register,
  setUpPush,
  tryToRegister,
  unregister,
} from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type StatementProxy, startStatementProxy } from '../support/statement-proxy.ts';
import { useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
let server: TestServer;
let proxy: StatementProxy;
/** Of the node whose statements are counted. */
let proxied: Database;

useTestDatabase({ hasNeighbour: true }, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  server = await startTestServer({ database: address });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
  await setUpPush(server);
  proxy = await startStatementProxy(address);
  proxied = openDatabase({ address: proxy.address, connectionsMax: 2 });
});
afterAll(async () => {
  await proxied.close();
  await proxy.stop();
  await server.stop();
});

let made = 0;
const newName = () => `racing-${(made += 1)}`;

async function registerThere(device: Record<string, unknown>): Promise<string> {
  const { clock, newId, secrets } = server.installation;
  const tools = { database: proxied, clock, newId, secrets };
  const body = device as unknown as RegistrationBody; // Of the tests' own making.
  const { outcomes } = await registerDevices(tools, server.organizationId, [body]);
  return outcomes[0]!.kind;
}

const meeting = () => ({ proxy, onlooker: server.installation.database });

type Stored = { contact_id: string; status: string; token: string | null; vapid_public_key: string | null };

function stored(name: string): Promise<Stored[]> {
  return rowsOfServer<Stored>(
    server,
    `select contact_id, status, token, vapid_public_key from devices
     where organization_id = $1 and installation_id = $2`,
    [server.organizationId, name],
  );
}

describe('a registration', () => {
  test('while its contact is deleted leaves no device behind', async () => {
    const statements = await meetAtEachStatement(async () => {
      const contact_id = await aPushContact(server);
      const name = newName();
      return {
        ...meeting(),
        first: () => registerThere({ contact_id, ...androidApp(name) }),
        second: () => server.request('DELETE', `/v1/contacts/${contact_id}`),
        check: async ([outcome, { status }], number) => {
          expect([number, status]).toEqual([number, 200]);
          expect(['registered', 'no_contact']).toContain(outcome);
          expect([number, await stored(name)]).toEqual([number, []]);
        },
      };
    });
    expect(statements).toBeGreaterThan(8);
  });

  test('while another node registers the installation for somebody else makes one device, of either', async () => {
    await meetAtEachStatement(async () => {
      const [ann, bob] = [await aPushContact(server), await aPushContact(server)];
      const name = newName();
      return {
        ...meeting(),
        first: () => registerThere({ contact_id: ann, ...androidApp(name) }),
        second: () => register(server, { contact_id: bob, ...androidApp(name) }),
        check: async ([outcome], number) => {
          const devices = await stored(name);
          expect([number, outcome, devices.length]).toEqual([number, 'registered', 1]);
          expect([ann, bob]).toContain(devices[0]!.contact_id);
          expect(devices[0]!.status).toBe('ACTIVE');
        },
      };
    });
  });

  test('while another installation takes its token leaves the token with one of them', async () => {
    await meetAtEachStatement(async () => {
      const contact_id = await aPushContact(server);
      const [name, other] = [newName(), newName()];
      const token = { device_token: `shared by ${name}`.replaceAll(' ', '-') };
      return {
        ...meeting(),
        first: () => registerThere({ contact_id, ...androidApp(name, token) }),
        second: async () =>
          register(server, { contact_id: await aPushContact(server), ...androidApp(other, token) }),
        check: async ([outcome], number) => {
          const devices = [...(await stored(name)), ...(await stored(other))];
          expect([number, outcome]).toEqual([number, 'registered']);
          expect(devices.map(({ token: held, status }) => [held !== null, status]).sort()).toEqual([
            [false, 'EXPIRED'],
            [true, 'ACTIVE'],
          ]);
        },
      };
    });
  });

  test('while somebody opts out there leaves the device revoked', async () => {
    await meetAtEachStatement(async () => {
      const contact_id = await aPushContact(server);
      const name = newName();
      await register(server, { contact_id, ...androidApp(name) });
      return {
        ...meeting(),
        first: () => registerThere({ contact_id, ...androidApp(name) }),
        second: () => unregister(server, name, 'opt_out'),
        check: async (_results, number) => {
          const [device] = await stored(name);
          expect([number, device!.status]).toEqual([number, 'REVOKED']);
        },
      };
    });
  });

  test('while its token is reported as dead leaves the device retired', async () => {
    await meetAtEachStatement(async () => {
      const contact_id = await aPushContact(server);
      const name = newName();
      const app = androidApp(name);
      const { id } = await register(server, { contact_id, ...app });
      const { installation, organizationId } = server;
      const dead = {
        ...{
          organizationId,
          id,
          tokenSha256: sha256(app.device_token as string),
          platform: 'android' as const,
        },
        ...{ status: 'EXPIRED' as const, reason: 'unregistered', toldAt: null },
      };
      return {
        ...meeting(),
        first: () => registerThere({ contact_id, ...app }),
        second: () =>
          installation.database.asOrganizationsByIndex([organizationId], (transaction) =>
            retireDevices(installation, transaction, [dead]),
          ),
        check: async (_results, number) => {
          const [device] = await stored(name);
          expect([number, device!.status]).toEqual([number, 'EXPIRED']);
        },
      };
    });
  });

  test('of a browser while the VAPID pair is replaced leaves none active under the old key', async () => {
    await meetAtEachStatement(async () => {
      const contact_id = await aPushContact(server);
      const name = newName();
      const pair = makeVapidPair();
      return {
        ...meeting(),
        first: () => registerThere({ contact_id, ...browser(name) }),
        second: () =>
          setCredentials(server.installation, server.organizationId, pair, { replacesPair: true }),
        check: async ([outcome, { kind }], number) => {
          const [device] = await stored(name);
          expect([number, outcome, kind]).toEqual([number, 'registered', 'set']);
          const isUnderOldKey = device!.vapid_public_key !== pair.publicKey;
          expect([number, device!.status]).toEqual([number, isUnderOldKey ? 'EXPIRED' : 'ACTIVE']);
        },
      };
    });
  });

  test('of two new ones at the limit leaves 200 active devices, both of them heard', async () => {
    const contact_id = await aPushContact(server);
    const others = Array.from({ length: 199 }, () => ({ contact_id, ...androidApp(newName()) }));
    await server.request('POST', '/v1/push/devices/bulk', { devices: others });
    await meetAtEachStatement(async () => {
      const [name, other] = [newName(), newName()];
      return {
        ...meeting(),
        first: () => registerThere({ contact_id, ...androidApp(name) }),
        second: () => tryToRegister(server, { contact_id, ...androidApp(other) }),
        check: async ([outcome, { status }], number) => {
          const active = await rowsOfServer<{ count: number }>(
            server,
            "select count(*)::integer as count from devices where contact_id = $1 and status = 'ACTIVE'",
            [contact_id],
          );
          expect([number, outcome, status, active]).toEqual([number, 'registered', 200, [{ count: 200 }]]);
        },
      };
    });
  });
});
