/** The entry of this room: people of an organization, told by email of what goes wrong. */
export { saveAlertAddresses } from './keeping.ts';
export { addressesMax } from './schema.ts';
export { countWaitingInVain } from './store.ts';
