import type { ChatAppFinding } from '../channels/chatapp/provider.ts';
import { noteTemplateFinding } from '../chat-templates/chat-templates.ts';
import type { Finding } from '../messages/messages.ts';
import type { Clock } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';

/** What a hand-off found out beyond the one message. */
export type ChatAppFound = { templateId: string; finding: ChatAppFinding };

/** Templates in the order of their ids, as everybody locks them who locks more than one. */
export async function keepChatAppFindings(
  tools: { clock: Clock; newId: NewId },
  transaction: Transaction,
  findings: readonly Finding[],
): Promise<boolean> {
  const found = findings.map(({ organizationId, finding }) => ({
    organizationId,
    ...(finding as ChatAppFound), // As delivery.ts gave it.
  }));
  const ofTemplates = new Map(
    found.flatMap(({ organizationId, templateId: id, finding }) =>
      finding.kind === 'template'
        ? [
            [
              `${organizationId} ${id}`,
              { organizationId, id, state: finding.state, words: finding.words },
            ] as const,
          ]
        : [],
    ),
  );
  for (const [, template] of [...ofTemplates].sort(([first], [second]) => (first < second ? -1 : 1)))
    await noteTemplateFinding(tools, transaction, template);
  return false;
}
