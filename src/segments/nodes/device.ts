import { hasActiveDevice, type Platform, platforms } from '../../devices/devices.ts';
import { negate } from '../../platform/postgres/predicate.ts';
import type { LeafType } from '../leaf.ts';
import { findMember, readOneOf, refuseOtherMembers, takeMember } from '../reading.ts';

const operators = ['has_active', 'has_none'] as const;

/** Whether a contact has a device that is active. */
export const deviceCondition: LeafType = {
  description:
    'Whether the contact has an active device (`has_active`), or has none (`has_none`): of one platform, or of any if `platform` is left out. ' +
    'A device stays active when notifications are denied on it.',
  title: 'DeviceCondition',
  forms: [
    {
      fields: {
        operator: { type: 'string', enum: operators },
        platform: { type: 'string', enum: platforms },
      },
      optional: ['platform'],
    },
  ],
  example: { type: 'device', operator: 'has_active', platform: 'android' },
  read: (reading, members) => {
    refuseOtherMembers(reading, members, ['type', 'operator', 'platform']);
    const operatorPlace = takeMember(reading, members, 'operator');
    const operator = operatorPlace && readOneOf(reading, operatorPlace, operators);
    const platformPlace = findMember(members, 'platform');
    const platform: Platform | null = platformPlace && readOneOf(reading, platformPlace, platforms);
    if (operator === null || (platformPlace !== null && platform === null)) return null;
    return {
      compile: ({ bind }) => {
        const hasActive = hasActiveDevice(
          platform,
          { organizationId: 'contact.organization_id', id: 'contact.id' },
          bind,
        );
        return operator === 'has_active' ? hasActive : negate(hasActive);
      },
      references: [],
      isTimeBound: false,
      readsMessages: false,
    };
  },
};
