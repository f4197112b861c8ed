import { createHmac } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import {
  findMessageFault,
  findTemplateEditFault,
  findTemplateFault,
  findWebhookFault,
} from './graph-shapes.ts';

/**
 * A stand-in for Meta's Graph API on loopback: messages, templates, numbers, and webhooks that it signs. What becomes of
 * a message depends on its number, or on a script. It writes every message down before it answers.
 */

/**
 * `lost` and `silent` have taken the message: the connection is cut, or nothing is said. `cut_before` has not read it,
 * `cut_within` breaks off in the answer. `late` answers when it is told to (`releaseAnswers`).
 */
export type GraphAnswer =
  | 'accepted'
  | 'lost'
  | 'silent'
  | 'cut_before'
  | 'cut_within'
  | 'late'
  | { code: number; subcode?: number; status?: number; headers?: Readonly<Record<string, string>> }
  | { status: number; body: string; headers?: Readonly<Record<string, string>> };

export type GraphMessage = {
  /** From 1, in the order of arrival. */
  number: number;
  phoneNumberId: string;
  accessToken: string;
  /** E.164, with its plus. */
  to: string;
  token: string;
  template: string;
  language: string;
  /** By the names of parameters; those without one by `<type> <index>`. */
  values: Readonly<Record<string, string>>;
  id: string;
  body: unknown;
};

/** A request that is no message. */
export type GraphQuestion = { method: string; path: string };

export type GraphStatus = { status: 'sent' | 'delivered' | 'read' | 'failed'; code?: number };

export type GraphTemplate = {
  id: string;
  businessAccountId: string;
  name: string;
  language: string;
  category: string;
  status: string;
  rejected_reason: string;
  components: unknown;
  /** How often it was edited while it was approved; a second time is refused, as within a day. */
  edits: number;
};

export type GraphOptions = {
  port?: number;
  /** Undefined leaves it to the number: see `numberOf`. */
  answer?: (message: GraphMessage) => GraphAnswer | undefined;
  /** In their order; undefined leaves them to the number. */
  statuses?: (message: GraphMessage) => readonly GraphStatus[] | undefined;
  /** Undefined leaves it to the templates and numbers that are there. */
  answerQuestion?: (question: GraphQuestion) => GraphAnswer | undefined;
  onMessage?: (message: GraphMessage) => void;
  /** After an edit was made; `lost` cuts off its answer. */
  onEdit?: (template: GraphTemplate) => 'lost' | undefined;
  messagesKeptMax?: number;
  /** Of every number. */
  throughput?: 'STANDARD' | 'HIGH';
  peopleLimit?: string;
  /** Where webhooks go, and by whom they are signed. Without it, none are sent. */
  webhooks?: WebhookTarget | null;
  /** The account of each number; the one of all others. */
  businessAccountOf?: (phoneNumberId: string) => string;
};

export type WebhookTarget = {
  url: string;
  appSecret: string;
  /** How often each is sent. */
  times?: number;
  isReversed?: boolean;
  /** Reports with neither number nor contact, as of people who hide theirs. */
  hidesNumbers?: boolean;
  /** Statuses before the answer to the message. */
  isBeforeAnswer?: boolean;
};

export type Graph = Awaited<ReturnType<typeof startGraph>>;

const statusOfCode: Readonly<Record<number, number>> = {
  0: 401,
  190: 401,
  10: 403,
  368: 403,
  131031: 403,
  4: 400,
};

/** `+1999` and seven digits: refused with this code. `+1998`: accepted, and failed with it in a status. */
const answersByNumber: readonly (readonly [RegExp, (code: number) => GraphAnswer])[] = [
  [/^\+1999(\d{7})$/, (code) => ({ code })],
  [/^\+15005550001$/, () => ({ code: 131_026 })],
  [/^\+15005550013$/, () => 'lost'],
  [/^\+15005550014$/, () => ({ code: 131_000, status: 500 })],
  [/^\+15005550020$/, () => 'silent'],
  [/^\+15005550021$/, () => 'cut_before'],
  [/^\+15005550022$/, () => 'cut_within'],
  [/^\+15005550023$/, () => 'late'],
];

function answerOf(to: string): GraphAnswer {
  for (const [pattern, answer] of answersByNumber) {
    const found = pattern.exec(to);
    if (found !== null) return answer(Number(found[1] ?? 0));
  }
  return 'accepted';
}

function statusesOf(to: string): readonly GraphStatus[] {
  const code = /^\+1998(\d{7})$/.exec(to)?.[1];
  if (code !== undefined) return [{ status: 'sent' }, { status: 'failed', code: Number(code) }];
  if (to === '+15005550018') return [{ status: 'read' }];
  return [{ status: 'sent' }, { status: 'delivered' }];
}

/** Statuses in one webhook. */
const statusesAtOnceMax = 100;
const webhookAttemptsMax = 1_000;
const retryAfterMs = 200;
const pageLengthMax = 100;

export async function startGraph(options: GraphOptions = {}) {
  const counts = { messages: 0, accepted: 0, refused: 0, faults: 0, webhooks: 0, unwelcome: 0, questions: 0 };
  const messages: GraphMessage[] = [];
  const faults: string[] = [];
  const requests: string[] = [];
  const templates = new Map<string, GraphTemplate>();
  const sockets = new Set<Socket>();
  const answersHeld: (() => void)[] = [];
  const { businessAccountOf = () => '102290129340398', messagesKeptMax = 100_000 } = options;
  let { webhooks = null } = options;
  let templateNumber = 0;
  let onTaken: ((message: GraphMessage) => void)[] = [];
  const waiting: { account: string; field: string; value: unknown }[] = [];
  let isPosting = false;
  let isStopped = false;
  let whenPosted = Promise.resolve();

  const server = createServer((request, response) => {
    const handleBody = (body: string) => {
      requests.push(`${request.method ?? ''} ${request.url ?? ''}`);
      handle(request, response, body);
    };
    // A request that breaks off is nobody's.
    void readBody(request).then(handleBody, () => undefined);
  });
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => sockets.delete(socket));
  });

  function handle(request: IncomingMessage, response: ServerResponse, body: string): void {
    const url = new URL(request.url ?? '', 'http://graph.test');
    const [, version = '', id = '', edge = ''] = url.pathname.split('/');
    if (!/^v\d+\.\d$/.test(version)) return refuse(response, { code: 2_500, status: 400 });
    if (!request.headers.authorization?.startsWith('Bearer ')) return refuse(response, { code: 190 });
    if (edge === 'messages') return takeMessage(request, response, id, body);
    counts.questions += 1;
    const answer = options.answerQuestion?.({ method: request.method ?? '', path: url.pathname });
    if (answer === 'lost') return void request.socket.destroy();
    if (typeof answer === 'object')
      return 'code' in answer
        ? refuse(response, answer)
        : say(response, answer.status, answer.body, answer.headers);
    if (edge === 'message_templates') return handleTemplates(request, response, id, url, body);
    const template = edge === '' ? templates.get(id) : undefined;
    if (template !== undefined && request.method === 'POST') return editTemplate(response, template, body);
    if (template !== undefined) return say(response, 200, template);
    if (edge === '' && request.method === 'POST') return refuse(response, { code: 100, subcode: 33 });
    if (edge === '') return say(response, 200, describeNumber(id));
    return refuse(response, { code: 100 });
  }

  function describeNumber(id: string) {
    return {
      id,
      display_phone_number: '+1 555 078 3881',
      verified_name: 'Acme',
      quality_rating: 'GREEN',
      status: 'CONNECTED',
      throughput: { level: options.throughput ?? 'STANDARD' },
      whatsapp_business_manager_messaging_limit: options.peopleLimit ?? 'TIER_10K',
    };
  }

  function takeMessage(
    request: IncomingMessage,
    response: ServerResponse,
    phoneNumberId: string,
    body: string,
  ): void {
    const parsed: unknown = JSON.parse(body);
    const fault = findMessageFault(parsed);
    if (fault !== null) {
      counts.faults += 1;
      faults.push(fault);
      return refuse(response, { code: 100 });
    }
    const message = readMessage(
      counts.messages + 1,
      phoneNumberId,
      request.headers.authorization ?? '',
      parsed as MessageBody,
    );
    counts.messages += 1;
    const answer = options.answer?.(message) ?? answerOf(message.to);
    if (answer === 'cut_before') {
      request.socket.destroy();
      return;
    }
    if (typeof answer === 'object') {
      counts.refused += 1;
      return 'code' in answer
        ? refuse(response, answer)
        : say(response, answer.status, answer.body, answer.headers);
    }
    counts.accepted += 1;
    if (messages.length < messagesKeptMax) messages.push(message);
    options.onMessage?.(message);
    for (const resolve of onTaken.splice(0)) resolve(message);
    const accept = () => {
      if (answer === 'lost') request.socket.destroy();
      else if (answer === 'cut_within') cutWithin(response, acceptanceOf(message));
      else if (answer !== 'silent') say(response, 200, acceptanceOf(message));
    };
    const statuses = options.statuses?.(message) ?? statusesOf(message.to);
    if (webhooks?.isBeforeAnswer) {
      report(message, statuses);
      void whenPosted.then(accept);
    } else if (answer === 'late') {
      answersHeld.push(accept);
    } else {
      accept();
      report(message, statuses);
    }
  }

  function report(message: GraphMessage, statuses: readonly GraphStatus[]): void {
    if (webhooks === null) return;
    for (const status of webhooks.isReversed ? [...statuses].reverse() : statuses)
      for (let time = 0; time < (webhooks.times ?? 1); time += 1)
        waiting.push({
          account: businessAccountOf(message.phoneNumberId),
          field: 'messages',
          value: {
            messaging_product: 'whatsapp',
            metadata: { display_phone_number: '15550783881', phone_number_id: message.phoneNumberId },
            statuses: [writeStatus(message, status, webhooks.hidesNumbers ?? false)],
          },
        });
    postSoon();
  }

  /** A webhook of any kind. */
  function tell(account: string, field: string, value: unknown): void {
    waiting.push({ account, field, value });
    postSoon();
  }

  function postSoon(): void {
    if (isPosting || webhooks === null) return;
    isPosting = true;
    whenPosted = postAll().finally(() => {
      isPosting = false;
    });
  }

  /** Ends when nothing waits, or the stand-in is stopped. */
  async function postAll(): Promise<void> {
    // What comes in together leaves together.
    await new Promise((resolve) => setImmediate(resolve));
    while (waiting.length > 0 && !isStopped && webhooks !== null) {
      const changes = waiting.splice(0, statusesAtOnceMax);
      const accounts = [...new Set(changes.map(({ account }) => account))];
      const entry = accounts.map((account) => ({
        id: account,
        changes: changes
          .filter((change) => change.account === account)
          .map(({ field, value }) => ({ field, value })),
      }));
      const webhook = { object: 'whatsapp_business_account', entry };
      const isDescribed = changes.every(({ field }) => field === 'messages');
      const fault = isDescribed ? findWebhookFault(webhook) : null;
      if (fault !== null) faults.push(`a webhook of its own: ${fault}`);
      const body = JSON.stringify(webhook);
      await postUntilTaken(webhooks, body);
    }
  }

  /** Meta repeats what is not answered by 200. */
  async function postUntilTaken({ url, appSecret }: WebhookTarget, body: string): Promise<void> {
    for (let attempt = 0; attempt < webhookAttemptsMax && !isStopped; attempt += 1) {
      counts.webhooks += 1;
      const status = await postWebhook(url, appSecret, body).catch(() => 0);
      if (status >= 200 && status < 300) return;
      counts.unwelcome += 1;
      await new Promise((resolve) => setTimeout(resolve, retryAfterMs));
    }
  }

  function handleTemplates(
    request: IncomingMessage,
    response: ServerResponse,
    businessAccountId: string,
    url: URL,
    body: string,
  ): void {
    const { searchParams } = url;
    const own = [...templates.values()].filter(
      (template) => template.businessAccountId === businessAccountId,
    );
    if (request.method === 'GET') {
      const named = own.filter(({ name }) => name.startsWith(searchParams.get('name') ?? ''));
      const start = Number(searchParams.get('after') ?? 0);
      const end = start + Math.min(Number(searchParams.get('limit') ?? 25), pageLengthMax);
      const isLast = end >= named.length;
      return say(response, 200, {
        data: named.slice(start, end),
        paging: isLast ? {} : { cursors: { after: String(end) }, next: 'https://graph.facebook.com/…' },
      });
    }
    if (request.method === 'DELETE') {
      const id = searchParams.get('hsm_id');
      const doomed = own.filter(
        (template) => template.name === searchParams.get('name') && (id === null || template.id === id),
      );
      if (doomed.length === 0) return refuse(response, { code: 100 });
      for (const template of doomed) templates.delete(template.id);
      return say(response, 200, { success: true });
    }
    const parsed: unknown = JSON.parse(body);
    const fault = findTemplateFault(parsed);
    if (fault !== null) {
      faults.push(fault);
      return refuse(response, { code: 100 });
    }
    const { name, language, category, components } = parsed as {
      name: string;
      language: string;
      category: string;
      components: unknown;
    };
    if (own.some((template) => template.name === name && template.language === language))
      return refuse(response, { code: 100, subcode: 2_388_024 });
    templateNumber += 1;
    const template: GraphTemplate = {
      ...{ id: `5947181904${templateNumber}`, businessAccountId, name, language, category },
      ...{ status: 'PENDING', rejected_reason: 'NONE', components, edits: 0 },
    };
    templates.set(template.id, template);
    return say(response, 200, { id: template.id, status: 'PENDING', category });
  }

  /** Meta: those that are approved once in 24 hours, rejected and paused ones always, and no others. */
  function editTemplate(response: ServerResponse, template: GraphTemplate, body: string): void {
    const parsed: unknown = JSON.parse(body);
    const fault = findTemplateEditFault(parsed);
    if (fault !== null) {
      faults.push(fault);
      return refuse(response, { code: 100 });
    }
    const isApproved = template.status === 'APPROVED';
    const isEditable = isApproved ? template.edits === 0 : /^(REJECTED|PAUSED)$/.test(template.status);
    if (!isEditable) return refuse(response, { code: 100, subcode: 2_388_039 });
    template.edits += isApproved ? 1 : 0;
    Object.assign(template, {
      status: 'PENDING',
      rejected_reason: 'NONE',
      components: (parsed as { components: unknown }).components,
    });
    if (options.onEdit?.(template) === 'lost') return void response.socket?.destroy();
    return say(response, 200, { success: true });
  }

  await new Promise<void>((resolve) => {
    server.listen(options.port ?? 0, '127.0.0.1', resolve);
  });

  return {
    port: (server.address() as AddressInfo).port,
    counts,
    messages,
    /** What was sent that Meta's description does not allow. */
    faults,
    /** Method and path of each. */
    requests,
    templates,
    connections: () => sockets.size,
    /** Resolves with the next message that is taken. */
    nextMessage: () =>
      new Promise<GraphMessage>((resolve) => {
        onTaken.push(resolve);
      }),
    /** Closes them all; resolves when the other side will have noticed. */
    dropConnections: async () => {
      const closed = [...sockets].map((socket) => new Promise((resolve) => socket.once('close', resolve)));
      for (const socket of sockets) socket.destroy();
      await Promise.all(closed);
      await new Promise((resolve) => setTimeout(resolve, 20));
    },
    releaseAnswers: () => {
      for (const answer of answersHeld.splice(0)) answer();
    },
    setWebhooks: (target: WebhookTarget | null) => {
      webhooks = target;
      postSoon();
    },
    tell,
    /** Ends the review of every template of this name, and says so as Meta does: without the number. */
    review: (wantedName: string, status: string, reason = 'NONE') => {
      for (const template of templates.values()) {
        if (template.name !== wantedName) continue;
        template.status = status;
        template.rejected_reason = reason;
        tell(template.businessAccountId, 'message_template_status_update', {
          event: status,
          message_template_id: Number(template.id),
          message_template_name: template.name,
          message_template_language: template.language,
          message_template_category: template.category,
          reason,
        });
      }
    },
    /** Resolves once every webhook was taken. */
    whenPosted: () => whenPosted,
    close: async () => {
      isStopped = true;
      onTaken = [];
      server.close();
      for (const socket of sockets) socket.destroy();
      await whenPosted;
    },
  };
}

type MessageBody = {
  to: string;
  biz_opaque_callback_data: string;
  template: {
    name: string;
    language: { code: string };
    components?: {
      type: string;
      index?: string;
      parameters: { parameter_name?: string; text: string }[];
    }[];
  };
};

function readMessage(
  number: number,
  phoneNumberId: string,
  authorization: string,
  body: MessageBody,
): GraphMessage {
  const { template } = body;
  const values = (template.components ?? []).flatMap(({ type, index, parameters }) =>
    parameters.map(({ parameter_name: name, text }) => [name ?? `${type} ${index ?? '0'}`, text] as const),
  );
  return {
    number,
    phoneNumberId,
    accessToken: authorization.replace('Bearer ', ''),
    to: `+${body.to}`,
    token: body.biz_opaque_callback_data,
    template: template.name,
    language: template.language.code,
    values: Object.fromEntries(values),
    id: `wamid.${Buffer.from(`${phoneNumberId} ${body.to} ${number}`).toString('base64')}`,
    body,
  };
}

function acceptanceOf({ to, id }: GraphMessage) {
  const digits = to.replace('+', '');
  return {
    messaging_product: 'whatsapp',
    contacts: [{ input: digits, wa_id: digits }],
    messages: [{ id, message_status: 'accepted' }],
  };
}

/** As it stands in a webhook. */
export function writeStatus(
  { id, to, token }: Pick<GraphMessage, 'id' | 'to' | 'token'>,
  { status, code }: GraphStatus,
  hidesNumber: boolean,
) {
  return {
    ...{ id, status, timestamp: '1795262400' },
    ...(hidesNumber ? {} : { recipient_id: to.replace('+', '') }),
    recipient_user_id: `US.${to.replace('+', '')}`,
    biz_opaque_callback_data: token,
    ...(code !== undefined && {
      errors: [
        {
          code,
          title: `Error ${code}`,
          message: `Error ${code}`,
          error_data: { details: 'In the words of the stand-in.' },
          href: 'https://developers.facebook.com/docs/whatsapp/cloud-api/support/error-codes/',
        },
      ],
    }),
  };
}

function refuse(
  response: ServerResponse,
  refusal: { code: number; subcode?: number; status?: number; headers?: Readonly<Record<string, string>> },
): void {
  const { code, subcode, status = statusOfCode[code] ?? 400, headers = {} } = refusal;
  const error = {
    ...{ message: `(#${code}) Error ${code}`, type: 'OAuthException', code },
    ...(subcode !== undefined && {
      error_subcode: subcode,
      error_user_title: 'Refused',
      error_user_msg: 'So it is.',
    }),
    error_data: { messaging_product: 'whatsapp', details: 'In the words of the stand-in.' },
    fbtrace_id: 'AXsgnV2Cm3ZMGF3dF_cfYIn',
  };
  say(response, status, { error }, headers);
}

function say(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
    'x-fb-trace-id': 'Bz5iGI1bQgF',
    ...headers,
  });
  response.end(text);
}

function cutWithin(response: ServerResponse, body: unknown): void {
  const text = JSON.stringify(body);
  response.writeHead(200, { 'content-length': Buffer.byteLength(text) });
  response.write(text.slice(0, 20), () => response.socket?.destroy());
}

/** As Meta signs: over the octets of the body. */
export function signBody(appSecret: string, body: string | Uint8Array): string {
  return `sha256=${createHmac('sha256', appSecret).update(body).digest('hex')}`;
}

/** Resolves with the status of the answer. */
export async function postWebhook(url: string, appSecret: string, body: string): Promise<number> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-hub-signature-256': signBody(appSecret, body) },
    body,
  });
  await response.arrayBuffer();
  return response.status;
}

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
