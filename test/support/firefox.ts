/**
 * A real Firefox for tests, with a profile of its own and no way out of this machine. It is driven over Marionette, its
 * own protocol: Playwright starts no Firefox but its own.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { findBrowser } from './browser.ts';

export function findFirefox(environment: NodeJS.ProcessEnv = process.env): string | null {
  return findBrowser(environment, 'FIREFOX_PATH', ['firefox-esr', 'firefox', 'Firefox']);
}

export type Firefox = {
  open: (url: string) => Promise<void>;
  /** A click as a person makes it, upon which the page may ask for permissions. */
  click: (selector: string) => Promise<void>;
  /** In the page. The script gets `arguments`, and returns what is JSON, or a promise of it. */
  run: <Value>(script: string, ...values: readonly unknown[]) => Promise<Value>;
  /** The text below the title, as soon as a notification with this title is shown. */
  untilShown: (title: string) => Promise<string>;
  /** Clicks one that is shown, or its button of this name: an action, not a label. */
  clickNotification: (title: string, button?: string) => Promise<void>;
  /** Closes one that is shown, as a person does who wants to see no more of it. */
  closeNotification: (title: string) => Promise<void>;
  stop: () => Promise<void>;
};

export type FirefoxOptions = {
  executablePath: string;
  /** Of the push service. */
  pushUrl: string;
  /** Which may show notifications, as if the person had said so. */
  origins: readonly string[];
};

export async function launchFirefox({ executablePath, pushUrl, origins }: FirefoxOptions): Promise<Firefox> {
  const profile = await mkdtemp(path.join(os.tmpdir(), 'postillion-firefox-'));
  const permissions = path.join(profile, 'permissions');
  await writeFile(
    permissions,
    origins.map((origin) => `origin\tdesktop-notification\t1\t${origin}\n`).join(''),
  );
  const settings = {
    ...quietly,
    'dom.push.serverURL': pushUrl,
    'permissions.manager.defaultsUrl': `file://${permissions}`,
  };
  await writeFile(
    path.join(profile, 'user.js'),
    Object.entries(settings)
      .map(([name, value]) => `user_pref(${JSON.stringify(name)}, ${JSON.stringify(value)});\n`)
      .join(''),
  );
  const child = spawn(
    executablePath,
    [
      ...['--headless', '--no-remote', '--profile', profile, 'about:blank'],
      ...['--marionette', '--remote-allow-system-access'],
    ],
    { stdio: 'ignore', env: { ...process.env, HOME: profile, MOZ_CRASHREPORTER_DISABLE: '1' } },
  );
  const ended = once(child, 'exit');
  const remove = async () => {
    child.kill('SIGKILL');
    await ended;
    // What it has started itself takes another moment to end, and may still write.
    await rm(profile, { recursive: true, force: true, maxRetries: 20 });
  };
  try {
    const marionette = await connect(child, path.join(profile, 'MarionetteActivePort'));
    await marionette.ask('WebDriver:NewSession', { capabilities: {} });
    await marionette.ask('WebDriver:SetTimeouts', { script: scriptMaxMs });
    const driven = drive(marionette);
    await driven.allowPush();
    return {
      ...driven,
      stop: async () => {
        marionette.close();
        await remove();
      },
    };
  } catch (cause) {
    await remove();
    throw cause;
  }
}

/** Push over what is not TLS, notifications as windows that can be clicked, and nothing asked of Mozilla. */
const quietly = {
  'dom.push.testing.allowInsecureServerURL': true,
  'dom.push.testing.ignorePermission': true,
  'dom.push.retryBaseInterval': 500,
  'permissions.default.desktop-notification': 1,
  'alerts.useSystemBackend': false,
  'dom.webnotifications.actions.enabled': true,
  // A closed notification goes at once, and not when its animation has ended.
  'ui.prefersReducedMotion': 1,
  'network.manage-offline-status': false,
  // Chosen by itself, and written into the profile.
  'marionette.port': 0,
  // Nobody listens there; for loopback addresses no proxy is used.
  'network.proxy.type': 1,
  'network.proxy.http': '127.0.0.1',
  'network.proxy.http_port': 9,
  'network.proxy.ssl': '127.0.0.1',
  'network.proxy.ssl_port': 9,
};

type Marionette = {
  ask: (command: string, parameters: object) => Promise<unknown>;
  close: () => void;
};

const startPauseMs = 50;

/** Longer than a test may take, which ends what hangs. */
const scriptMaxMs = 600_000;

/** Each message is its length, a colon and a JSON array. */
async function connect(child: ChildProcess, portFile: string): Promise<Marionette> {
  let port: string | null = null;
  // Ends when the browser does.
  while (port === null) {
    if (child.exitCode !== null) throw new Error(`Firefox ended with ${child.exitCode}`);
    await delay(startPauseMs);
    port = await readFile(portFile, 'utf8').catch(() => null);
  }
  const socket = net.connect(Number(port), '127.0.0.1');
  const waiting = new Map<number, { resolve: (value: unknown) => void; reject: (cause: Error) => void }>();
  let kept: Buffer = Buffer.alloc(0);
  let asked = 0;
  socket.on('error', () => undefined);
  socket.on('close', () => {
    for (const { reject } of waiting.values()) reject(new Error('Firefox has left'));
  });
  socket.on('data', (chunk: Buffer) => {
    kept = Buffer.concat([kept, chunk]);
    // Ends when there is no whole message left.
    for (;;) {
      const colon = kept.indexOf(':');
      const length = Number(kept.subarray(0, colon).toString());
      if (colon === -1 || kept.length < colon + 1 + length) return;
      const text = kept.subarray(colon + 1, colon + 1 + length).toString();
      kept = kept.subarray(colon + 1 + length);
      const message = JSON.parse(text) as unknown;
      if (!Array.isArray(message)) continue;
      const [, id, error, result] = message as [number, number, { message: string } | null, unknown];
      const one = waiting.get(id);
      waiting.delete(id);
      if (error === null) one?.resolve(result);
      else one?.reject(new Error(error.message));
    }
  });
  await once(socket, 'connect');
  return {
    ask: (command, parameters) =>
      new Promise((resolve, reject) => {
        asked += 1;
        waiting.set(asked, { resolve, reject });
        const message = Buffer.from(JSON.stringify([0, asked, command, parameters]));
        socket.write(Buffer.concat([Buffer.from(`${message.length}:`), message]));
      }),
    close: () => socket.destroy(),
  };
}

/** Marionette turns push off, with all else that a browser does by itself. */
type Driven = Omit<Firefox, 'stop'> & { allowPush: () => Promise<void> };

function drive({ ask }: Marionette): Driven {
  // Whoever asks says what is answered, and asserts it.
  const run = async <Value>(context: 'content' | 'chrome', script: string, ...values: readonly unknown[]) => {
    await ask('Marionette:SetContext', { value: context });
    const result = await ask('WebDriver:ExecuteScript', { script, args: values, sandbox: null });
    return (result as { value: unknown }).value as Value;
  };
  const runOnNotification = async (title: string, script: string, ...values: readonly unknown[]) =>
    run<string>(
      'chrome',
      `${findNotification} return findNotification(arguments[0]).then(${script});`,
      title,
      ...values,
    );
  return {
    allowPush: () => run('chrome', "Services.prefs.setBoolPref('dom.push.connection.enabled', true)"),
    open: async (url) => {
      await ask('Marionette:SetContext', { value: 'content' });
      await ask('WebDriver:Navigate', { url });
    },
    click: async (selector) => {
      await ask('Marionette:SetContext', { value: 'content' });
      const found = await ask('WebDriver:FindElement', { using: 'css selector', value: selector });
      const [id] = Object.values((found as { value: Record<string, string> }).value);
      await ask('WebDriver:ElementClick', { id });
    },
    run: (script, ...values) => run('content', script, ...values),
    untilShown: (title) =>
      runOnNotification(title, "(shown) => shown.document.getElementById('alertTextLabel').textContent"),
    clickNotification: async (title, button) => {
      if (button === undefined) {
        await runOnNotification(title, "(shown) => shown.document.getElementById('alertBox').click()");
      } else {
        // Windows have no buttons, which the system's own notifications have: it is told what they would tell.
        await runOnNotification(title, clickButton, button);
      }
    },
    closeNotification: async (title) => {
      await runOnNotification(title, "(shown) => shown.document.getElementById('alert-close').click()");
    },
  };
}

const findNotification = `
  const { setTimeout } = ChromeUtils.importESModule('resource://gre/modules/Timer.sys.mjs');
  const titleOf = (shown) => shown.document.getElementById('alertTitleLabel')?.getAttribute('value');
  const findNotification = (title) => new Promise((resolve) => {
    const look = () => {
      const shown = [...Services.wm.getEnumerator('alert:alert')].find(
        (one) => one.gIsActive && titleOf(one) === title,
      );
      if (shown === undefined) setTimeout(look, 20);
      else resolve(shown);
    };
    look();
  });`;

const clickButton = `(shown) => {
  const button = { QueryInterface: ChromeUtils.generateQI(['nsIAlertAction']), action: arguments[1] };
  shown.gAlertListener.observe(button, 'alertclickcallback', shown.gAlertCookie);
  shown.close();
}`;
