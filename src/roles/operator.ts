import type { Command } from 'commander';

/** Adds every command that an operator runs beside the server, or without one. */
export function addOperatorCommands(_program: Command): void {}
