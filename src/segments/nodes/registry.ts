import type { LeafType } from '../leaf.ts';
import { consentCondition } from './consent.ts';
import { deviceCondition } from './device.ts';
import { eventCondition } from './event.ts';
import { fieldCondition } from './field.ts';
import { messageCondition } from './message.ts';
import { propertyCondition } from './property.ts';
import { setCondition } from './set.ts';

/** Every type of condition that is no group, by its name. */
export const leafTypes: Readonly<Record<string, LeafType>> = {
  field: fieldCondition,
  property: propertyCondition,
  list: setCondition('list'),
  tag: setCondition('tag'),
  segment: setCondition('segment'),
  consent: consentCondition,
  device: deviceCondition,
  event: eventCondition,
  message: messageCondition,
};
