import { audienceRules } from '../audience/audience.ts';
import { chatTemplateRules } from '../chat-templates/chat-templates.ts';
import { chatAppRules } from '../chatapp/chatapp.ts';
import type { Config } from '../config.ts';
import { deviceRules, pushHostsSetting } from '../devices/devices.ts';
import { domainRules, type InstanceHosts, ownHostsSetting } from '../domains/domains.ts';
import { emailRules } from '../email/email.ts';
import { eventRules } from '../events/events.ts';
import type { FieldRule, RuleFacts } from '../platform/http/validation.ts';
import { pushRules } from '../push/push.ts';
import { segmentRules } from '../segments/segments.ts';
import { smsRules } from '../sms/sms.ts';
import { templateRules } from '../templates/templates.ts';
import { webhookHostsSetting, webhookRules } from '../webhooks/webhooks.ts';

/** Every rule that a schema of any room may name. */
export const fieldRules: Readonly<Record<string, FieldRule>> = {
  ...audienceRules,
  ...chatAppRules,
  ...chatTemplateRules,
  ...deviceRules,
  ...domainRules,
  ...emailRules,
  ...eventRules,
  ...pushRules,
  ...segmentRules,
  ...smsRules,
  ...templateRules,
  ...webhookRules,
};

/** What they ask of the settings. */
export function ruleSettingsOf({
  config,
  hosts: { bounceHost, trackingHost },
}: {
  config: Pick<Config, 'webPushHosts' | 'webhookAllowedHosts'>;
  hosts: InstanceHosts;
}): RuleFacts['settings'] {
  const ownHosts = bounceHost === null ? [trackingHost] : [bounceHost, trackingHost];
  return {
    [pushHostsSetting]: config.webPushHosts,
    [ownHostsSetting]: ownHosts,
    [webhookHostsSetting]: config.webhookAllowedHosts,
  };
}
