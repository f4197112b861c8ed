/** Entry of the thread that reads large request bodies. */
import { contactPreparations, suppressionPreparations } from '../audience/audience.ts';
import { chatAppPreparations } from '../chatapp/routes.ts';
import { translations } from '../compat/compat.ts';
import { devicePreparations } from '../devices/routes.ts';
import { eventPreparations } from '../events/routes.ts';
import { emailPreparations, emailTasks } from '../email/routes.ts';
import { serveBodyThread } from '../platform/http/body-threads.ts';
import { pushPreparations } from '../push/push.ts';
import { smsPreparations } from '../sms/routes.ts';
import { readMessageTask } from '../submission/submission.ts';
import { templateTasks } from '../templates/routes.ts';
import { fieldRules } from './field-rules.ts';
import { textFormats } from './text-formats.ts';

serveBodyThread({
  formats: textFormats,
  rules: fieldRules,
  preparations: {
    ...chatAppPreparations,
    ...contactPreparations,
    ...devicePreparations,
    ...emailPreparations,
    ...eventPreparations,
    ...pushPreparations,
    ...smsPreparations,
    ...suppressionPreparations,
  },
  translations,
  tasks: [...emailTasks, ...templateTasks, readMessageTask],
});
