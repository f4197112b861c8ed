import { Type } from 'typebox';
import { insertContactChange, refuseReference, resolveContact } from '../audience/audience.ts';
import { type Clock, now } from '../platform/clock.ts';
import {
  badRequest,
  notFound,
  PublicError,
  resourceNotFound,
  toEnvelope,
  validationError,
} from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { listOf } from '../platform/http/shapes.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { keepDeviceOptOuts } from './device-opt-outs.ts';
import { registerDevices, type RegistrationOutcome } from './registration.ts';
import type { RegisteredDevice } from './registration-plan.ts';
import { readRegistrations, type ReadRegistration } from './registration-body.ts';
import {
  bulkBody,
  bulkRecord,
  type BulkRecord,
  deviceRecord,
  type DeviceRecord,
  devicesMax,
  registrationBody,
  type RegistrationBody,
  registrationRecord,
  type RegistrationRecord,
  unregistrationBody,
} from './schema.ts';
import * as store from './store.ts';

export { devicePreparations } from './registration-body.ts';
export { sdkPages } from './sdk-pages.ts';

export type DeviceRouteTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
  /** Told after every change that segments may depend on. */
  onChanged: () => void;
};

const bulkBodyBytesMax = 10 * 1_048_576;

export function deviceRoutes(tools: DeviceRouteTools): Route[] {
  const { database, clock, newId, secrets, onChanged } = tools;
  const tag = 'Push devices';
  const register = async (organizationId: string, bodies: readonly RegistrationBody[]) => {
    const { outcomes, hasChanged } = await registerDevices(
      { database, clock, newId, secrets },
      organizationId,
      bodies,
    );
    if (hasChanged) onChanged();
    return outcomes;
  };
  return [
    defineRoute({
      method: 'POST',
      path: '/push/devices',
      operationId: 'registerDevice',
      addsStorage: false,
      scope: 'devices:write',
      tag,
      summary: 'Register or refresh a device',
      description:
        'To be called at every start of an app: what the installation is now replaces what it was. The contact must exist, ' +
        'and is named by `contact_id` alone or by other identifiers. An installation that another contact signs in on is ' +
        'that contact’s from then on. A token belongs to the installation that gave it last. ' +
        `A contact has at most ${devicesMax} active devices: one more replaces the one that registered longest ago, which becomes \`EXPIRED\`.`,
      body: registrationBody,
      success: { statusCode: 200, schema: registrationRecord, when: 'The device as it is now.' },
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, body }) => {
        const [outcome] = await register(organizationId, [body]);
        if (outcome === undefined) throw new Error('a registration has no outcome');
        if (outcome.kind !== 'registered') throw toError(outcome);
        return json(showRegistration(outcome));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/push/devices/bulk',
      operationId: 'bulkRegisterDevices',
      addsStorage: false,
      scope: 'devices:write',
      tag,
      summary: 'Register up to 1,000 devices',
      description:
        'Each as if it were registered by itself, one after the other: one that is refused has its error, and the others are registered.',
      body: bulkBody,
      bodyBytesMax: bulkBodyBytesMax,
      success: { statusCode: 200, schema: bulkRecord, when: 'What became of each of them, in their order.' },
      handle: async ({ caller: { organizationId }, body, prepared, facts }) => {
        // A large body was read by the thread, and left there.
        const read = (prepared ?? readRegistrations(body.devices, facts)) as ReadRegistration[];
        const outcomes = await register(
          organizationId,
          read.flatMap((one) => (one.kind === 'read' ? [one.body] : [])),
        );
        return json(showBulk(read, outcomes));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/push/devices/unregister',
      operationId: 'unregisterDevice',
      addsStorage: false,
      scope: 'devices:write',
      tag,
      summary: 'Let a device get no more pushes',
      description:
        'It stays revoked when it is registered again for the same contact, until the contact’s consent to push is set to `subscribed`. ' +
        'A `logout` is undone as well when another contact signs in on it.',
      body: unregistrationBody,
      success: { statusCode: 200, schema: registrationRecord, when: 'The device, revoked.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, body }) => {
        const device = await database.asOrganizations([organizationId], async (transaction) => {
          const revoked = await store.revokeDevice(transaction, {
            organizationId,
            installationId: body.installation_id,
            revocation: body.reason,
            at: now(clock),
          });
          if (revoked !== null) {
            if (revoked.revoked_by === 'opt_out')
              await keepDeviceOptOuts(transaction, { clock, secrets, newId }, organizationId, [revoked]);
            const contactIds = [revoked.contact_id];
            await insertContactChange(transaction, { organizationId, id: newId(), contactIds });
          }
          return revoked;
        });
        if (device === null) throw resourceNotFound();
        onChanged();
        return json(showRegistration({ kind: 'registered', device, secret: null, isSuppressed: false }));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/push/contacts/:contact_id/devices',
      operationId: 'listDevices',
      scope: 'push:read',
      tag,
      summary: 'List the devices of a contact',
      description: 'Newest first, whatever their status. Tokens and keys are not shown.',
      params: Type.Object({ contact_id: Type.String({ format: 'uuid' }) }),
      query: Type.Object(paginationParameters, { additionalProperties: false }),
      success: { statusCode: 200, schema: listOf(deviceRecord), when: 'A page of devices.' },
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, params: { contact_id: contactId }, query }) => {
        const page = readPage(query);
        const rows = await database.asOrganizations([organizationId], async (transaction) => {
          const [contact, listed] = await Promise.all([
            resolveContact(transaction, organizationId, { contact_id: contactId }),
            store.listDevices(transaction, { organizationId, contactId }, page),
          ]);
          return contact.kind === 'found' ? listed : null;
        });
        if (rows === null) throw resourceNotFound();
        return json(toList(rows, page, showDevice));
      },
    }),
  ];
}

function toError(outcome: Exclude<RegistrationOutcome, { kind: 'registered' }>): PublicError {
  switch (outcome.kind) {
    case 'no_address':
      return new PublicError(badRequest, `${outcome.issues.join(', ')}.`);
    case 'no_contact':
      return refuseReference(outcome.resolved);
    case 'no_credentials':
      return new PublicError(
        badRequest,
        `Push is not set up for ${outcome.platform}: have the operator run "push credentials" for this organization.`,
      );
  }
}

function showRegistration({ device, secret, isSuppressed }: RegisteredDevice): RegistrationRecord {
  return {
    id: device.id,
    installation_id: device.installation_id,
    status: device.status,
    contact_id: device.contact_id,
    opted_out: device.opted_out,
    ...(isSuppressed && { suppressed: true as const }),
    ...(secret !== null && { device_secret: secret }),
  };
}

function showBulk(read: readonly ReadRegistration[], registered: readonly RegistrationOutcome[]): BulkRecord {
  const outcomes = registered.values();
  return {
    data: read.map((one, index): BulkRecord['data'][number] => {
      if (one.kind === 'invalid') {
        const error = new PublicError(validationError, one.issues.join(', '));
        return { index, installation_id: one.installationId, error: toEnvelope(error) };
      }
      const { value: outcome } = outcomes.next();
      if (outcome === undefined) throw new Error('a registration has no outcome');
      return outcome.kind === 'registered'
        ? { index, ...showRegistration(outcome) }
        : { index, installation_id: one.body.installation_id, error: toEnvelope(toError(outcome)) };
    }),
  };
}

function showDevice(row: store.DeviceRow): DeviceRecord {
  return {
    id: row.id,
    installation_id: row.installation_id,
    contact_id: row.contact_id,
    platform: row.platform,
    apns_environment: row.apns_environment,
    status: row.status,
    opted_out: row.opted_out,
    enablement_status: row.enablement_status,
    sdk_version: row.sdk_version,
    app_version: row.app_version,
    os_version: row.os_version,
    device_model: row.device_model,
    device_manufacturer: row.device_manufacturer,
    device_timezone: row.device_timezone,
    device_locale: row.device_locale,
    registered_at: row.registered_at.toISOString(),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
