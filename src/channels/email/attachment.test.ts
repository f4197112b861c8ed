import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isContentId, isContentType, isRefusedAttachment, resolveContentType } from './attachment.ts';

const harmless = 'application/octet-stream';

/** As the providers list them: support.google.com/mail/answer/6590, and "Blocked attachments in Outlook". */
const refusedByProviders = {
  Gmail:
    'ade adp apk appx appxbundle bat cab chm cmd com cpl diagcab diagcfg diagpkg dll dmg ex ex_ exe hta img ins iso ' +
    'isp jar jnlp js jse lib lnk mde mjs msc msi msix msixbundle msp mst nsh pif ps1 scr sct shb sys vb vbe vbs vhd ' +
    'vxd wsc wsf wsh xll',
  Outlook:
    'app application appref-ms asp aspx bas csh fxp gadget hlp hpj htc inf its ksh library-ms mad maf mag mam maq mcf ' +
    'mda msh msh1 msh2 mshxml msh1xml msh2xml msu osd pcd pl plg prg ps1xml ps2 ps2xml psc1 psc2 psd1 py pyc pyo ' +
    'pyw pyz pyzw reg scf search-ms settingcontent-ms shs theme udl url vbp vhdx vsmacros vsw website ws xbap xnk',
  'all, because of macros': 'docm dotm xlsm xltm xlam pptm potm ppam ppsm sldm wll xlm',
} as const;

describe.each(Object.entries(refusedByProviders))('refused by %s', (_provider, extensions) => {
  it.each(extensions.split(' '))('%s', (extension) => {
    expect(isRefusedAttachment(`file.${extension}`, harmless)).toBe(true);
  });
});

it.each([
  'application/hta',
  'application/java-archive',
  'application/javascript',
  'application/vnd.android.package-archive',
  'application/vnd.microsoft.portable-executable',
  'application/vnd.ms-excel.sheet.macroenabled.12',
  'application/vnd.ms-htmlhelp',
  'application/vnd.ms-powerpoint.presentation.macroenabled.12',
  'application/vnd.ms-word.document.macroenabled.12',
  'application/x-msdownload',
  'application/x-msi',
  'application/x-sh',
  'text/javascript',
  'text/vbscript',
])('a file without a telling name is refused as %s', (contentType) => {
  expect(isRefusedAttachment('file', contentType)).toBe(true);
  expect(isRefusedAttachment('file', contentType.toUpperCase())).toBe(true);
});

it('is refused by each type that names a program, whatever the file is called', () => {
  const types = [
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
  ];
  expect(types.filter((type) => !isRefusedAttachment('file', type))).toEqual([]);
});

describe('an attachment', () => {
  it.each([
    'setup.exe',
    'run.bat',
    'x.cmd',
    'x.com',
    'x.js',
    'x.jse',
    'x.mjs',
    'x.vbs',
    'x.ps1',
    'x.scr',
    'x.jar',
    'x.msi',
    'x.lnk',
    'x.hta',
    'x.wsf',
    'x.reg',
    'x.dll',
    'x.apk',
    'x.app',
    'x.iso',
    'x.img',
    'x.vhd',
    'x.chm',
    'x.sh',
    'x.py',
    '.exe',
    'evil.EXE',
    'invoice.pdf.exe',
    'a.exe.',
    'a.exe...',
    'a.exe   ',
    'a.exe . .',
    'a.exe\t',
    'a.exe\u00a0',
    'a.exe::$DATA',
    'a.exe:',
    'a.exe:b.pdf',
    'a.pdf:b.exe',
    'a.exe"',
    'a.exe?',
    'a.exe/',
    'docs/a.exe',
    'docs\\a.exe',
    'fdp.\u202eexe',
    'a.e\u200bxe',
    'a.e\u00adxe',
    'a.exe\ufe0f',
    'a\u2024exe',
    'a\uff0eexe',
    'a.\uff45\uff58\uff45',
    'a.ﬀ.e\u0000xe',
    'a.{20d04fe0-3aea-1069-a2d8-08002b30309d}',
    '=?utf-8?B?ZXZpbC5leGU=?=',
    'invoice.exe\u2028',
    'invoice.exe\u2029',
    'invoice.exe\u0085',
    'invoice.exe.\u2028.',
    'invoice.exe\u1680',
    'invoice.exe\u3000\u2007',
    'invoice.exe\ue000',
    'invoice.exe\uf029',
    'invoice.exe\u0301',
    'invoice.ex\u0065\u0327',
    'invoice.EXÉ',
    'setup.MSİ',
    'setup.msı',
    'a.e*xe',
    'a.ex\\e',
    'a.ex/e',
    'a%2eexe',
    'a.ex%65',
    'a.exe%20',
    'a.exe%00.pdf',
    "utf-8''a%2Eexe",
    '＝?utf-8?B?ZXZpbC5leGU=?=',
    ...'elf so out lua cgi jsx ts docm xlsm pptm iqy slk rdp one'.split(' ').map((type) => `x.${type}`),
    ...'dotm xltm potm ppsm xlam onepkg tsx dylib'.split(' ').map((type) => `x.${type}`),
  ])('named %j is refused', (filename) => {
    expect(isRefusedAttachment(filename, harmless)).toBe(true);
  });

  it.each([
    [
      'Outlook ("Blocked attachments in Outlook")',
      `ade adp app appcontent-ms application appref-ms asp aspx bas bat bgi cab chm cmd com cpl csh diagcab exe fxp
       gadget hlp hpj hta htc inf ins iso isp its jar jnlp js jse ksh lnk mad maf mag mam maq mcf mda mde msc msh msh1
       msh2 mshxml msh1xml msh2xml msi msp mst msu osd pcd pif pl plg prg printerexport ps1 ps1xml ps2 ps2xml psc1 psc2
       psd1 py pyc pyo pyw pyz pyzw reg scf scr sct settingcontent-ms shb shs theme udl url vb vbe vbp vbs vhd vhdx
       vsmacros vsw webpnp website ws wsb wsc wsf wsh xbap xll xnk`,
    ],
    [
      'Gmail (support.google.com/mail/answer/6590)',
      `ade adp apk appx appxbundle bat cab chm cmd com cpl diagcab diagcfg diagpkg dll dmg ex ex_ exe hta img ins iso isp
       jar jnlp js jse lib lnk mde mjs msc msi msix msixbundle msp mst nsh pif ps1 scr sct shb sys vb vbe vbs vhd vxd wsc
       wsf wsh xll`,
    ],
    ['macOS', 'app command dmg dylib pkg mpkg scpt scptd applescript workflow webloc ipa'],
    ['Linux and the like', 'elf ko so out deb rpm run sh bash zsh fish desktop'],
    [
      'interpreters',
      'cgi cjs cts mts ts tsx jsx lua luac php php3 php4 php5 phar phtml plx psm1 pssc cdxml rb tcl',
    ],
    ['Android and browsers', 'apk aab xpi crx'],
    [
      'what fetches commands from elsewhere',
      'dqy iqy oqy rdp rqy slk library-ms search-ms searchconnector-ms',
    ],
    ['images of disks', 'img iso udf vhd vhdx vmdk'],
    ['Office with macros', 'docm dotm wll xlam xlm xlsm xltm potm ppam ppsm pptm sldm one onepkg'],
    ['Windows beyond those lists', 'appinstaller drv inx job mui ocx rgs'],
  ])('by a name that %s would run is refused', (_whose, extensions) => {
    const sent = extensions
      .split(/\s+/)
      .filter((extension) => !isRefusedAttachment(`a.${extension}`, harmless));
    expect(sent).toEqual([]);
  });

  it.each([
    'report.pdf',
    'example.com.pdf',
    'node.js.docx',
    'setup.exe.txt',
    'exe',
    'a',
    '',
    '.',
    'invite.ics',
    'photo.JPEG',
    'data.csv',
    'page.html',
    'archive.zip',
    'key.crt',
    'Übersicht 2026.xlsx',
    'logo.svg',
    'mail.htm',
    'mail.xhtml',
    '100%.pdf',
    '50%25 off.pdf',
    'résumé.doc',
    'قائمة\u200f.pdf',
    'a\u2028b.pdf',
    'x.docx',
    'x.one.pdf',
    'film.m2ts',
    '表.xlsx',
  ])('named %j is not refused', (filename) => {
    expect(isRefusedAttachment(filename, harmless)).toBe(false);
  });

  it.each([
    'application/x-msdownload',
    'APPLICATION/X-MSDOWNLOAD; name=a.pdf',
    'application/javascript',
    'text/javascript; charset=utf-8',
    'application/x-sh',
    ' text/vbscript ',
    'application/x-sh ; not a parameter',
    'application/vnd.ms-word.document.macroEnabled.12',
    'application/onenote',
    'text/x-lua',
  ])('of the type %j is refused', (contentType) => {
    expect(isRefusedAttachment('a.pdf', contentType)).toBe(true);
  });

  it('is refused however invisible characters, dots and spaces are strewn over its name', () => {
    const noise = fc.string({
      unit: fc.constantFrom('\u200b', '\u202e', '\u2060', '\u00ad', '\ue000', '\u0301'),
      maxLength: 3,
    });
    const tail = fc.string({
      unit: fc.constantFrom('.', ' ', '\u200b', '\u00a0', '\u2028', '\u0007', '\u1680'),
      maxLength: 5,
    });
    fc.assert(
      fc.property(
        noise,
        noise,
        noise,
        tail,
        fc.constantFrom('exe', 'JS', 'Ps1'),
        (a, b, c, end, extension) => {
          const [first = '', ...others] = extension;
          const filename = `bill${a}.${b}${first}${c}${others.join('')}${end}`;
          expect(isRefusedAttachment(filename, harmless)).toBe(true);
        },
      ),
    );
  });

  it('gets the content type of its extension if none is given, or one that says nothing', () => {
    expect(resolveContentType('a.pdf', undefined)).toBe('application/pdf');
    expect(resolveContentType('a.PNG', 'application/octet-stream')).toBe('image/png');
    expect(resolveContentType('a.png', 'Application/Octet-Stream; x=y')).toBe('image/png');
    expect(resolveContentType('a.ics', undefined)).toBe('text/calendar');
    expect(resolveContentType('a.pdf', 'text/plain')).toBe('text/plain');
    expect(resolveContentType('a.unheard-of', undefined)).toBe('application/octet-stream');
    expect(resolveContentType('a', 'application/octet-stream')).toBe('application/octet-stream');
  });

  it.each([
    'text/plain',
    'text/calendar; method=REQUEST',
    'a/b;c="d \\" e";f=g',
    'image/svg+xml',
    'A/B ; c=d',
  ])('may have the content type %j', (text) => {
    expect(isContentType(text)).toBe(true);
  });

  it.each([
    '',
    'text',
    'text/',
    '/plain',
    'text/plain;',
    'text/plain; charset',
    'text/plain; charset=',
    'text/plain charset=utf-8',
    'text/plain; a="b',
    'text/plain; a="b"c',
    'text/plain\r\nX: y',
    'text/plain; a="\r\n"',
    'text/plain\n',
    'text/plain; a="ü"',
    'téxt/plain',
    'text/pl ain',
    `text/${'a'.repeat(251)}`,
  ])('may not have the content type %j', (text) => {
    expect(isContentType(text)).toBe(false);
  });

  it('has a content id of printable ASCII without spaces and angle brackets', () => {
    expect(isContentId('logo@example.com')).toBe(true);
    for (const text of ['', 'a b', '<a>', 'a\r\n', 'ä', 'a\x7f', 'a'.repeat(256)]) {
      expect(isContentId(text)).toBe(false);
    }
  });
});
