/** What the other rooms may know of events: what contacts do, told by the organization's own systems. */
export { describeBatchEvents } from './schema.ts';
export { deleteEventsOfContact } from './store.ts';
