/** The front door of the SMS channel. */
export { type SenderType, senderTypes, type SmsSender } from './provider.ts';
export { isNumericName, parseSender, type SenderProblem, trimSenderName } from './sender-name.ts';
