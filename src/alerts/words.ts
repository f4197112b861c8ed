import type { AlertKind } from './kinds.ts';

/** What an alert says of one event: in a line, and what is to be done about it. */
export type AlertWords = {
  /** Names within it may be anything that the organization has given. */
  headline: string;
  /** What is known beyond that; empty if nothing. */
  details: string[];
  advice: string;
};

/** What it happened to, as programs are told of it, or what is left of it. */
export type AlertSubject = Readonly<Record<string, unknown>> & { id: string };

/** Longer names would fill the line, and are known by their beginnings. */
const nameLengthMax = 100;

export const wordsOf: Readonly<Record<AlertKind, (subject: AlertSubject) => AlertWords>> = {
  'webhook.failing': (subject) => ({
    headline: `Webhook ${nameOf(subject)} has been failing for ${textOf(subject.failing_for)}`,
    details: [`Webhook: ${subject.id}`, ...lastFailureOf(subject)],
    advice:
      'Events wait in the log and are sent when the endpoint takes one again. After five days it is disabled; events are kept for 30 days.',
  }),
  'webhook.disabled': (subject) => ({
    headline: `Webhook ${nameOf(subject)} is disabled`,
    details: [`Webhook: ${subject.id}`, ...lastFailureOf(subject)],
    advice: `Nothing is sent to it any more. When it works again, enable it with POST /v1/webhooks/${subject.id}/enable: what is in the log, for 30 days, is sent then.`,
  }),
  'domain.degraded': (subject) => ({
    headline: `Domain ${nameOf(subject)} lacks DNS records`,
    details: [`Domain: ${subject.id}`],
    advice: `Mail from it may be refused or taken for spam. GET /v1/email/domains/${subject.id} shows which records are to be published.`,
  }),
  'organization.sending_suspended': (subject) => ({
    headline: `Sending is suspended on ${channelOf(subject)}`,
    details: [
      subject.reason === 'reputation'
        ? 'Too many messages bounced or brought complaints within a day.'
        : 'The operator has suspended it.',
    ],
    advice: 'Nothing is accepted on this channel, and its campaigns are paused. Ask the operator to lift it.',
  }),
  'organization.sending_resumed': (subject) => ({
    headline: `Sending is possible again on ${channelOf(subject)}`,
    details: [],
    advice: 'Campaigns that were paused go on by themselves.',
  }),
  'organization.quota_warning': (subject) => ({
    headline: `Four fifths of the monthly quota of ${channelOf(subject)} are used`,
    details: [...usageOf(subject)],
    advice: 'When all of it is used, messages are refused until the next month. The operator can raise it.',
  }),
  'organization.quota_reached': (subject) => ({
    headline: `The monthly quota of ${channelOf(subject)} is used up`,
    details: [...usageOf(subject)],
    advice: 'Messages are refused and campaigns are paused until then. The operator can raise the quota.',
  }),
  'chatapp.template.paused': (subject) => ({
    headline: `Template ${nameOf(subject)} is paused`,
    details: [`Template: ${subject.id}`, ...reasonOf(subject, 'sendable_reason')],
    advice: `Messages that are made of it are not sent. GET /v1/chatapp/templates/${subject.id} shows its state at the provider.`,
  }),
  'chatapp.template.rejected': (subject) => ({
    headline: `Template ${nameOf(subject)} was rejected`,
    details: [`Template: ${subject.id}`, ...reasonOf(subject, 'rejection_reason')],
    advice: 'Change what it says, and it is reviewed again.',
  }),
  'campaign.paused': (subject) => ({
    headline: `Campaign ${nameOf(subject)} is paused`,
    details: [`Campaign: ${subject.id}`, ...reasonOf(subject, 'pause_reason')],
    advice:
      subject.pause_reason === 'schedule_missed'
        ? 'Its time had passed when it could have been sent. Resume it, or cancel it.'
        : 'It goes on by itself when the reason is over.',
  }),
};

/** In one line, whatever it is: it becomes part of a header. */
function textOf(value: unknown): string {
  if (typeof value !== 'string' && typeof value !== 'number') return '';
  return `${value}`
    .toWellFormed()
    .replaceAll(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\s]+/gu, ' ')
    .trim();
}

function nameOf(subject: AlertSubject): string {
  const name = textOf(subject.name);
  const letters = [...name];
  if (letters.length === 0) return subject.id;
  return letters.length <= nameLengthMax ? name : `${letters.slice(0, nameLengthMax).join('')}…`;
}

const channelWords: Readonly<Record<string, string>> = {
  email: 'email',
  sms: 'SMS',
  push: 'push',
  chatapp: 'chat-app',
};

function channelOf(subject: AlertSubject): string {
  return channelWords[textOf(subject.channel)] ?? 'a channel';
}

function lastFailureOf(subject: AlertSubject): string[] {
  const message = textOf(subject.last_failure);
  return message === '' ? [] : [`Last failure: ${message}`];
}

function reasonOf(subject: AlertSubject, field: string): string[] {
  const reason = textOf(subject[field]);
  return reason === '' ? [] : [`Reason: ${reason}`];
}

function usageOf(subject: AlertSubject): string[] {
  const [used, quota, renewsOn] = ['used', 'quota', 'renews_on'].map((field) => textOf(subject[field]));
  return [`${used} of ${quota} are used. It renews on ${renewsOn} (UTC).`];
}
