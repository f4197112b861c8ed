export { startNumbering } from './numbering.ts';
