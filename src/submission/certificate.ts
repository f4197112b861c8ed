import { X509Certificate } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { Clock } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';

/** A certificate with its chain, and its key, in two files (PEM), which are replaced while this process runs. */
export type CertificateFiles = { certificateFile: string; keyFile: string };

export type Certificate = { cert: Buffer; key: Buffer };

/** How often it is looked whether the files are others, when somebody connects. They are replaced some days before they expire. */
const lookMs = 10_000;

/** Throws if they cannot be read, or do not belong together. */
export function readCertificate({ certificateFile, keyFile }: CertificateFiles): Certificate {
  const read = { cert: readFileSync(certificateFile), key: readFileSync(keyFile) };
  createSecureContext(read);
  return read;
}

/** When the first certificate of the file expires, which is that of the server. */
function expiryOf({ cert }: Pick<Certificate, 'cert'>): string {
  return new X509Certificate(cert).validTo;
}

/**
 * To be called before each connection: hands over what the files have now if they are others. Files that cannot be used, be it
 * that one of them is replaced already and the other is not yet, are looked at again, and leave what there is.
 */
export function createCertificateWatch(
  { clock, log }: { clock: Clock; log: Log },
  files: CertificateFiles,
  onReplaced: (certificate: Certificate) => void,
): () => void {
  let seen = stampOf(files);
  let lookedAtMs = clock.monotonicMs();
  return () => {
    const nowMs = clock.monotonicMs();
    if (nowMs - lookedAtMs < lookMs) return;
    lookedAtMs = nowMs;
    try {
      const stamp = stampOf(files);
      if (stamp === seen) return;
      const certificate = readCertificate(files);
      onReplaced(certificate);
      seen = stamp;
      log.info({ expires: expiryOf(certificate) }, 'the certificate was replaced');
    } catch (cause) {
      log.error({ err: cause }, 'the certificate cannot be read anew; the one before is used still');
    }
  };
}

function stampOf({ certificateFile, keyFile }: CertificateFiles): string {
  return [certificateFile, keyFile]
    .map((file) => {
      const { mtimeMs, size, ino } = statSync(file);
      return `${mtimeMs} ${size} ${ino}`;
    })
    .join(' ');
}
