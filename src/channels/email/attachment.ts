import mime from 'mime';
import { parseContentType } from './content-type.ts';

export { isContentType } from './content-type.ts';

/**
 * What Gmail (support.google.com/mail/answer/6590) and Outlook ("Blocked attachments in Outlook") refuse because
 * opening it runs it: programs, scripts, installers, shortcuts and images of disks. Their certificates, databases
 * and mail folders are left out: they are data. Scripts of other systems were added.
 */
const refusedExtensions: ReadonlySet<string> = new Set(
  [
    // Programs and their libraries.
    'app com cpl dll drv ex ex_ exe gadget lib mui ocx pif prg scr sys vxd xbap xll',
    // Installers and packages that run as they are opened.
    'apk appinstaller application appref-ms appx appxbundle cab deb diagcab diagcfg diagpkg dmg ins isp jar jnlp',
    'mpkg msi msix msixbundle msp mst msu nsh pkg rpm xpi crx ipa aab',
    // Images of disks: what is inside them escapes the mark of the web.
    'img iso udf vhd vhdx vmdk',
    // Scripts.
    'asp aspx bas bash bat cjs cmd command csh fish htc hta js jse ksh mjs msh msh1 msh1xml msh2 msh2xml mshxml',
    'php php3 php4 php5 phar phtml pl plx ps1 ps1xml ps2 ps2xml psc1 psc2 psd1 psm1 pssc cdxml py pyc pyo pyw pyz',
    'pyzw rb run scpt scptd sct sh shb shs tcl vb vbe vbp vbs vsmacros vsw ws wsc wsf wsh zsh applescript workflow',
    // Shortcuts and settings that name a program to run.
    'desktop fxp hlp hpj inf inx its job library-ms lnk mcf msc osd pcd plg reg rgs scf search-ms searchconnector-ms',
    'settingcontent-ms theme udl url webloc website wsb xnk',
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
  'application/prg',
  'application/vnd.android.package-archive',
  'application/vnd.apple.installer+xml',
  'application/vnd.debian.binary-package',
  'application/vnd.microsoft.portable-executable',
  'application/vnd.ms-htmlhelp',
  'application/winexe',
  'application/x-apple-diskimage',
  'application/x-bat',
  'application/x-cd-image',
  'application/x-chm',
  'application/x-com',
  'application/x-csh',
  'application/x-debian-package',
  'application/x-dosexec',
  'application/x-elf',
  'application/x-exe',
  'application/x-executable',
  'application/x-httpd-php',
  'application/x-iso9660-image',
  'application/x-java-archive',
  'application/x-java-jnlp-file',
  'application/x-javascript',
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
  'application/x-redhat-package-manager',
  'application/x-rpm',
  'application/x-ruby',
  'application/x-sh',
  'application/x-sharedlib',
  'application/x-shellscript',
  'application/x-tcl',
  'application/x-vbs',
  'application/x-vbscript',
  'application/x-winexe',
  'application/x-xpinstall',
  'text/ecmascript',
  'text/javascript',
  'text/jscript',
  'text/scriptlet',
  'text/vbs',
  'text/vbscript',
  'text/x-csh',
  'text/x-ecmascript',
  'text/x-javascript',
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

/**
 * Whether a file is a program or a script, by its name or by its content type, whichever says so. What counts of a
 * name is what decides how it opens: `example.com.pdf` is a document, `invoice.pdf.exe` is not.
 */
export function isRefusedAttachment(filename: string, contentType: string): boolean {
  // A client may decode an encoded word (RFC 2047) in a filename and so uncover another name.
  if (filename.includes('=?') && filename.includes('?=')) return true;
  if (listOpenedNames(filename).some((name) => isRefusedExtension(readExtension(name)))) return true;
  const mediaType = parseContentType(contentType)?.mediaType ?? contentType.split(';', 1)[0] ?? '';
  return refusedMediaTypes.has(mediaType.trim().toLowerCase());
}

/**
 * The names under which a system may store the file: without what can't be seen, with letters in their usual form,
 * without folders, and without the streams of NTFS (`a.exe::$DATA` opens `a.exe`).
 */
function listOpenedNames(filename: string): string[] {
  const visible = filename.normalize('NFKC').replace(/[\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}]/gu, '');
  const base = trimEnd(visible).split(/[/\\]/).at(-1) ?? '';
  const streams = base.split(':');
  return [streams[0] ?? '', streams.at(-1) ?? ''].map(trimEnd);
}

/** Windows drops trailing dots and spaces, and the characters that no name may have. */
const trailingIgnored = new Set([...' .\t\u00a0<>"|?*/\\']);

function trimEnd(name: string): string {
  let end = name.length;
  while (end > 0 && trailingIgnored.has(name.charAt(end - 1))) end -= 1;
  return name.slice(0, end);
}

function readExtension(name: string): string {
  const dot = name.lastIndexOf('.');
  return dot === -1 ? '' : name.slice(dot + 1).toLowerCase();
}

function isRefusedExtension(extension: string): boolean {
  // The Windows shell opens `name.{class id}` with that class, whatever the rest of the name says.
  return refusedExtensions.has(extension) || extension.startsWith('{');
}

/** The content type of a file: the one given, or what its extension says where that is missing or says nothing. */
export function resolveContentType(filename: string, contentType: string | undefined): string {
  const isKnown =
    contentType !== undefined && parseContentType(contentType)?.mediaType !== unknownContentType;
  return isKnown ? contentType : (mime.getType(filename) ?? unknownContentType);
}

/** As long as a filename may be; a Content-ID must fit on one line of a header. */
const contentIdLengthMax = 255;

/** Whether a text can name an inline file in `cid:` links: printable ASCII without spaces and angle brackets. */
export function isContentId(text: string): boolean {
  return text.length <= contentIdLengthMax && /^[\x21-\x3b\x3d\x3f-\x7e]+$/.test(text);
}
