/** One thing that the doctor looked at. `advice` says what to mend, and is null where there is nothing to mend. */
export type Finding = {
  level: 'ok' | 'warning' | 'problem';
  subject: string;
  found: string;
  advice: string | null;
};

export function ok(subject: string, found: string): Finding {
  return { level: 'ok', subject, found, advice: null };
}

export function warning(subject: string, found: string, advice: string): Finding {
  return { level: 'warning', subject, found, advice };
}

export function problem(subject: string, found: string, advice: string): Finding {
  return { level: 'problem', subject, found, advice };
}
