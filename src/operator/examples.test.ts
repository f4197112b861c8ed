import { Command } from 'commander';
import { expect, test } from 'vitest';
import { examples } from './examples.ts';
import { addOperatorCommands } from './operator.ts';

const everyGroup = [...new Set(Object.keys(examples).map((name) => name.split(' ')[0] ?? ''))];

async function openProgram(): Promise<Command> {
  const program = new Command('postillion');
  await addOperatorCommands(program, everyGroup);
  return program;
}

function leavesOf(parent: Command, path: readonly string[] = []): { place: string; command: Command }[] {
  return parent.commands.flatMap((command) => {
    const place = [...path, command.name()];
    return command.commands.length > 0 ? leavesOf(command, place) : [{ place: place.join(' '), command }];
  });
}

/** As a shell would take it apart: blanks separate, single quotes keep together. */
function wordsOf(line: string): string[] {
  const [command = ''] = line.split(' > ');
  return [...command.matchAll(/'([^']*)'|\S+/g)].map(([word, quoted]) => quoted ?? word);
}

test('every command has examples in its help, and no example is of another', async () => {
  const leaves = leavesOf(await openProgram());
  expect(leaves.map(({ place }) => place).sort()).toEqual(Object.keys(examples).sort());
  for (const { place, command } of leaves) {
    let help = '';
    command.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
    for (const line of examples[place] ?? []) expect(help).toContain(`\n  bin/postillion ${line}\n`);
  }
});

test('an option that must be given says so', async () => {
  const leaves = leavesOf(await openProgram());
  const required = leaves.flatMap(({ command }) => command.options.filter(({ mandatory }) => mandatory));
  expect(required.length).toBeGreaterThan(5);
  for (const { command } of leaves)
    for (const line of command.helpInformation().split(/\n(?=  -)/)) {
      const option = command.options.find(({ flags }) => line.startsWith(`  ${flags} `));
      if (option !== undefined) expect(line.includes('(required)')).toBe(option.mandatory);
    }
});

test.each(Object.entries(examples).flatMap(([place, lines]) => lines.map((line) => [line, place])))(
  '%s can be typed as it stands',
  async (line, place) => {
    const program = await openProgram();
    const { command } = leavesOf(program).find((leaf) => leaf.place === place)!;
    let isCarriedOut = false;
    command.action(() => {
      isCarriedOut = true;
    });
    for (const each of [program, ...program.commands, command])
      each.exitOverride().configureOutput({ writeErr: () => undefined, outputError: () => undefined });
    await program.parseAsync(wordsOf(line), { from: 'user' });
    expect(isCarriedOut).toBe(true);
  },
);
