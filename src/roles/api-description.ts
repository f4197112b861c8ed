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
import { describeConditions } from '../segments/segments.ts';
import { listRoutes } from './api.ts';

/** The whole API as OpenAPI. Needs no database: the table is read, and no route is run. */
export function describeApi(): OpenApiDocument {
  return describeRoutes(listRoutes(noInstallation), {
    ...info,
    version: readVersion(),
    examples: readExamples(),
    schemas: describeConditions(),
  });
}

/** Requests that were made to a running server, and its answers: test/journeys/api-examples.test.ts records them. */
export const examplesFile = path.join(projectDirectory, 'docs', 'api-examples.json');

function readExamples(): Record<string, Example[]> {
  return JSON.parse(readFileSync(examplesFile, 'utf8')) as Record<string, Example[]>; // Our own file.
}

/** Stands where handlers would find their tools; whatever is made of it must not be run. */
const noInstallation = {} as Installation;

const info: Omit<ApiInfo, 'version' | 'examples' | 'schemas'> = {
  title: 'Postillion',
  description: [
    'Email, SMS, push and chat-app messages over one HTTP API.',
    'Requests and answers are JSON in UTF-8. Every request carries an API key as `Authorization: Bearer <key>`; a key belongs to one organization and sees nothing of the others.',
    'Ids are UUIDv7, so that their order is the order of time. Lists come newest first; `after` gives what is older than an id, `before` what is newer. Times are RFC 3339: they leave in UTC, and need an offset when they arrive.',
    'A field that is not known is refused, as is a value of the wrong type. An error has the same form everywhere, and a `name` that programs can go by.',
  ].join('\n\n'),
  tags: [
    { name: 'Email', description: 'Send email, and see what became of each recipient.' },
    {
      name: 'Sending domains',
      description: 'Prove that a domain is yours, so that its addresses may send and its mail is signed.',
    },
    { name: 'SMS', description: 'Send texts, and see what became of each.' },
    { name: 'SMS senders', description: 'Names and numbers that your texts may come from.' },
    { name: 'Templates', description: 'Content that is written once and sent many times.' },
    { name: 'Template gallery', description: 'Templates that come along, to begin with.' },
    { name: 'Contacts', description: 'The people that you write to.' },
    { name: 'Lists', description: 'Contacts that a person put together.' },
    { name: 'Tags', description: 'Labels that contacts carry.' },
    {
      name: 'Properties',
      description: 'What you want to know of your contacts besides what everybody does.',
    },
    { name: 'Segments', description: 'Contacts that conditions describe, kept up to date by themselves.' },
    {
      name: 'Email campaigns',
      description:
        'One email to many contacts: written as a draft, then sent at once or when its time comes.',
    },
    { name: 'SMS campaigns', description: 'One text to many contacts, as email campaigns are.' },
  ],
};
