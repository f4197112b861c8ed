/**
 * The gallery as spam filters judge it: every template is sent as a tracked campaign through SMTP, signed, from a domain
 * with DKIM, SPF and DMARC in the DNS, and what has arrived is given to rspamd and SpamAssassin.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { type DnsNameRecords, startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { eventually } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type SinkMessage, type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';
import {
  describeWithSpamFilters,
  judgeBySpamAssassin,
  type Rspamd,
  startRspamd,
  type Verdict,
} from '../support/spam-filters.ts';

const scoreMax = 0.5;

const name = 'sender.example';
const hop = { ip: '198.51.100.7', host: 'mx1.relay.example' };

/** What a template cannot help. */
const excused: Record<string, string> = {
  // Each copy has a return path of its own, by which its bounces are told apart.
  FORGED_SENDER: 'the return path is not the address in From',
  // Tracking adds the image that reports opens, and replaces links of the HTML alone.
  URI_COUNT_ODD: 'text and HTML together have an odd number of addresses',
};

type Template = { id: string; name: string; sample_variables: Record<string, string> };

describeWithSpamFilters('the templates of the gallery', () => {
  let dns: TestDnsServer;
  let sink: SmtpSink;
  let server: TestServer;
  let rspamd: Rspamd;
  const templates: Template[] = [];
  /** By the id of the template. */
  const arrived = new Map<string, SinkMessage>();

  async function ask<Body>(method: string, path: string, body?: unknown): Promise<Body> {
    const response = await server.request<Body>(method, `/v1${path}`, body);
    if (response.status >= 300) throw new Error(response.text);
    return response.body;
  }

  beforeAll(async () => {
    sink = await startSmtpSink({ keepContent: true });
    dns = await startDnsServer({
      [hop.host]: { A: [hop.ip], TXT: [`v=spf1 a:${hop.host} -all`] },
      '7.100.51.198.in-addr.arpa': { PTR: [hop.host] },
    });
    server = await startTestServer({
      worker: true,
      smtpUrl: `smtp://127.0.0.1:${sink.port}?connections=2`,
      dnsServers: [dns.address],
      bounceHost: hop.host,
      mailHost: hop.host,
      publicUrl: `https://mail.${name}`,
    });
    await registerDomain();
    const { data } = await ask<{ data: Template[] }>('GET', '/templates/gallery?limit=100');
    for (const { id } of data) {
      const template = await ask<Template>('GET', `/templates/gallery/${id}`);
      templates.push(template);
      await send(template);
    }
    await eventually(
      () => sink.messages.length,
      (count) => count === templates.length,
    );
    for (const message of sink.messages) arrived.set(message.recipients[0]!.split('@')[0]!, message);
    rspamd = await startRspamd(dns.address);
  });
  afterAll(async () => {
    await rspamd.stop();
    await server.stop();
    await sink.close();
    await dns.stop();
  });

  async function registerDomain(): Promise<void> {
    const domain = await ask<DomainRecord>('POST', '/email/domains', { name });
    const published = new Map<string, DnsNameRecords>();
    for (const { type, name: at, value, priority } of domain.records) {
      const record: DnsNameRecords = type === 'MX' ? { MX: [[priority!, value]] } : { TXT: [value] };
      published.set(at, { ...published.get(at), ...record });
    }
    for (const [at, records] of published) dns.set(at, records);
    const { status } = await ask<DomainRecord>('POST', `/email/domains/${domain.id}/verify`);
    expect(status).toBe('verified');
  }

  async function send({ id, sample_variables }: Template): Promise<void> {
    const copy = await ask<{ id: string }>('POST', `/templates/gallery/${id}/copy`);
    const list = await ask<{ id: string }>('POST', '/lists', { name: id });
    const { unsubscribe_url: _, first_name = 'Maya', ...variables } = sample_variables;
    await ask('POST', '/contacts', { email: `${id}@recipient.example`, first_name, list_ids: [list.id] });
    const campaign = await ask<{ id: string }>('POST', '/email/campaigns', {
      name: id,
      from: `hello@${name}`,
      from_name: 'Fernway',
      template_id: copy.id,
      variables,
      list_ids: [list.id],
      track_opens: true,
      track_clicks: true,
    });
    await ask('POST', `/email/campaigns/${campaign.id}/send`, {});
  }

  /** Only what speaks against a message: a good signature would make up for bad HTML. */
  function findFaults({ name: template }: Template, verdict: Verdict): string[] {
    const faults = Object.entries(verdict).filter(
      ([rule, score]) => score > 0 && !Object.hasOwn(excused, rule),
    );
    const sum = faults.reduce((total, [, score]) => total + score, 0);
    return sum <= scoreMax ? [] : [`${template}: ${faults.map((fault) => fault.join(' ')).join(', ')}`];
  }

  test('have nothing that rspamd holds against them', async () => {
    const faults: string[] = [];
    for (const template of templates) {
      const verdict = await rspamd.judge(arrived.get(template.id)!, hop);
      expect(verdict).toHaveProperty('R_DKIM_ALLOW');
      faults.push(...findFaults(template, verdict));
    }
    expect(faults).toEqual([]);
  });

  test('have nothing that SpamAssassin holds against them', async () => {
    const verdicts = await judgeBySpamAssassin(templates.map(({ id }) => arrived.get(id)!));
    for (const verdict of verdicts) expect(verdict).toHaveProperty('HTML_MESSAGE');
    expect(templates.flatMap((template, index) => findFaults(template, verdicts[index]!))).toEqual([]);
  });

  test('would not pass unseen if they hid words in a font of no size', async () => {
    const message = arrived.get(templates[0]!.id)!;
    const hidden = '<p style="font-size:0">hidden</p>'.repeat(12);
    const content = Buffer.from(
      `From: Ann <a@${name}>\r\nTo: b@recipient.example\r\nSubject: x\r\nContent-Type: text/html\r\n\r\n${hidden}`,
    );
    const verdict = await rspamd.judge({ ...message, content }, hop);
    expect(findFaults(templates[0]!, verdict).join()).toContain('ZERO_FONT');
  });
});
