// The arrows of ARCHITECTURE.md, from what knows more to what knows less. A room may import the rooms after it
// in this list, siblings in one entry may not import each other, and only a room's front door is visible.
const layers = [
  ['main.ts'],
  ['operator'],
  ['doctor'],
  ['roles'],
  ['documentation', 'installation'],
  ['alerts', 'compat', 'submission'],
  ['email', 'sms', 'push', 'chatapp'],
  ['campaigns'],
  ['segments'],
  ['messages'],
  ['events', 'devices', 'domains', 'senders', 'templates', 'chat-templates'],
  ['audience', 'request-log'],
  ['webhooks'],
  ['accounts', 'sandbox'],
  ['channels'],
  ['platform'],
];

const inside = (rooms) =>
  `^src/(${rooms.map((room) => (room.endsWith('.ts') ? room.replace('.', '\\.') : `${room}/`)).join('|')})`;

const wrongArrows = layers.flatMap((rooms, depth) =>
  rooms
    .map((room) => ({
      room,
      above: [...layers.slice(0, depth).flat(), ...rooms.filter((sibling) => sibling !== room)],
    }))
    .filter(({ above }) => above.length > 0)
    .map(({ room, above }) => ({
      name: `arrow-from-${room}`,
      comment: 'Against the arrows of ARCHITECTURE.md: only rooms further down may be imported.',
      severity: 'error',
      from: { path: inside([room]) },
      to: { path: inside(above) },
    })),
);

module.exports = {
  forbidden: [
    ...wrongArrows,
    {
      name: 'no-cycles',
      severity: 'error',
      from: {},
      to: { circular: true },
    },
    {
      name: 'front-door-only',
      comment: 'Between rooms only <room>/<room>.ts is visible; roles also mount routes.ts and jobs.ts.',
      severity: 'error',
      from: { path: '^src/([^/]+)/', pathNot: '^src/roles/' },
      to: {
        path: '^src/(operator|doctor|documentation|installation|alerts|compat|submission|email|sms|push|chatapp|campaigns|segments|messages|events|devices|domains|senders|templates|chat-templates|audience|request-log|webhooks|accounts|sandbox)/',
        pathNot: ['^src/$1/', '^src/([^/]+)/\\1\\.ts$'],
      },
    },
    {
      name: 'roles-mount-front-doors-routes-and-jobs',
      severity: 'error',
      from: { path: '^src/roles/' },
      to: {
        path: '^src/(operator|doctor|documentation|installation|alerts|compat|submission|email|sms|push|chatapp|campaigns|segments|messages|events|devices|domains|senders|templates|chat-templates|audience|request-log|webhooks|accounts|sandbox)/',
        pathNot: ['^src/([^/]+)/\\1\\.ts$', '^src/[^/]+/(routes|jobs)\\.ts$'],
      },
    },
    {
      name: 'delivery-knows-no-feedback',
      comment: 'A message is delivered, and then heard of: what both need is theirs in messages/recipients.',
      severity: 'error',
      from: { path: '^src/messages/(delivery|recipients)/' },
      to: { path: '^src/messages/feedback/' },
    },
    {
      name: 'config-is-a-leaf',
      comment:
        'Settings are handed down as values: only what composes, or explains the installation, reads config.ts.',
      severity: 'error',
      from: {
        path: '^src/',
        pathNot: '^src/(main\\.ts|operator/|doctor/|roles/|documentation/|installation/|config\\.ts)',
      },
      to: { path: '^src/config\\.ts' },
    },
    {
      name: 'providers-are-known-by-their-registry',
      comment:
        'A provider is a folder and a line in its registry: whatever needs more of it belongs in its definition.',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/channels/[^/]+/providers/' },
      // What is lent to a provider may be said in its own types.
      to: { path: '^src/channels/[^/]+/providers/[^/]+/', dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'recipients-are-changed-in-one-place',
      comment:
        'What is written of recipients goes through changeRecipients or takenStatements, which do all that must follow.',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/messages/recipients/' },
      to: {
        path: '^src/messages/recipients/(writes|(settlement|taken|report|engagement|erasure|member)-store)\\.ts$',
        dependencyTypesNot: ['type-only'],
      },
    },
    {
      name: 'recipients-know-nobody-who-changes-them',
      severity: 'error',
      from: { path: '^src/messages/recipients/' },
      to: { path: '^src/messages/(campaigns|conversions|delivery|erasure|feedback)/' },
    },
    {
      name: 'channels-take-values-and-give-values',
      comment: 'A channel knows no database, queue or HTTP server.',
      severity: 'error',
      from: { path: '^src/channels/' },
      to: { path: ['^src/platform/(postgres|http|queue)', 'node_modules/(pg|fastify)'] },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    exclude: { path: '\\.test\\.ts$' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: { extensions: ['.ts', '.js', '.mjs', '.json'] },
  },
};
