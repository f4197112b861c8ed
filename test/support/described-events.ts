/** Whether events are what the description of the API says, as a program sees it that was generated from it. */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { parseTimestamp } from '../../src/platform/clock.ts';
import { isUuid } from '../../src/platform/ids.ts';
import { describeApi } from '../../src/roles/api-description.ts';

export function createEventCheck(): (event: unknown) => boolean {
  const { schemas } = describeApi().components;
  const ajv = new Ajv2020({
    strict: false,
    formats: { uuid: isUuid, 'date-time': (text) => parseTimestamp(text) !== null },
  });
  const isDescribed = ajv.compile({ $ref: '#/components/schemas/WebhookEvent', components: { schemas } });
  return (event) => isDescribed(event);
}
