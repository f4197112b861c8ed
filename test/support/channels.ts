export { messageChannels } from '../../src/roles/channels.ts';
