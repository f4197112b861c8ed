import { hostname } from 'node:os';
import type { Installation } from '../installation/installation.ts';
import { describeSubmitted, type NoteRequest } from '../platform/http/logged-request.ts';
import type { HttpServerOptions } from '../platform/http/server.ts';
import {
  startSubmissionListener,
  type SubmissionListener,
  type SubmissionOptions,
} from '../submission/submission.ts';
import { startListening } from './listening.ts';

type SubmissionTools = Pick<HttpServerOptions, 'admit' | 'isKeyUsed'> & { note: NoteRequest } & Pick<
    SubmissionOptions,
    'sending' | 'runner' | 'lent'
  >;

/** Takes emails by SMTP if a port is set. Throws a ListenError if that cannot be had. */
export async function startSubmission(
  installation: Installation,
  { note, ...tools }: SubmissionTools,
): Promise<SubmissionListener | null> {
  const { config } = installation;
  if (config.submission === null) return null;
  const { submission, mailHost } = config;
  const { host, port, tlsPort } = submission;
  const portSetting = port === null ? 'POSTILLION_SUBMISSION_TLS_PORT' : 'POSTILLION_SUBMISSION_PORT';
  return startListening(
    { host, port: port ?? tlsPort ?? 0, hostSetting: 'POSTILLION_SUBMISSION_LISTEN', portSetting },
    () =>
      startSubmissionListener({
        ...installation,
        ...tools,
        ...submission,
        hostName: mailHost ?? hostname(),
        note: logIn(installation, note),
      }),
  );
}

/** Into the same log as requests, and by its rates. */
function logIn({ clock }: Pick<Installation, 'clock'>, note: NoteRequest): SubmissionOptions['note'] {
  return ({
    holder: { organizationId, apiKey },
    command,
    code,
    error,
    key,
    shownBody,
    isCounted,
    ...rest
  }) => {
    const kind = error === null ? 'change' : isCounted ? 'refused' : 'turned_away';
    note({ organizationId, kind }, () =>
      describeSubmitted(
        {
          ...rest,
          organizationId,
          apiKey,
          method: command,
          status: code,
          errorName: error?.definition.name ?? null,
          message: error?.message ?? null,
          idempotencyKey: key,
          body: shownBody,
        },
        Math.max(0, clock.nowMs() - rest.startedAtMs),
      ),
    );
  };
}
