/** The front door: one message, from acceptance to what became of each recipient. */
export { type Acceptor, type AcceptTools, createAcceptor } from './accept.ts';
export { type Delivery, deliveryChannel, type DeliveryTools, startDelivery } from './deliver.ts';
export { applyReports, type FeedbackTools, type Report } from './feedback.ts';
export { messageFormats } from './schema.ts';
