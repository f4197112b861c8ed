import { expect, test } from 'vitest';
import {
  listExpectedRecords,
  observeAlias,
  observeExchanges,
  observeTexts,
  type RecordKind,
} from './records.ts';

const hosts = { bounceHost: 'mail.host.test', trackingHost: 'host.test' };
const settings = {
  name: 'example.com',
  returnPathSubdomain: 'send',
  trackingSubdomain: 'click',
  dkim: { selector: 'pst1', publicKey: 'MIIBIjANBgkq' },
};
const expected = listExpectedRecords(settings, hosts);
const recordOf = (kind: RecordKind) => expected.find((record) => record.kind === kind)!;

test('without a bounce host nothing is asked for at the return path', () => {
  const kinds = listExpectedRecords(settings, { ...hosts, bounceHost: null }).map(({ kind }) => kind);
  expect(kinds).toEqual(['dkim', 'dmarc', 'tracking']);
});

test('the records say where what is published', () => {
  expect(expected).toEqual([
    {
      kind: 'dkim',
      type: 'TXT',
      name: 'pst1._domainkey.example.com',
      value: 'v=DKIM1; k=rsa; p=MIIBIjANBgkq',
      priority: null,
      isRequired: true,
    },
    {
      kind: 'return_path_mx',
      type: 'MX',
      name: 'send.example.com',
      value: 'mail.host.test',
      priority: 10,
      isRequired: true,
    },
    {
      kind: 'return_path_spf',
      type: 'TXT',
      name: 'send.example.com',
      value: 'v=spf1 include:mail.host.test ~all',
      priority: null,
      isRequired: true,
    },
    {
      kind: 'dmarc',
      type: 'TXT',
      name: '_dmarc.example.com',
      value: 'v=DMARC1; p=none;',
      priority: null,
      isRequired: false,
    },
    {
      kind: 'tracking',
      type: 'CNAME',
      name: 'click.example.com',
      value: 'host.test',
      priority: null,
      isRequired: true,
    },
  ]);
});

const observeText = (kind: RecordKind, ...records: string[]) =>
  observeTexts(recordOf(kind), { kind: 'found', records }, settings, hosts);

test.each<[RecordKind, string[], boolean]>([
  ['dkim', ['v=DKIM1; k=rsa; p=MIIBIjANBgkq'], true],
  ['dkim', ['p=MIIB IjAN\tBgkq'], true],
  ['dkim', ['google-site-verification=1', 'v=DKIM1; p=MIIBIjANBgkq'], false],
  ['dkim', ['v=DKIM1; k=rsa; p=MIIBIjANBgkX'], false],
  ['dkim', ['v=DKIM1; k=rsa; p='], false],
  ['return_path_spf', ['v=spf1 include:mail.host.test ~all'], true],
  ['return_path_spf', ['V=SPF1  INCLUDE:Mail.Host.Test  include:_spf.example.net -all'], true],
  ['return_path_spf', ['v=spf1 +include:mail.host.test. -all', 'unrelated'], true],
  ['return_path_spf', ['v=spf1 include:mail.host.test ~all', 'v=spf1 -all'], false],
  ['return_path_spf', ['v=spf1 include:mail.host.test.evil.example -all'], false],
  ['return_path_spf', ['v=spf1 -include:mail.host.test ~all'], false],
  ['return_path_spf', ['v=spf10 include:mail.host.test ~all'], false],
  ['return_path_spf', ['include:mail.host.test'], false],
  ['dkim', ['v=DKIM1; k=rsa; p=MIIBIjANBgkq', 'v=DKIM1; k=rsa; p=MIIBIjANBgkq'], false],
  ['dkim', ['v=DKIM1; k=rsa; p=MIIBIjANBgkq', 'v=DKIM1; k=rsa; p=AAAA'], false],
  ['dkim', ['v=DKIM1; k=rsa; p=AAAA', 'v=DKIM1; k=rsa; p=MIIBIjANBgkq'], false],
  ['dkim', ['v=DKIM1; k=rsa; p=MIIBIj', 'ANBgkq'], false],
  ['dkim', ['v=DKIM1; k=rsa; p=MIIBIjANBgkq', 'AB"'], false],
  ['dmarc', ['v=DMARC1; p=none;', 'v=DMARC1; p=none;'], false],
  ['dmarc', ['v=DMARC1; p=none;', 'v=DMARC1'], false],
  ['dmarc', ['v=DMARC1; p=none;', 'a proof for somebody else'], true],
  ['dmarc', ['v=DMARC1; p=none;'], true],
  ['dmarc', ['v=DMARC1;p=reject; rua=mailto:a@example.com'], true],
  ['dmarc', ['v=DMARC1; p=whatever'], false],
  ['dmarc', ['p=none; v=DMARC1'], false],
  ['dmarc', ['v=DMARC1'], false],
])('a %s record of %j is as expected: %s', (kind, texts, isAsExpected) => {
  expect(observeText(kind, ...texts)).toEqual({ kind: 'seen', found: texts, isAsExpected });
});

test('what is really there is shown, so that a person sees the doubled or the proxied record', () => {
  expect(observeText('return_path_spf', 'v=spf1 -all', 'v=spf1 ~all')).toMatchObject({
    found: ['v=spf1 -all', 'v=spf1 ~all'],
  });
  const records = [
    { preference: 20, exchange: 'feedback.example.net' },
    { preference: 10, exchange: 'mail.host.test' },
  ];
  expect(observeExchanges(recordOf('return_path_mx'), { kind: 'found', records })).toEqual({
    kind: 'seen',
    found: ['20 feedback.example.net', '10 mail.host.test'],
    isAsExpected: true,
  });
  expect(observeAlias(recordOf('tracking'), { kind: 'found', records: ['proxy.example.net'] })).toEqual({
    kind: 'seen',
    found: ['proxy.example.net'],
    isAsExpected: false,
  });
});

test('absence is seen, and a server that does not answer is not absence', () => {
  expect(
    observeTexts(recordOf('dkim'), { kind: 'absent', reason: 'no_such_domain' }, settings, hosts),
  ).toEqual({ kind: 'seen', found: [], isAsExpected: false });
  expect(
    observeTexts(
      recordOf('dkim'),
      { kind: 'failed', reason: 'server_failure', detail: 'SERVFAIL' },
      settings,
      hosts,
    ),
  ).toEqual({ kind: 'unknown', detail: 'SERVFAIL' });
});

test('a record of a stranger is capped, and carries nothing that PostgreSQL refuses', () => {
  const observation = observeText('dmarc', `\0\ud800${'x'.repeat(10_000)}`, ...Array<string>(100).fill('y'));
  if (observation.kind !== 'seen') throw new Error('it was seen');
  expect(observation.found).toHaveLength(20);
  expect(observation.found[0]!.length).toBeLessThanOrEqual(1_000);
  expect(observation.found[0]).not.toMatch(/[\0\ud800]/);
});
