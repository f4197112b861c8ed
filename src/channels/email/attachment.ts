import mime from 'mime';
import { parseContentType } from './content-type.ts';
import { flattenText } from './headers.ts';

export { isContentType } from './content-type.ts';

/**
 * What Gmail (support.google.com/mail/answer/6590) and Outlook ("Blocked attachments in Outlook") refuse because
 * opening it runs it: programs, scripts, installers, shortcuts and images of disks. Their certificates, databases
 * and mail folders are left out: they are data. Scripts of other systems were added.
 */
const refusedExtensions: ReadonlySet<string> = new Set(
  [
    // Programs and their libraries.
    'app com cpl dll drv dylib elf ex ex_ exe gadget ko lib mui ocx out pif prg scr so sys vxd xbap xll',
    // Installers and packages that run as they are opened.
    'apk appinstaller application appref-ms appx appxbundle cab deb diagcab diagcfg diagpkg dmg ins isp jar jnlp',
    'mpkg msi msix msixbundle msp mst msu nsh pkg rpm xpi crx ipa aab',
    // Images of disks: what is inside them escapes the mark of the web.
    'img iso udf vhd vhdx vmdk',
    // Scripts.
    'asp aspx bas bash bat cgi cjs cmd command csh cts fish htc hta js jse jsx ksh lua luac mjs msh msh1 msh1xml',
    'msh2 msh2xml mshxml mts ts tsx php php3 php4 php5 phar phtml pl plx ps1 ps1xml ps2 ps2xml psc1 psc2 psd1 psm1 pssc cdxml py pyc pyo pyw pyz',
    'pyzw rb run scpt scptd sct sh shb shs tcl vb vbe vbp vbs vsmacros vsw ws wsc wsf wsh zsh applescript workflow',
    // Shortcuts and settings that name a program to run.
    'desktop fxp hlp hpj inf inx its job library-ms lnk mcf msc osd pcd plg reg rgs scf search-ms searchconnector-ms',
    'settingcontent-ms theme udl url webloc webpnp website wsb xnk appcontent-ms bgi printerexport',
    // What fetches commands from elsewhere, or opens a session there.
    'dqy iqy oqy rdp rqy slk',
    // Office documents, templates and add-ins with macros, and notebooks, which carry programs that a click runs.
    'docm dotm wll xlam xlm xlsm xltm potm ppam ppsm pptm sldm one onepkg',
    // Databases and help files with code in them.
    'ade adp chm mad maf mag mam maq mda mde',
  ].flatMap((line) => line.split(' ')),
);

/** The same things by their media types; `x-` and `vnd.` names are the ones that systems really write. */
const refusedMediaTypes: ReadonlySet<string> = new Set([
  'application/bat',
  'application/cmd',
  'application/com',
  'application/dos-exe',
  'application/ecmascript',
  'application/exe',
  'application/hta',
  'application/java-archive',
  'application/javascript',
  'application/msdos-windows',
  'application/msi',
  'application/msonenote',
  'application/onenote',
  'application/prg',
  'application/rdp',
  'application/typescript',
  'application/vnd.android.package-archive',
  'application/vnd.apple.installer+xml',
  'application/vnd.debian.binary-package',
  'application/vnd.microsoft.portable-executable',
  'application/vnd.ms-excel.addin.macroenabled.12',
  'application/vnd.ms-excel.sheet.macroenabled.12',
  'application/vnd.ms-excel.template.macroenabled.12',
  'application/vnd.ms-htmlhelp',
  'application/vnd.ms-powerpoint.addin.macroenabled.12',
  'application/vnd.ms-powerpoint.presentation.macroenabled.12',
  'application/vnd.ms-powerpoint.slide.macroenabled.12',
  'application/vnd.ms-powerpoint.slideshow.macroenabled.12',
  'application/vnd.ms-powerpoint.template.macroenabled.12',
  'application/vnd.ms-word.document.macroenabled.12',
  'application/vnd.ms-word.template.macroenabled.12',
  'application/winexe',
  'application/x-apple-diskimage',
  'application/x-bat',
  'application/x-cd-image',
  'application/x-cgi',
  'application/x-chm',
  'application/x-com',
  'application/x-csh',
  'application/x-debian-package',
  'application/x-dosexec',
  'application/x-elf',
  'application/x-exe',
  'application/x-executable',
  'application/x-httpd-cgi',
  'application/x-httpd-php',
  'application/x-iso9660-image',
  'application/x-java-archive',
  'application/x-java-jnlp-file',
  'application/x-javascript',
  'application/x-lua',
  'application/x-lua-bytecode',
  'application/x-mach-binary',
  'application/x-ms-application',
  'application/x-ms-installer',
  'application/x-ms-shortcut',
  'application/x-msdos-program',
  'application/x-msdownload',
  'application/x-msi',
  'application/x-perl',
  'application/x-php',
  'application/x-pie-executable',
  'application/x-powershell',
  'application/x-python-code',
  'application/x-rdp',
  'application/x-redhat-package-manager',
  'application/x-rpm',
  'application/x-ruby',
  'application/x-sh',
  'application/x-sharedlib',
  'application/x-shellscript',
  'application/x-sylk',
  'application/x-tcl',
  'application/x-typescript',
  'application/x-vbs',
  'application/x-vbscript',
  'application/x-winexe',
  'application/x-xpinstall',
  'text/ecmascript',
  'text/javascript',
  'text/jscript',
  'text/jsx',
  'text/scriptlet',
  'text/tsx',
  'text/typescript',
  'text/vbs',
  'text/vbscript',
  'text/x-csh',
  'text/x-ecmascript',
  'text/x-javascript',
  'text/x-lua',
  'text/x-ms-iqy',
  'text/x-msdos-batch',
  'text/x-perl',
  'text/x-php',
  'text/x-powershell',
  'text/x-python',
  'text/x-ruby',
  'text/x-script.python',
  'text/x-sh',
  'text/x-shellscript',
  'text/x-vbscript',
]);

const unknownContentType = 'application/octet-stream';

/** These reverse text: in a name they only serve to show `exe.pdf` for `fdp.exe`. Single marks are left alone. */
const directionPattern = /[\u202a-\u202e\u2066-\u2069]/g;

/**
 * The name of a file as the message carries it, which is the one that is judged: on one line, without what turns its
 * letters around and without white space around it.
 */
export function writeFilename(filename: string): string {
  return flattenText(filename).replace(directionPattern, '').trim();
}

/**
 * Whether a file is a program or a script, by its name or by its content type, whichever says so. What counts of a
 * name is what decides how it opens: `example.com.pdf` is a document, `invoice.pdf.exe` is not.
 */
export function isRefusedAttachment(filename: string, contentType: string): boolean {
  const readings = listReadings(filename);
  // A client may decode an encoded word (RFC 2047) in a filename and so uncover another name.
  if (readings.some((name) => name.includes('=?') && name.includes('?='))) return true;
  const names = readings.flatMap(listOpenedNames);
  return (
    names.some((name) => isRefusedExtension(readExtension(name))) ||
    refusedMediaTypes.has(readMediaType(contentType)) ||
    refusedMediaTypes.has(readMediaType(resolveContentType(filename, contentType)))
  );
}

function readMediaType(contentType: string): string {
  const mediaType = parseContentType(contentType)?.mediaType ?? contentType.split(';', 1)[0] ?? '';
  return mediaType.trim().toLowerCase();
}

/**
 * What clients and file systems make of a name, in one form for all: letters in their usual shape and case, without
 * accents and without what can't be seen. As it is written; for those who also decode percent signs (RFC 2231 §4),
 * which webmail does when it links to a file; and as if line ends and control characters were dropped on the way.
 */
function listReadings(filename: string): string[] {
  const written = writeFilename(filename);
  return [written, decodePercents(written), filename.replace(/[\p{Cc}\p{Zl}\p{Zp}]/gu, '')].map((name) =>
    name
      .toUpperCase()
      .toLowerCase()
      .normalize('NFKD')
      .replace(/[\p{M}\p{Cf}\p{Co}\p{Cn}\p{Default_Ignorable_Code_Point}]/gu, '')
      // NFKD leaves a few white spaces as they are (U+1680 is one); a client that trims a name trims all.
      .replace(/\s/g, ' '),
  );
}

/** Octet by octet: which ones they are matters only below 0x80, where file names have their dots. */
function decodePercents(text: string): string {
  return text.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
}

/**
 * The names under which a system may store the file: without folders, without the streams of NTFS (`a.exe::$DATA`
 * opens `a.exe`), up to a NUL, and without the characters that no name may have, which some replace and some drop.
 */
function listOpenedNames(name: string): string[] {
  const base = trimEnd(name).split(/[/\\]/).at(-1) ?? '';
  const parts = base.split(/[:\0]/);
  return [parts[0] ?? '', parts.at(-1) ?? '', name.replace(/[\p{Cc}<>:"/\\|?*]/gu, '')].map(trimEnd);
}

/** Windows drops trailing dots and spaces, and the characters that no name may have. */
const trailingIgnored = /[\p{Cc} .<>"|?*/\\]/u;

function trimEnd(name: string): string {
  let end = name.length;
  while (end > 0 && trailingIgnored.test(name.charAt(end - 1))) end -= 1;
  return name.slice(0, end);
}

function readExtension(name: string): string {
  const dot = name.lastIndexOf('.');
  return dot === -1 ? '' : name.slice(dot + 1);
}

function isRefusedExtension(extension: string): boolean {
  // The Windows shell opens `name.{class id}` with that class, whatever the rest of the name says.
  return refusedExtensions.has(extension) || extension.startsWith('{');
}

/** The content type of a file: the one given, or what its extension says where that is missing or says nothing. */
export function resolveContentType(filename: string, contentType: string | undefined): string {
  const isKnown =
    contentType !== undefined && parseContentType(contentType)?.mediaType !== unknownContentType;
  return isKnown ? contentType : (mime.getType(writeFilename(filename)) ?? unknownContentType);
}

/** As long as a filename may be; a Content-ID must fit on one line of a header. */
const contentIdLengthMax = 255;

/** Whether a text can name an inline file in `cid:` links: printable ASCII without spaces and angle brackets. */
export function isContentId(text: string): boolean {
  return text.length <= contentIdLengthMax && /^[\x21-\x3b\x3d\x3f-\x7e]+$/.test(text);
}
