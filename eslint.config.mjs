import tseslint from 'typescript-eslint';
import { closedPredicates } from './tools/closed-predicates.mjs';

export default tseslint.config(
  { ignores: ['dist/', 'data/', 'coverage/'] },
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.recommendedTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // Types over interfaces: shapes here are data, and unions need types anyway.
      '@typescript-eslint/consistent-type-definitions': ['error', 'type'],
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': 'error',
      '@typescript-eslint/no-non-null-assertion': 'error',
      // Interfaces of callbacks are often async without awaiting.
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      eqeqeq: 'error',
      'no-console': 'error',
      'no-restricted-globals': [
        'error',
        // Time comes from platform/clock.ts, so that tests can move it.
        { name: 'Date', message: 'Take the time from a Clock (platform/clock.ts).' },
      ],
      'no-restricted-properties': [
        'error',
        {
          object: 'URL',
          property: 'canParse',
          message: 'That of Node.js 22 denies letters such as ü: use parseUrl (platform/url.ts).',
        },
      ],
    },
  },
  {
    // Where statements are composed; elsewhere an `and` before an expression is a sentence.
    files: ['src/**/*store.ts', 'src/segments/{,nodes/}*.ts', 'src/messages/recipients/*.ts'],
    ignores: ['**/*.test.ts'],
    plugins: { local: { rules: { 'closed-predicates': closedPredicates } } },
    rules: { 'local/closed-predicates': 'error' },
  },
  {
    // What is done to the database is found by the names of files. What the platform does has no room of its own to be in.
    files: ['src/**/*.ts'],
    ignores: ['**/*.test.ts', 'src/**/*store.ts', 'src/platform/**'],
    rules: {
      'no-restricted-imports': [
        'error',
        {
          patterns: [
            {
              group: ['**/platform/postgres/database.ts'],
              importNames: ['statement', 'unpreparedStatement'],
              message: 'SQL stands in stores (store.ts, *-store.ts).',
            },
          ],
        },
      ],
    },
  },
  {
    // Whatever changes recipients goes through one room, which does all that must follow (recipients.ts).
    files: ['src/**/*.ts'],
    ignores: ['**/*.test.ts', 'src/messages/recipients/**'],
    rules: {
      'no-restricted-syntax': [
        'error',
        ...['TemplateElement[value.raw', 'Literal[value'].map((text) => ({
          selector: `${text}=/\\b(insert into|update|delete from)\\s+(recipients|recipient_changes|recipient_counts)\\b/]`,
          message: 'Recipients are changed in src/messages/recipients/.',
        })),
      ],
    },
  },
  {
    // A browser has no other clock.
    files: ['clients/**/*.ts'],
    rules: { 'no-restricted-globals': 'off' },
  },
  {
    files: ['**/*.test.ts', 'test/**/*.ts', 'bench/**/*.ts', 'tools/**/*.ts'],
    rules: {
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
      'no-console': 'off',
      'no-restricted-globals': 'off',
    },
  },
);
