export { startWebhookDelivery } from './delivering.ts';
export { startNumbering } from './numbering.ts';
