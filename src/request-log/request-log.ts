/** The front door: the log of what organizations asked of the API. */
export { createRequestRecorder, type LoggedCounts, type RequestRecorder } from './recorder.ts';
export { dropOldRequests } from './retention.ts';
export { requestLogFormats } from './routes.ts';
