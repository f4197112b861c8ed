import type { ContactTools, OnSubscribed } from './contacts.ts';

export type AudienceRouteTools = ContactTools & {
  /** Told after every change that segments may depend on. */
  onChanged: () => void;
  /** Told after something was deleted behind which there is to be cleared up. */
  onDeleted: () => void;
  onSubscribed: OnSubscribed;
  /** Told after contacts were deleted whose addresses are to be erased. */
  onErased: () => void;
};
