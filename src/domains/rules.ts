import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import { hasRoomForReturnPath } from './records.ts';
import { defaultReturnPathSubdomain, type DomainBody, parseSendingDomain } from './schema.ts';

/** By this name the rules find the hosts of this installation. */
export const ownHostsSetting = 'own-hosts';

/** RFC 1035 §2.3.4, without the length octets of the wire form. */
const domainLengthMax = 253;

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const domainRules: Record<'domain-name' | 'domain-subdomains', FieldRule> = {
  // Mail to a host of this installation, or below one, must not be taken for a tenant's.
  'domain-name': defineRule<DomainBody>(({ name: given = '' }, _isGiven, { settings }) => {
    const name = parseSendingDomain(given);
    const ownHosts = settings[ownHostsSetting] ?? [];
    return name !== null && ownHosts.some((host) => name === host || name.endsWith(`.${host}`))
      ? ['name must not be a host of this installation']
      : [];
  }),
  'domain-subdomains': defineRule<DomainBody>((fields, isGiven) => {
    const { return_path_subdomain: returnPath, tracking_subdomain: tracking = null } = fields;
    if (isGiven('return_path_subdomain') && returnPath === undefined) return [];
    const returnPathSubdomain = returnPath ?? defaultReturnPathSubdomain;
    // A CNAME stands alone at its name (RFC 1034 §3.6.2): beside the MX of the return path neither would be found.
    if (tracking === returnPathSubdomain)
      return [
        `tracking_subdomain must not be the same as return_path_subdomain, which is ${defaultReturnPathSubdomain} when omitted`,
      ];
    const name = parseSendingDomain(fields.name ?? '');
    if (name === null) return [];
    const trackingHostLength = tracking === null ? 0 : tracking.length + 1 + name.length;
    return hasRoomForReturnPath({ name, returnPathSubdomain }) && trackingHostLength <= domainLengthMax
      ? []
      : [
          'name must be short enough for return_path_subdomain and tracking_subdomain before it (194 characters with the former)',
        ];
  }),
};
