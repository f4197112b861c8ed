import { describe, expect, it } from 'vitest';
import { readCalendar, readInvitationMethod } from './calendar.ts';

function read(...lines: string[]) {
  return readCalendar(Buffer.from(lines.join('\r\n') + '\r\n'));
}

describe('a calendar', () => {
  it('names its method and its attendees', () => {
    expect(
      read(
        'BEGIN:VCALENDAR',
        'VERSION:2.0',
        'method:request',
        'BEGIN:VEVENT',
        'SUMMARY:Tea: ATTENDEE:mailto:no@example.com',
        'ATTENDEE;CN="Doe: Jane";RSVP=TRUE:mailto:Jane@Example.com',
        'ATTENDEE;CN=Someone with a name that is so long that it has to be folde',
        ' d:MAILTO:some',
        '\tone@example.com',
        'ATTENDEE:mailto:jane@example.com',
        'ATTENDEE;EMAIL=room@example.com:urn:uuid:1',
        'ATTENDEE:mailto:a%2Bb@example.com?subject=x',
        'ATTENDEE:mailto:not an address',
        'BEGIN:VALARM',
        'ATTENDEE:mailto:alarm@example.com',
        'METHOD:CANCEL',
        'END:VALARM',
        'END:VEVENT',
        'END:VCALENDAR',
      ),
    ).toEqual({
      method: 'REQUEST',
      attendees: ['jane@example.com', 'someone@example.com', 'room@example.com', 'a+b@example.com'],
    });
  });

  it('may fold its lines within a character and end them with LF alone', () => {
    const bytes = Buffer.from(
      '\ufeffBEGIN:VCALENDAR\nMETHOD:CANCEL\nBEGIN:VEVENT\nATTENDEE:mailto:a@bü.example\n',
    );
    const fold = bytes.indexOf('ü') + 1;
    const folded = Buffer.concat([bytes.subarray(0, fold), Buffer.from('\n '), bytes.subarray(fold)]);
    expect(readCalendar(folded)).toEqual({ method: 'CANCEL', attendees: ['a@xn--b-eha.example'] });
  });

  it.each([
    [''],
    ['METHOD:REQUEST'],
    ['BEGIN:VCALENDAR\nMETHOD:\n'],
    ['BEGIN:VCALENDAR\nBEGIN:VEVENT\nMETHOD:REQUEST'],
    ['BEGIN:VCALENDAR\nX-METHOD:REQUEST'],
    ['\r\n \r\n\t\n\0\xff'],
  ])('such as %j has no method', (text) => {
    expect(readCalendar(Buffer.from(text))).toEqual({ method: null, attendees: [] });
  });

  it.each([
    '\n',
    '\n ',
    ' ',
    'A',
    'BEGIN:VCALENDAR\n',
    'ATTENDEE;CN="',
    ':',
    '"',
    'ATTENDEE:mailto:a@b.example\r\n ',
  ])('of eight megabytes of %j is read to an end', (unit) => {
    const calendar = readCalendar(Buffer.alloc(8_000_000, unit));
    expect(calendar.method).toBeNull();
  });

  it('is an invitation only by the method in its content type', () => {
    expect(readInvitationMethod('text/calendar; method=REQUEST')).toBe('REQUEST');
    expect(readInvitationMethod('Text/Calendar; charset=utf-8; METHOD="cancel"')).toBe('CANCEL');
    expect(readInvitationMethod('text/calendar')).toBeNull();
    expect(readInvitationMethod('text/calendar; method=PUBLISH')).toBeNull();
    expect(readInvitationMethod('text/plain; method=REQUEST')).toBeNull();
    expect(readInvitationMethod('text/calendar; x="; method=REQUEST"')).toBeNull();
  });
});
