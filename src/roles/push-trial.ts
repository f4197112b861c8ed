import { findOrganizations } from '../accounts/accounts.ts';
import { pushProviders } from '../channels/push/providers/registry.ts';
import { findFirstBrowserKey, findOwner } from '../devices/devices.ts';
import type { Installation } from '../installation/installation.ts';
import {
  badRequest,
  conflict,
  PublicError,
  resourceNotFound,
  validationError,
} from '../platform/http/errors.ts';
import type { Fields, PushTrial } from '../sandbox/routes.ts';
import { createInsideClient, type InsideClientTools } from './inside-client.ts';

/** The contact whose devices are the browsers that tried a push out. */
const externalId = 'postillion-sandbox';

/** Of a request to register, all that a page may decide: the contact is not among it. */
const deviceFields = [
  'platform',
  'installation_id',
  'endpoint',
  'p256dh_key',
  'auth_key',
  'enablement_status',
  'sdk_version',
] as const;

const contentFields = ['title', 'body', 'deep_link'] as const;

/** Nobody waits for the push of a trial any longer. */
const ttlSeconds = 3_600;

/** A name for clicks that are not on the notification itself. */
const button = { action_id: 'wave', label: 'Wave' } as const;

/**
 * What the sandbox's page does with a browser: it goes through the routes of the API, as the requests of a site's own
 * server would, in the name of the oldest organization that can send to browsers. The page is guarded as the inbox is.
 */
export function createPushTrial(
  installation: Installation,
  tools: Omit<InsideClientTools, 'clock'>,
): PushTrial {
  const { config, clock, database } = installation;
  const ask = createInsideClient({ ...tools, clock });
  const findKey = () => findFirstBrowserKey(database);
  const findOrganizationId = async () => {
    const key = await findKey();
    if (key === null) throw new PublicError(badRequest, 'No organization has a VAPID pair for browsers.');
    return key.organizationId;
  };
  const findContactId = async (organizationId: string) => {
    const found = await ask(organizationId, 'listContacts', { query: { external_id: externalId } });
    const { data } = found as { data: readonly { id: string }[] }; // As the route's schema says.
    return data[0]?.id ?? null;
  };
  const makeContact = async (organizationId: string) => {
    if ((await findContactId(organizationId)) !== null) return;
    try {
      await ask(organizationId, 'createContact', {
        body: { external_id: externalId, first_name: 'Sandbox', last_name: 'browsers' },
      });
    } catch (cause) {
      // Another browser was faster.
      if (!(cause instanceof PublicError && cause.definition === conflict)) throw cause;
    }
  };

  /** A registration takes an installation from the contact that it belongs to, and here nobody has a key. */
  const refuseOthers = async (
    organizationId: string,
    { platform, installation_id: installationId }: Fields,
  ) => {
    if (platform !== 'web') throw new PublicError(validationError, 'platform must be web');
    if (typeof installationId !== 'string') return;
    const owner = await database.asOrganizations([organizationId], (transaction) =>
      findOwner(transaction, { organizationId, installationId }),
    );
    if (owner !== null && owner !== (await findContactId(organizationId)))
      throw new PublicError(conflict, 'This installation belongs to another contact.');
  };

  return {
    describe: async () => {
      const key = await findKey();
      const isSandbox = pushProviders[config.pushProvider].isSandbox;
      const about = { provider: config.pushProvider, is_sandbox: isSandbox };
      if (key === null) return { ...about, organization: null, public_key: null };
      const [organization = null] = await database.asOrganizations([key.organizationId], (transaction) =>
        findOrganizations(transaction, key.organizationId),
      );
      if (organization === null) return { ...about, organization, public_key: null };
      const { id, name } = organization;
      return { ...about, organization: { id, name }, public_key: key.publicKey };
    },
    register: async (device) => {
      const organizationId = await findOrganizationId();
      await makeContact(organizationId);
      await refuseOthers(organizationId, device);
      return ask(organizationId, 'registerDevice', {
        body: { ...pick(device, deviceFields), external_id: externalId },
      });
    },
    send: async (content) =>
      ask(await findOrganizationId(), 'sendPush', {
        body: {
          ...pick(content, contentFields),
          external_id: externalId,
          ttl_seconds: ttlSeconds,
          action_buttons: [button],
        },
      }),
    look: async (pushId) => {
      const organizationId = await findOrganizationId();
      const contactId = await findContactId(organizationId);
      if (contactId === null) return { devices: [], push: null };
      const [devices, push] = await Promise.all([
        ask(organizationId, 'listDevices', { params: { contact_id: contactId } }),
        pushId === null ? null : ask(organizationId, 'getPush', { params: { id: pushId } }),
      ]);
      // Other pushes of the organization are for those who have its key.
      if (push !== null && (push as { contact_id: string }).contact_id !== contactId)
        throw resourceNotFound();
      return { devices: (devices as { data: unknown }).data, push };
    },
  };
}

/** Those of the members that there are. */
function pick(fields: Fields, names: readonly string[]): Fields {
  return Object.fromEntries(names.filter((name) => name in fields).map((name) => [name, fields[name]]));
}
