/** The front door: what every role and every command stands on, opened and closed. */
export {
  findPostgres,
  hasInstallation,
  hasSandbox,
  hasSandboxAlone,
  type Installation,
  mayPrintSecrets,
  openBeside,
  openForRequests,
  openFoundation,
  openInstallation,
  openSecretsOf,
  publicUrlOf,
  sandboxAccessOf,
  sandboxLinkOf,
  whileRestarting,
} from './opening.ts';
export { asDatabaseProblem, DatabaseProblem } from './database-problem.ts';
export { explainDataDirectory, findFilesElsewhere, whyElsewhere } from './data-directory.ts';
export { describeFailure } from './failure.ts';
export type { Foundation, Observers } from './foundation.ts';
export { examineSecret, openSecrets, secretsAtHand, watchSecretKeys } from './secret.ts';
export {
  generateSecret,
  makeSecretFile,
  readSecretFile,
  replaceSecretFile,
  secretFileOf,
} from './secret-file.ts';
export {
  composeFirstRequest,
  createFirstOrganization,
  createSandboxOrganization,
  SandboxDomainTaken,
  type SandboxOrganization,
} from './sandbox-organization.ts';
