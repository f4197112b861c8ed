import { describe, expect, it } from 'vitest';
import { createGate } from './gate.ts';

const never = new AbortController().signal;

async function enter(gate: ReturnType<typeof createGate>): Promise<() => void> {
  const leave = await gate.enter(never);
  if (typeof leave === 'string') throw new Error(leave);
  return leave;
}

describe('a gate', () => {
  it('lets the next one in when a place is free, in the order of arrival', async () => {
    const gate = createGate({ placesMax: 1, waitingMax: 2 });
    const leave = await enter(gate);
    const entered: string[] = [];
    const second = enter(gate).then((free) => {
      entered.push('second');
      return free;
    });
    const third = enter(gate).then(() => entered.push('third'));

    await Promise.resolve();
    expect(entered).toEqual([]);
    leave();
    const leaveSecond = await second;
    expect(entered).toEqual(['second']);
    leaveSecond();
    await third;
    expect(entered).toEqual(['second', 'third']);
  });

  it('refuses a waiter too many', async () => {
    const gate = createGate({ placesMax: 1, waitingMax: 1 });
    await enter(gate);
    void gate.enter(never);
    expect(await gate.enter(never)).toBe('full');
  });

  it('frees a place once, however often it is given back', async () => {
    const gate = createGate({ placesMax: 1, waitingMax: 0 });
    const leave = await enter(gate);
    leave();
    leave();
    await enter(gate);
    expect(await gate.enter(never)).toBe('full');
  });

  it('forgets a waiter whose signal is given', async () => {
    const gate = createGate({ placesMax: 1, waitingMax: 1 });
    const leave = await enter(gate);
    const controller = new AbortController();
    const waiting = gate.enter(controller.signal);
    controller.abort();
    expect(await waiting).toBe('aborted');
    expect(await gate.enter(controller.signal)).toBe('aborted');

    const next = enter(gate);
    leave();
    await next;
  });
});
