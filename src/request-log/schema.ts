import { type Static, Type } from 'typebox';
import { loggedSources } from '../platform/http/logged-request.ts';
import { instant, literals, textOrNull } from '../platform/http/shapes.ts';

/** A request as the API shows it in a list. */
export const listedRequest = Type.Object(
  {
    id: Type.String({
      format: 'uuid',
      description: 'The `x-request-id` of its answer; of what came by SMTP, its own.',
    }),
    created_at: instant,
    source: literals(loggedSources, { description: 'How it came in.' }),
    method: Type.String({
      description:
        'Of what came by SMTP, the command: `AUTH`, `MAIL`, `RCPT`, or `DATA`, which is a message.',
    }),
    path: Type.String({
      description:
        'As it was asked for, without its query. What is no id, or no word where there is no such path, is shown as `…`.',
    }),
    route: Type.Union([Type.String(), Type.Null()], {
      description: 'The path of the operation, such as `/v1/contacts/:id`; null where there is none.',
    }),
    status: Type.Union([Type.Integer(), Type.Null()], {
      description:
        'Null where the client closed the connection before its answer. Of what came by SMTP, the code of the reply: 250 was accepted, 4xx put off, 5xx refused.',
    }),
    error_name: textOrNull,
    message: Type.Union([Type.String(), Type.Null()], {
      description: 'Of the error, with addresses and numbers masked.',
    }),
    api_key: Type.Union(
      [Type.Object({ id: Type.String({ format: 'uuid' }), name: Type.String() }), Type.Null()],
      {
        description: 'Null where a device asked with its secret.',
      },
    ),
    remote_address: textOrNull,
    user_agent: textOrNull,
    ms: Type.Integer({ description: 'From its head to the end of the answer.' }),
    idempotency: Type.Union([Type.Object({ key: Type.String(), replayed: Type.Boolean() }), Type.Null()], {
      description: 'Null where it had no `Idempotency-Key`.',
    }),
    resource_id: Type.Union([Type.String({ format: 'uuid' }), Type.Null()], {
      description: 'What the path names, or what was made.',
    }),
    left_out: Type.Integer({
      description:
        'How many more of its kind there were at about that time that are not in the log: refused ones, changes, or reads.',
    }),
  },
  { title: 'ListedLoggedRequest' },
);

/** The same alone, with what was sent. */
export const requestRecord = Type.Object(
  {
    ...listedRequest.properties,
    query: Type.Union([Type.Record(Type.String(), Type.String()), Type.Null()], {
      description: 'The parameters of the query, as far as the operation has them.',
    }),
    request_body: Type.Union([Type.Unsafe<object>({ type: 'object' }), Type.Null()], {
      description:
        'Of a refused request, at most 8 kB. Secrets, contents and names are told by their size, addresses are masked, and unknown fields left out. Null where it was accepted, was no JSON, or had 256 kB and more.',
    }),
  },
  { title: 'LoggedRequest' },
);

export type ListedRequest = Static<typeof listedRequest>;
export type RequestRecord = Static<typeof requestRecord>;
