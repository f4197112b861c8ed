/** dkimpy, an implementation of DKIM in Python: `apt-get install python3-dkim`. */
import { execFile, spawnSync } from 'node:child_process';

const verification = `
import dkim, sys
record = sys.argv[1].encode()
print(dkim.verify(sys.stdin.buffer.read(), dnsfunc=lambda name, timeout=5: record))
`;

export const hasDkimpy = spawnSync('python3', ['-c', 'import dkim']).status === 0;

/** Whether it verifies the first signature of the message, whose key is in this TXT record. */
export function isVerifiedByDkimpy(message: Buffer, record: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const child = execFile('python3', ['-c', verification, record], (error, output) => {
      if (error === null) resolve(output.trim() === 'True');
      else reject(new Error('python3 failed', { cause: error }));
    });
    child.stdin?.end(message);
  });
}
