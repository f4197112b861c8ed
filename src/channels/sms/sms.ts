/** The front door of the SMS channel. */
export { readAlphabet, type TextEncoding } from './alphabet.ts';
export { defaultReplies } from './keyword-replies.ts';
export {
  type InboundSms,
  type SenderType,
  senderTypes,
  type SmsFailure,
  smsFailures,
  type SmsFinding,
  type SmsHandOff,
  type SmsIntake,
  type SmsProvider,
  type SmsReceipt,
  type SmsSender,
} from './provider.ts';
export { type CompiledSms, compileSms, countSegments, fillSms, smsLengthMax } from './rendering.ts';
export { isNumericName, parseSender, type SenderProblem, trimSenderName } from './sender-name.ts';
