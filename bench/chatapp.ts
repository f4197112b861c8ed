import { Pool } from 'undici';
import { composeMessage } from '../src/channels/chatapp/providers/whatsapp/message.ts';
import type { TemplateContent } from '../src/channels/chatapp/template.ts';
import { setAccount } from '../src/chat-templates/chat-templates.ts';
import { insertTemplate } from '../src/chat-templates/store.ts';
import { writeReportToken } from '../src/messages/messages.ts';
import { dateOf, systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { deliver, type DeliveryLoad, type DeliveryRun, holdRecipients, holdSlices } from './deliver.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, startModule, startServer } from './processes.ts';

/**
 * From the queue to a Graph API in another process that answers after 50 ms: personalised notices, every hand-off
 * announced and every outcome written, once as a campaign, and once as many messages to one person each. The baseline
 * records nothing: undici in a loop over as many connections, with one body that was made ahead.
 *
 * The account has many fast numbers, so that their pace, a thousand a second each, is not what is measured.
 */
const roundsCount = 3;
const messagesCount = 20_000;
const warmUpCount = 4_000;
/** As many hand-offs as the provider has under way. */
const connections = 256;
const numbers = Array.from({ length: 20 }, (_none, index) => `20000${index + 10}`);
const accessToken = 'EAAJB'.repeat(40);

const content: TemplateContent = {
  kind: 'written',
  components: [{ type: 'body', text: 'Hello {{first_name}}, your order {{order_number}} is on its way.' }],
  examples: { first_name: 'Ana', order_number: '4711' },
};
const values = { first_name: 'Anastasia', order_number: '4711' };

type Kind = 'baseline' | 'campaign' | 'transactional';

export async function benchChatApp(): Promise<void> {
  const installation = await createBenchInstallation();
  const runs: Record<Kind, DeliveryRun[]> = { baseline: [], campaign: [], transactional: [] };
  try {
    const peer = startModule('bench/graph-peer-process.ts', []);
    const { port } = (await peer.nextLine((line) => 'port' in line)) as { port: number };
    const origin = `http://127.0.0.1:${port}`;
    const templateId = await addAccount(installation);
    const worker = await startServer('worker', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      POSTILLION_CHATAPP_PROVIDER: 'whatsapp',
      POSTILLION_WHATSAPP_URL: origin,
      POSTILLION_PUBLIC_URL: 'https://post.example.com',
      LOG_LEVEL: 'info',
    });
    const loadOf = (measured: 'campaign' | 'transactional', count: number): DeliveryLoad => ({
      measured,
      seed: (target, wanted) =>
        seedMessages(target, { templateId, isCampaign: measured === 'campaign' }, wanted),
      count,
      endStatus: 'sent',
    });
    // Both run on compiled code, and the worker has asked how fast the numbers are.
    await sendByUndici(installation, origin, warmUpCount);
    for (const kind of ['campaign', 'transactional'] as const)
      await deliver(installation, worker, loadOf(kind, warmUpCount));
    for (let round = 0; round < roundsCount; round += 1) {
      runs.baseline.push(await sendByUndici(installation, origin, messagesCount));
      for (const kind of ['campaign', 'transactional'] as const)
        runs[kind].push(await deliver(installation, worker, loadOf(kind, messagesCount)));
    }
    report(runs);
    await worker.stop();
    await peer.stop();
  } finally {
    await installation.remove();
  }
}

/** Returns the id of its template, which was approved. */
async function addAccount({ database, organizationId, secrets }: BenchInstallation): Promise<string> {
  const newId = createIds(systemClock);
  const tools = { database, clock: systemClock, newId, secrets };
  await setAccount(tools, organizationId, {
    businessAccountId: '10000',
    phoneNumberIds: numbers,
    accessToken,
    ownApp: null,
  });
  const id = newId();
  await insertTemplate(database, {
    ...{ organizationId, id, name: 'notice', language: 'en_US', category: 'utility', content },
    at: dateOf(systemClock.nowMs()),
  });
  await database.rows(
    unpreparedStatement(
      `update chat_templates
       set status = 'approved', provider_state = 'approved', provider_template_id = id, reviewed_at = created_at,
         next_step = null, due_at = null
       where organization_id = $1 and id = $2`,
    ),
    [organizationId, id],
  );
  return id;
}

/** One message to many, or to each a message of its own. Every person has a number of their own. */
async function seedMessages(
  { database, organizationId }: BenchInstallation,
  { templateId, isCampaign }: { templateId: string; isCampaign: boolean },
  count: number,
): Promise<void> {
  const newId = createIds(systemClock);
  const ids = Array.from({ length: isCampaign ? 1 : count }, () => newId());
  const parameters = isCampaign ? { first_name: '{{first_name}}', order_number: '{{order_number}}' } : values;
  await database.rows(
    unpreparedStatement(
      `with new_messages as (
         insert into messages (organization_id, id, channel, class, sender, subject, subject_key, details,
           recipient_count, template_id, category, created_at, updated_at)
         select $1, id, 'chatapp', $3, '', null, 'notice', $4, $5, $6, 'utility', now(), now()
         from unnest($2::uuid[]) as m (id)
       )
       insert into message_contents (organization_id, message_id, content)
       select $1, id, $7 from unnest($2::uuid[]) as m (id)`,
    ),
    [
      organizationId,
      ids,
      isCampaign ? 'campaign' : 'transactional',
      JSON.stringify({ template: 'notice', language: 'en_US' }),
      isCampaign ? count : 1,
      templateId,
      JSON.stringify({ template_id: templateId, category: 'utility', parameters }),
    ],
  );
  await database.rows(
    unpreparedStatement(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, variables, status_at)
       select $1, case when $3 then ($2::uuid[])[1] else ($2::uuid[])[n] end, case when $3 then n else 0 end, 'to',
         '+49151' || lpad(n::text, 8, '0'), '+49151' || lpad(n::text, 8, '0'), case when $3 then $4::json end, now()
       from generate_series(1, $5::integer) n`,
    ),
    [organizationId, ids, isCampaign, JSON.stringify(values), count],
  );
  if (isCampaign) for (const id of ids) await holdSlices({ database, organizationId }, id, 'chatapp');
  else await holdRecipients({ database, organizationId }, ids, 'chatapp');
}

async function sendByUndici(
  { organizationId, secrets }: BenchInstallation,
  origin: string,
  count: number,
): Promise<DeliveryRun> {
  const reference = { organizationId, messageId: createIds(systemClock)(), ordinal: 0 };
  const template = { name: 'notice', language: 'en_US', category: 'utility', content } as const;
  const body = composeMessage(
    { to: '+4915100000001', template, parameters: values, isCampaign: false },
    writeReportToken(secrets, reference),
  );
  const headers = { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' };
  const pool = new Pool(origin, { connections, pipelining: 1 });
  const ownBeforeUs = cpuUs(process.pid) ?? Number.NaN;
  const startedAtMs = performance.now();
  let sent = 0;
  const sendOneByOne = async () => {
    while (sent < count) {
      sent += 1;
      const path = `/v25.0/${numbers[0]}/messages`;
      const answer = await pool.request({ method: 'POST', path, headers, body });
      await answer.body.json();
    }
  };
  await Promise.all(Array.from({ length: connections }, sendOneByOne));
  const perSecond = count / ((performance.now() - startedAtMs) / 1_000);
  const workerUs = ((cpuUs(process.pid) ?? Number.NaN) - ownBeforeUs) / count;
  await pool.close();
  return {
    measured: `undici, in a loop over ${connections} connections`,
    perSecond,
    workerUs,
    postgresUs: null,
  };
}

function report(runs: Readonly<Record<Kind, DeliveryRun[]>>): void {
  const baseline = median(runs.baseline.map(({ perSecond }) => perSecond));
  console.log(
    '\nchatapp: from the queue to a Graph API 50 ms away, outcomes written, medians of interleaved rounds',
  );
  console.table(
    Object.values(runs).map((all) => {
      const perSecond = median(all.map((run) => run.perSecond));
      return {
        name: all[0]?.measured,
        'per second': Math.round(perSecond),
        'to baseline': (perSecond / baseline).toFixed(2),
        'sender µs': Math.round(median(all.map(({ workerUs }) => workerUs ?? Number.NaN))),
        'PostgreSQL µs': Math.round(median(all.map(({ postgresUs }) => postgresUs ?? Number.NaN))),
      };
    }),
  );
}
