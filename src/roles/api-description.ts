import { readFileSync } from 'node:fs';
import path from 'node:path';
import { projectDirectory, readVersion } from '../config.ts';
import type { Installation } from '../installation/installation.ts';
import {
  type ApiInfo,
  describeRoutes,
  type Example,
  type OpenApiDocument,
} from '../platform/http/openapi.ts';
import { describeContacts, describeSuppressions } from '../audience/audience.ts';
import { describeBatchedChatApp } from '../chatapp/routes.ts';
import { describeDevices } from '../devices/devices.ts';
import { describeBatchedEmails } from '../email/routes.ts';
import { describeBatchEvents } from '../events/events.ts';
import { describeBatchedPushes } from '../push/push.ts';
import { describeConditions } from '../segments/segments.ts';
import { describeBatchedSms } from '../sms/routes.ts';
import { describeEvents, describeEventWebhooks } from '../webhooks/webhooks.ts';
import { listRoutes } from './api.ts';
import { eventSchemas } from './event-describers.ts';

/** The whole API as OpenAPI. Needs no database: the table is read, and no route is run. */
export function describeApi(): OpenApiDocument {
  return describeRoutes(listRoutes(noInstallation), {
    ...info,
    version: readVersion(),
    examples: readExamples(),
    schemas: {
      ...describeConditions(),
      ...describeDevices(),
      ...describeBatchedChatApp(),
      ...describeBatchedEmails(),
      ...describeBatchedPushes(),
      ...describeBatchedSms(),
      ...describeBatchEvents(),
      ...describeContacts(),
      ...describeSuppressions(),
      ...describeEvents(eventSchemas),
    },
    webhooks: describeEventWebhooks('Webhooks', eventSchemas),
  });
}

/** Requests that were made to a running server, and its answers: test/journeys/api-examples.test.ts records them. */
export const examplesFile = path.join(projectDirectory, 'docs', 'api-examples.json');

export function readExamples(): Record<string, Example[]> {
  return JSON.parse(readFileSync(examplesFile, 'utf8')) as Record<string, Example[]>; // Our own file.
}

/** Stands where handlers would find their tools; whatever is made of it must not be run. */
const noInstallation = {} as Installation;

const info: Omit<ApiInfo, 'version' | 'examples' | 'schemas' | 'webhooks'> = {
  title: 'Postillion',
  description: [
    'Email, SMS, push and chat-app messages over one HTTP API.',
    'Requests and responses are JSON in UTF-8. Every request carries an API key as `Authorization: Bearer <key>`. A key belongs to one organization and gives no access to any other.',
    'Ids are UUIDv7, so they sort by time of creation. Lists are newest first: `after` returns items older than an id, `before` newer ones. Times are RFC 3339: UTC in responses, with an offset in requests.',
    'Unknown fields and parameters, and values of the wrong type, are refused. `null` for an optional field of a new thing is the same as leaving it out, except for `scheduled_at` of a campaign’s send; in a change it clears the field. A filter without a value (`search=`) is none.',
    'All errors have the same form, with a `name` for programs.',
  ].join('\n\n'),
  tags: [
    { name: 'Email', description: 'Send email, and see the status of each recipient.' },
    {
      name: 'Sending domains',
      description: 'Prove that a domain is yours, so that its addresses may send and its mail is signed.',
    },
    { name: 'SMS', description: 'Send texts, and see the status of each.' },
    { name: 'SMS senders', description: 'Names and numbers that you may send texts from.' },
    {
      name: 'Push',
      description: 'Send notifications to apps and browsers, and see the status of each device.',
    },
    {
      name: 'Chat-app',
      description: 'Messages by WhatsApp, made of templates that were approved, and what became of them.',
    },
    { name: 'Push devices', description: 'Apps and browsers that you may send pushes to.' },
    { name: 'Templates', description: 'Content that is written once and sent many times.' },
    {
      name: 'Chat-app templates',
      description: 'What messages of a chat app may say, reviewed by its provider before it is sent.',
    },
    { name: 'Template gallery', description: 'Ready-made templates to copy.' },
    { name: 'Contacts', description: 'The people that you write to.' },
    {
      name: 'Events',
      description:
        'What your contacts do, as your own systems tell it: kinds of events, and the events themselves.',
    },
    {
      name: 'Webhooks',
      description: 'Hear what becomes of messages, as it happens or later on.',
    },
    { name: 'Lists', description: 'Groups of contacts that you choose yourself.' },
    { name: 'Tags', description: 'Labels for contacts.' },
    {
      name: 'Properties',
      description: 'Your own fields for contacts, in addition to the standard ones.',
    },
    {
      name: 'Suppressions',
      description: 'Addresses that nothing is sent to, or no campaigns: why, since when, and until when.',
    },
    {
      name: 'Segments',
      description: 'Groups of contacts that conditions describe, kept up to date automatically.',
    },
    {
      name: 'Email campaigns',
      description:
        'One email to many contacts: written as a draft, then sent at once or at a scheduled time.',
    },
    { name: 'SMS campaigns', description: 'One text to many contacts, in the same way as email campaigns.' },
    {
      name: 'Chat-app campaigns',
      description: 'One template to many contacts, in the same way as email campaigns.',
    },
    {
      name: 'Push campaigns',
      description: 'One notification to the devices of many contacts, in the same way as email campaigns.',
    },
    {
      name: 'Request log',
      description: 'What your programs have asked of the API in the last 7 days, and why it was refused.',
    },
  ],
};
