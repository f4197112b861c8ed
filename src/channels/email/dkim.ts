/**
 * DKIM signatures (RFC 6376): RSA-2048 with SHA-256, relaxed/relaxed, over the whole body and over every field that
 * we write. PKCS #1 v1.5 has nothing random in it, so that the same message signed at the same instant is the same
 * to the octet.
 */
import { type KeyObject, createPrivateKey, generateKeyPair } from 'node:crypto';
import { parseDomain } from './address.ts';
import {
  type CanonicalField,
  canonicaliseHeader,
  digestBody,
  digestReducedBody,
  reduceWhiteSpace,
  selectFields,
} from './dkim-canonical.ts';
import { writeField } from './headers.ts';
import type { FilledEmail } from './mime.ts';
import type { SignText } from './signing-threads.ts';

/** RFC 8301 §3.2: what signers should use. Larger keys sign six times slower and do not fit in one UDP answer. */
const modulusBits = 2_048;

/** A pair in the form in which it is kept: private key PKCS #8 DER, public key SPKI DER in base64 as it stands in p=. */
export type DkimKeyPair = { privateKey: Buffer; publicKey: string };

/** A fresh RSA-2048 pair, made in the thread pool: it takes some tenths of a second. */
export function generateDkimKeyPair(): Promise<DkimKeyPair> {
  return new Promise((resolve, reject) => {
    generateKeyPair(
      'rsa',
      {
        modulusLength: modulusBits,
        publicKeyEncoding: { type: 'spki', format: 'der' },
        privateKeyEncoding: { type: 'pkcs8', format: 'der' },
      },
      (error, publicKey, privateKey) => {
        if (error === null) resolve({ privateKey, publicKey: publicKey.toString('base64') });
        else reject(error);
      },
    );
  });
}

/** What signs for one domain. Parsing the key takes longer than signing: a signer is opened once and kept. */
export type DkimSigner = { domain: string; selector: string; key: KeyObject };

/** RFC 6376 §3.1: labels of RFC 5321 with dots between them. */
const selectorPattern = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/i;

/**
 * `domain` in lower-case A-labels, `privateKey` as in `DkimKeyPair`. Throws if one of them is not what it should be:
 * they are our own, and a signature under a wrong name is worse than none.
 */
export function openDkimSigner(options: {
  domain: string;
  selector: string;
  privateKey: Buffer;
}): DkimSigner {
  const { domain, selector } = options;
  if (parseDomain(domain) !== domain) throw new Error('not a domain that mail can be signed for');
  if (!selectorPattern.test(selector)) throw new Error('not a selector');
  const key = createPrivateKey({ key: options.privateKey, format: 'der', type: 'pkcs8' });
  const bits = key.asymmetricKeyType === 'rsa' ? (key.asymmetricKeyDetails?.modulusLength ?? 0) : 0;
  if (bits < modulusBits)
    throw new Error(`the key of ${selector}._domainkey.${domain} is not an RSA-2048 key`);
  return { domain, selector, key };
}

/** Where the public key is looked up (RFC 6376 §3.6.2.1). */
export function dkimRecordName(domain: string, selector: string): string {
  return `${selector}._domainkey.${domain}`;
}

/** The TXT record to be published: 410 characters, which a DNS server splits into strings of at most 255. */
export function dkimRecordValue(publicKey: string): string {
  return `v=DKIM1; k=rsa; p=${publicKey}`;
}

/**
 * Whether a TXT record publishes this key in a way that lets mail of ours be verified with it. `txt` is the record
 * with its strings joined; white space and the order of the tags do not matter. The other tags are heeded as RFC 6376
 * §3.6.1 says: another version, key type, hash or service is a no, and so is an empty p=, which revokes the key.
 */
export function publishesDkimKey(txt: string, publicKey: string): boolean {
  const tags = readTags(txt);
  if (tags === null || publicKey === '') return false;
  const lists = (name: string, wanted: readonly string[]) => {
    const value = tags.get(name);
    return value === undefined || value.split(/ ?: ?/).some((word) => wanted.includes(word));
  };
  return (
    (tags.get('v') ?? 'DKIM1') === 'DKIM1' &&
    (tags.get('k') ?? 'rsa') === 'rsa' &&
    lists('h', ['sha256']) &&
    lists('s', ['*', 'email']) &&
    tags.get('p')?.replaceAll(' ', '') === publicKey
  );
}

/** A tag list (RFC 6376 §3.2) with its white space reduced, or null where it is none or names a tag twice. */
function readTags(text: string): Map<string, string> | null {
  const specs = reduceWhiteSpace(text.replaceAll('\r\n', ' ')).split(/ ?; ?/);
  // One semicolon may follow the last tag.
  if (specs.at(-1) === '') specs.pop();
  const tags = new Map<string, string>();
  for (const spec of specs) {
    const match = /^([A-Za-z]\w*) ?= ?/.exec(spec);
    const name = match?.[1];
    if (match === null || name === undefined || tags.has(name)) return null;
    tags.set(name, spec.slice(match[0].length));
  }
  return tags;
}

/**
 * Fields that are named once more than they occur, so that no one can add another one of them to a signed message
 * and have it shown (RFC 6376 §8.15). Gmail's own mail names the first seven in this way, Cc and Reply-To also where
 * they are absent: replayed mail is abused by adding a foreign Reply-To to a message that still verifies. The
 * last two are in each of our messages, and no honest relay adds them to a message that has them.
 */
const closedFields = [
  'from',
  'to',
  'cc',
  'subject',
  'date',
  'message-id',
  'reply-to',
  'mime-version',
  'content-type',
];

/**
 * The same, but only for those that are there. Mailing lists add a List-Unsubscribe of their own to what has none,
 * and relays a Content-Transfer-Encoding; they should not break a signature by it. Mail clients offer one-click
 * unsubscribing only for an address that the signature covers (RFC 8058 §4). Gmail sums complaints up by a Feedback-ID
 * only where there is one and it is signed.
 */
const closedIfPresent = [
  'content-transfer-encoding',
  'list-unsubscribe',
  'list-unsubscribe-post',
  'feedback-id',
];

/** What relays write, replace or remove (RFC 6376 §5.4, RFC 8601 §5, RFC 8617 §4.1). */
const traceFieldPattern = /^(?:return-path|received|dkim-signature|authentication-results|arc-.*)$/;

/**
 * What the signatures of one message's copies have in common. Copies mostly have the same fields and leave in the same
 * second as the one before, so that what follows from these is kept.
 */
export type SignaturePlan = {
  signText: SignText;
  signer: DkimSigner;
  frame: SignatureFrame | null;
};

type SignatureFrame = {
  /** When it was signed, as in t=. */
  second: number;
  /** Of the fields that it was made for, in their order. */
  names: readonly string[];
  /** Which of them are signed, in the order of h=. */
  signedFields: readonly number[];
  /** The field up to the digest of the body, as it is sent and as a verifier sees it. */
  written: string;
  canonical: string;
};

export function planSignatures(signText: SignText, signer: DkimSigner): SignaturePlan {
  return { signText, signer, frame: null };
}

/**
 * The same message with DKIM-Signature as its first field. `signedAt` becomes t= in whole seconds: a message tried again
 * with the same one is the same to the octet. `bodyDigest` is what `digestBody` says of the body, for
 * copies that share one. Throws if From is not at the domain of the signer.
 */
export async function signEmail(
  plan: SignaturePlan,
  filled: FilledEmail,
  signedAt: Date,
  bodyDigest: string = digestFilled(filled),
): Promise<FilledEmail> {
  const fields = canonicaliseHeader(filled.header);
  assertSender(plan.signer, fields);
  const frame = frameOf(plan, fields, Math.floor(signedAt.getTime() / 1_000));
  let signed = '';
  for (const index of frame.signedFields) signed += `${fields[index]?.text ?? ''}\r\n`;
  // The form in which a verifier sees the field that is written below, with an empty b= (RFC 6376 §3.7).
  signed += `${frame.canonical}${bodyDigest}; b=`;
  const signature = await plan.signText(plan.signer.key, signed);
  const field = `${frame.written}${bodyDigest};${foldSignature(signature)}\r\n`;
  return { ...filled, header: field + filled.header };
}

function digestFilled({ body, reducedBody }: FilledEmail): string {
  return reducedBody === null ? digestBody(body) : digestReducedBody(reducedBody);
}

function frameOf(plan: SignaturePlan, fields: readonly CanonicalField[], second: number): SignatureFrame {
  const { frame } = plan;
  const isSame =
    frame?.second === second &&
    frame.names.length === fields.length &&
    fields.every(({ name }, index) => name === frame.names[index]);
  return isSame ? frame : (plan.frame = makeFrame(plan.signer, fields, second));
}

/** SHA-256 in base64. */
const digestLength = 44;

function makeFrame(signer: DkimSigner, fields: readonly CanonicalField[], second: number): SignatureFrame {
  const names = fields.map(({ name }) => name);
  const signedNames = listSignedNames(names);
  const words = [
    'v=1;',
    'a=rsa-sha256;',
    'c=relaxed/relaxed;',
    `d=${signer.domain};`,
    `s=${signer.selector};`,
    `t=${second};`,
    ...foldNames(signedNames),
  ];
  // Any digest is as long as another, so that the field is folded in the same way.
  const written = writeField('DKIM-Signature', [...words, `bh=${'0'.repeat(digestLength)};`]);
  return {
    second,
    names,
    signedFields: selectFields(names, signedNames),
    written: written.slice(0, -(digestLength + ';\r\n'.length)),
    canonical: `dkim-signature:${words.join(' ')} bh=`,
  };
}

/** The last wall between organizations: a domain's key signs no other organization's mail. */
function assertSender(signer: DkimSigner, fields: readonly CanonicalField[]): void {
  const from = fields.find(({ name }) => name === 'from')?.text ?? '';
  if (!from.endsWith(`@${signer.domain}`) && !from.endsWith(`@${signer.domain}>`)) {
    throw new Error(`the key of ${signer.domain} can't sign for another domain`);
  }
}

function listSignedNames(names: readonly string[]): string[] {
  const present = names.filter(isSignable);
  return [...present, ...closedFields, ...closedIfPresent.filter((name) => present.includes(name))];
}

/** RFC 5322 lets a name have a semicolon, but in h= it would end the list. */
function isSignable(name: string): boolean {
  return !traceFieldPattern.test(name) && !name.includes(';');
}

/** With the space in front of it, a line of 78 (RFC 5322 §2.1.1). */
const wordLengthMax = 77;

/** The h= tag in words to fold between. */
function foldNames(names: readonly string[]): string[] {
  const words: string[] = [];
  let word = 'h=';
  for (const [index, name] of names.entries()) {
    const part = name + (index === names.length - 1 ? ';' : ':');
    if (word.length + part.length > wordLengthMax) {
      words.push(word);
      word = '';
    }
    word += part;
  }
  return [...words, word];
}

/** The b= tag, in lines of its own. */
function foldSignature(signature: Buffer): string {
  const tag = `b=${signature.toString('base64')}`;
  let folded = '';
  for (let at = 0; at < tag.length; at += wordLengthMax)
    folded += `\r\n ${tag.slice(at, at + wordLengthMax)}`;
  return folded;
}
