import type { ContactTools, OnSubscribed } from './contacts.ts';

export type AudienceRouteTools = ContactTools & {
  /** Called after every change that segments may depend on. */
  onChanged: () => void;
  /** Called after a deletion that leaves something to clean up. */
  onDeleted: () => void;
  onSubscribed: OnSubscribed;
  /** Called after contacts were deleted whose addresses are to be erased. */
  onErased: () => void;
};
