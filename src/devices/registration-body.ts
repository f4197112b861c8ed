import { audienceFormats } from '../audience/audience.ts';
import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { createValidation, type RuleFacts, type Validator } from '../platform/http/validation.ts';
import { deviceRules } from './rules.ts';
import { deviceFormats, installationIdLengthMax, registrationBody, type RegistrationBody } from './schema.ts';

/** A device of a bulk request, as far as its schema and rules tell. */
export type ReadRegistration =
  | { kind: 'read'; body: RegistrationBody }
  | { kind: 'invalid'; installationId: string | null; issues: string[] };

let validator: Validator | null = null;

/** Reads each device by itself. Large requests are read in the thread for large bodies. */
export function readRegistrations(devices: readonly unknown[], facts: RuleFacts): ReadRegistration[] {
  const formats = { ...audienceFormats, ...deviceFormats };
  const validate = (validator ??= createValidation(formats, deviceRules).compile(registrationBody));
  return devices.map((device) => {
    const issues = validate(device, facts);
    return issues.length === 0
      ? { kind: 'read', body: device as RegistrationBody } // Its schema has checked it.
      : { kind: 'invalid', installationId: findInstallationId(device), issues };
  });
}

/** Says which one is wrong, if that much is right. */
function findInstallationId(device: unknown): string | null {
  if (typeof device !== 'object' || device === null || !Object.hasOwn(device, 'installation_id')) return null;
  const { installation_id: id } = device as { installation_id: unknown };
  return typeof id === 'string' && id.length <= installationIdLengthMax ? id : null;
}

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const devicePreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /push/devices/bulk': (body, facts) =>
    readRegistrations((body as { devices: unknown[] }).devices, facts),
};
