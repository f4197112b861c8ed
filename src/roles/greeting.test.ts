import { expect, test } from 'vitest';
import { composeGreeting } from './greeting.ts';

const first = {
  organizationId: 'org-1',
  name: 'My organization',
  key: 'pst_secret',
  domain: 'postillion.test',
  sender: 'Demo',
};
const api = {
  url: 'http://127.0.0.1:8025',
  sandbox: { kind: 'shown', link: 'http://127.0.0.1:8025/sandbox?token=abc' },
  organization: first,
} as const;
const sandboxes = {
  filesElsewhere: null,
  emailProvider: 'sandbox',
  smsProvider: 'sandbox',
  pushProvider: 'sandbox',
  chatAppProvider: 'sandbox',
} as const;

test('a first start tells where everything is, and gives a request to paste', () => {
  const greeting = composeGreeting({ api, ...sandboxes });
  expect(greeting).toContain('Postillion serves http://127.0.0.1:8025/v1\n');
  expect(greeting).toContain('Sandbox inbox: http://127.0.0.1:8025/sandbox?token=abc\n');
  expect(greeting).toContain('API key:      pst_secret\n');
  expect(greeting).toMatch(/\n {2}-d '\{"from":"hello@postillion\.test",.*\}'\n\n$/);
});

test('a later start names no key, and one without an organization says how to make one', () => {
  expect(composeGreeting({ api: { ...api, organization: 'exists' }, ...sandboxes })).not.toContain('pst_');
  expect(composeGreeting({ api: { ...api, organization: 'none' }, ...sandboxes })).toContain(
    'bin/postillion org create --name NAME --sandbox\n',
  );
});

test('how messages of each channel leave is said, and of a sandbox that is not served nothing', () => {
  const greeting = composeGreeting({
    api: { ...api, sandbox: { kind: 'none' } },
    filesElsewhere: null,
    emailProvider: 'mx',
    smsProvider: 'twilio',
    pushProvider: 'sandbox',
    chatAppProvider: 'sandbox',
  });
  expect(greeting).toContain(
    "\nEmail goes straight to the recipients' servers, texts leave through Twilio, pushes stay in the sandbox, chat-app messages stay in the sandbox. ",
  );
  expect(greeting).not.toMatch(/sandbox inbox/i);
});

test('files that are not in the data directory are named, so that they can be kept and removed', () => {
  const filesElsewhere = { files: '/var/lib/postillion/0a-1b', dataDirectory: '/root/postillion/data' };
  for (const from of [api, null])
    expect(composeGreeting({ ...sandboxes, api: from, filesElsewhere })).toContain(
      '\nDatabase:      /var/lib/postillion/0a-1b, since PostgreSQL does not run as root, and its own user cannot enter /root/postillion/data\n',
    );
});

test('a worker says that it delivers', () => {
  const greeting = composeGreeting({ api: null, ...sandboxes, emailProvider: 'smtp' });
  expect(greeting).toBe(
    '\nPostillion delivers, and serves nothing. Email leaves through your SMTP server, texts stay in the sandbox, pushes stay in the sandbox, chat-app messages stay in the sandbox.\nCtrl-C stops it.\n\n',
  );
});
