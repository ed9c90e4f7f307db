// Shared support of the page's tests: real programs and a real browser.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { createWriteStream, existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test as runTest } from 'node:test';
import { promisify } from 'node:util';

const tools = createRequire(join(process.env.EDGESYNC_PAGE_TOOLS, 'package.json'));
const { chromium } = tools('playwright-core');
const axeSource = await readFile(tools.resolve('axe-core/axe.min.js'), 'utf8');
const run = promisify(execFile);

const programs = process.env.EDGESYNC_PAGE_PROGRAMS;
export const pictures = process.env.EDGESYNC_PAGE_PICTURES;
/** Timeout for an event on an idle machine, in milliseconds. */
const PATIENCE = 60_000;
/** The same for a layout. */
const LAYOUT = 5000;
/** Lines of a log and characters of a page that are printed when a test fails. */
const LOG_LINES = 40, PAGE_TEXT = 3000;

/** Sites and pages that are open: their state is printed when a test fails. */
const sites = new Set(), pages = new Set();

/** Measures the load of the machine: wall-clock time over processor time of a busy loop, at least 1. */
export function load() {
  const began = performance.now(), before = process.cpuUsage();
  const worked = () => {
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000;
  };
  while (worked() < 30) { /* works */ }
  // The measurement itself adds up to a tenth.
  return Math.max(1, Math.ceil((performance.now() - began) / worked() / 1.1));
}

/** Waits until `is` returns a truthy value and returns that. After a timeout, which grows with the load, it fails with `what` or its result. */
export async function until(what, is, patience = PATIENCE) {
  const began = performance.now();
  for (;;) {
    const seen = await is();
    if (seen) return seen;
    const waited = performance.now() - began;
    assert.ok(waited < patience || waited < patience * load(), `not within ${Math.round(waited / 1000)} s: ${typeof what === 'string' ? what : what()}`);
    await new Promise(go => setTimeout(go, 50));
  }
}

/** Prints what the open pages show and the last lines that the open sites have logged. */
async function printState(failed) {
  for (const page of pages) {
    const shown = await page.locator('body').innerText({ timeout: LAYOUT }).catch(String);
    console.error(`--- ${failed}: ${page.url()} shows\n${shown.slice(0, PAGE_TEXT)}\n${page.errors.join('\n')}`);
  }
  for (const site of sites) console.error(`--- ${failed}: the cloud side has logged\n${await site.tail('cloud')}`);
}

/** Declares a test. It gets a function that keeps a site, page or browser until its end, and its context. A failure is printed with the state of everything open. */
export function test(name, run) {
  runTest(name, async context => {
    const kept = [];
    const keep = one => {
      kept.push(one);
      return one;
    };
    try {
      await run(keep, context);
    } catch (error) {
      await printState(name);
      throw error;
    } finally {
      for (const one of kept.reverse()) await one.close();
    }
  });
}

/** A directory with a cloud side and agents. */
export class Site {
  /** `nodes` adds lines to the section for nodes; `over` is the site whose API serves as the cluster with the objects. */
  static async open({ nodes = '', over } = {}) {
    const site = new Site();
    site.directory = await mkdtemp(join(tmpdir(), 'edgesync-page-'));
    site.processes = new Map();
    await mkdir(pictures, { recursive: true });
    await writeFile(site.file('cloud.toml'), `
[store]
path = "${site.file('cloud.db')}"
${over ? `type = "kubernetes"\n[kubernetes]\nkubeconfig = "${over.file('admin.kubeconfig')}"\nobjectsyncs = "off"` : ''}
[broker]
listen = "127.0.0.1:0"
[enrollment]
listen = "off"
[api]
socket = "${site.file('cloud.sock')}"
listen = "127.0.0.1:0"
[page]
listen = "127.0.0.1:0"
[nodes]
trusted_labels = ["site"]
${nodes}
${over ? '' : '[[placement]]\nnodes = { names = ["edge-*"] }\nobjects = { namespaces = ["plant"] }'}
`);
    try {
      await site.cloudStarts();
    } catch (error) {
      console.error(await site.tail('cloud'));
      await site.close();
      throw error;
    }
    sites.add(site);
    return site;
  }

  file(name) { return join(this.directory, name); }

  start(name, program, ...args) {
    const log = createWriteStream(this.file(`${name}.log`), { flags: 'a' });
    const child = spawn(join(programs, program), args, { stdio: ['ignore', 'pipe', 'pipe'], env: { PATH: process.env.PATH } });
    child.stdout.pipe(log);
    child.stderr.pipe(log);
    // After its last output.
    child.ended = new Promise(done => child.once('close', done));
    this.processes.set(name, child);
  }

  async stop(name, signal = 'SIGTERM') {
    const child = this.processes.get(name);
    if (!child) return;
    this.processes.delete(name);
    child.kill(signal);
    await child.ended;
  }

  async ask(program, ...args) {
    const env = { PATH: process.env.PATH, EDGESYNC_CLOUD_SERVER: this.file('cloud.sock') };
    const { stdout } = await run(join(programs, program), args, { env, maxBuffer: 64 << 20 });
    return stdout;
  }

  cloud(...args) { return this.ask('edgesync-cloud', ...args); }

  /** Starts the cloud side, after a stop on its previous ports. */
  async cloudStarts() {
    if (this.address) {
      const config = await readFile(this.file('cloud.toml'), 'utf8');
      const at = (section, port) => text => text.replace(`[${section}]\nlisten = "127.0.0.1:0"`, `[${section}]\nlisten = "127.0.0.1:${port}"`);
      const { port } = new URL(this.address);
      await writeFile(this.file('cloud.toml'), [at('page', port), at('broker', this.ports.broker)].reduce((text, change) => change(text), config));
    }
    const before = (await this.log('cloud')).length;
    this.start('cloud', 'edgesync-cloud', 'run', '--config', this.file('cloud.toml'));
    const cloud = this.processes.get('cloud');
    const lines = [/embedded on [\d.]+:(\d+).*\n/, /cloud side started api=https:\/\/127.0.0.1:(\d+).*\n/];
    await until('the cloud side serves', async () => {
      const log = (await this.log('cloud')).slice(before);
      assert.equal(cloud.exitCode, null, 'the cloud side has ended');
      const [broker, api] = lines.map(line => line.exec(log)?.[1]);
      const address = broker && api && await this.cloud('page').catch(() => null);
      if (!address) return false;
      this.address = address.trim();
      this.ports = { broker, api };
      return true;
    });
  }

  async log(name) { return existsSync(this.file(`${name}.log`)) ? readFile(this.file(`${name}.log`), 'utf8') : ''; }

  /** Returns the last lines of a log. */
  async tail(name) { return (await this.log(name)).trimEnd().split('\n').slice(-LOG_LINES).join('\n'); }

  /** Starts a device. `more` adds lines to its configuration. */
  async device(name, labels = {}, more = '') {
    const given = Object.entries(labels).map(([key, value]) => `"${key}" = "${value}"`).join(', ');
    await mkdir(this.file(name), { recursive: true });
    await writeFile(this.file(`${name}.toml`), `
[node]
name = "${name}"
labels = { ${given} }
[store]
path = "${this.file(`${name}/edge.db`)}"
[link]
broker = "mqtt://127.0.0.1:${this.ports.broker}"
backoff_min = "100ms"
backoff_max = "500ms"
[api]
socket = "${this.file(`${name}/api.sock`)}"
listen = "off"
${more}
`);
    this.start(name, 'edgesync', 'run', '--config', this.file(`${name}.toml`));
  }

  /** Waits until the cloud side has everything about a node that the page shows: for the rest, the page would log a 404. */
  known(name) {
    const paths = [`nodes/${name}`, `nodes/${name}/history`, `nodes/${name}/objects`, `/api/v1/nodes/${name}`];
    return until(`${name} is known`, () => Promise.all(paths.map(path => this.json('GET', path))).catch(() => null));
  }

  /** Sends a request to the cloud side's socket. A patch is a strategic merge patch. */
  async json(method, path, body) {
    const { request } = await import('node:http');
    const type = method === 'PATCH' ? 'application/strategic-merge-patch+json' : 'application/json';
    return new Promise((done, failed) => {
      const full = path.startsWith('/') ? path : `/edgesync/v1/${path}`;
      const asked = request({ socketPath: this.file('cloud.sock'), method, path: full, headers: { 'content-type': type } }, async answer => {
        let text = '';
        for await (const part of answer) text += part;
        if (answer.statusCode >= 400) failed(new Error(`${method} ${path}: ${answer.statusCode} ${text}`));
        else done(JSON.parse(text));
      });
      asked.once('error', failed);
      asked.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  async apply(...objects) {
    await writeFile(this.file('manifest.json'), JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }));
    await this.cloud('apply', '-f', this.file('manifest.json'));
  }

  async close() {
    sites.delete(this);
    await Promise.all([...this.processes.keys()].map(name => this.stop(name)));
    await rm(this.directory, { recursive: true, force: true });
  }
}

export const configMap = (name, data, namespace = 'plant') => ({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace }, data });

/** A browser with an empty profile. It records the errors that a page logs and its requests to other origins. */
export class Browser {
  /** With an operator's certificate the browser accepts any server certificate, because Chromium has no option for a CA. */
  static async open(clientCertificates) {
    const browser = new Browser();
    browser.directory = await mkdtemp(join(tmpdir(), 'edgesync-chromium-'));
    browser.context = await chromium.launchPersistentContext(browser.directory, {
      ...clientCertificates && { clientCertificates, ignoreHTTPSErrors: true },
      executablePath: process.env.EDGESYNC_PAGE_CHROMIUM ?? '/usr/bin/chromium', headless: true, viewport: { width: 1280, height: 860 }, reducedMotion: 'reduce', timezoneId: 'Europe/Berlin', locale: 'en-GB',
      args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--enable-precise-memory-info'],
    });
    return browser;
  }

  /** Opens a page. `errors` collects its errors and warnings, `strays` its requests to other origins. */
  async page(address) {
    const page = await this.context.newPage();
    const { origin } = new URL(address);
    page.errors = [];
    page.strays = [];
    page.on('console', message => {
      const { pathname } = new URL(message.location().url || 'about:');
      if (['error', 'warning'].includes(message.type())) page.errors.push(`${message.text()}, ${pathname}`);
    });
    page.on('pageerror', error => page.errors.push(String(error)));
    page.on('request', asked => { if (new URL(asked.url()).origin !== origin && !asked.url().startsWith('data:')) page.strays.push(asked.url()); });
    page.setDefaultTimeout(PATIENCE);
    pages.add(page);
    page.once('close', () => pages.delete(page));
    await page.goto(address);
    return page;
  }

  async close() {
    await this.context.close();
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** Opens a view, and waits until it replaces the one before. */
export const go = (page, hash) => page.evaluate(hash => {
  const before = location.href;
  location.hash = hash;
  // The page listens since before, so it draws first.
  return location.href === before || new Promise(done => addEventListener('hashchange', () => done(true), { once: true }));
}, hash);

/** Waits until the address ends so: the browser reports a change later than the page shows it. */
export const at = (page, end) => until(() => `the address ends with ${end}: ${page.url()}`, () => page.url().endsWith(end));

/** Clicks an element in one step: the page may redraw it between press and release of a mouse. */
export async function click(locator) {
  await locator.waitFor();
  await locator.evaluate(element => element.click());
}

/** Returns the text of an element on one line. */
export const text = (page, where) => page.locator(where).first().textContent().then(said => said.replace(/\s+/g, ' ').trim());

/** Errors of a browser while the cloud side stops, is away and starts. */
export const UNREACHED = /ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|ERR_CONTENT_LENGTH|ERR_SOCKET|network error|503/;

/** Asserts that a page has logged only expected errors and sent no request to another origin. */
export function clean(page, expected = null) {
  assert.deepEqual(page.errors.splice(0).filter(error => !expected?.test(error)), [], 'errors in the console');
  assert.deepEqual(page.strays.splice(0), [], 'requests that leave the origin');
}

/** Runs axe, in the page. Redraws wait, so that it judges no elements that have left the document. */
async function judge() {
  const { replaceChildren } = Element.prototype, redraws = [];
  Element.prototype.replaceChildren = function (...children) { redraws.push([this, children]); };
  try {
    const { violations } = await axe.run(document);
    return JSON.stringify(violations.map(one => [one.id, one.nodes.map(node => `${node.html.slice(0, 200)} ${node.failureSummary.slice(0, 300)}`)]));
  } finally {
    Element.prototype.replaceChildren = replaceChildren;
    for (const [element, children] of redraws) element.replaceChildren(...children);
  }
}

/** Asserts that axe finds no violations in either colour scheme. */
export async function accessible(page, what) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    const session = await page.context().newCDPSession(page);
    // The debugger bypasses the page's content security policy.
    await session.send('Runtime.evaluate', { expression: `typeof axe === 'undefined' && (() => { ${axeSource} })()` });
    const { result, exceptionDetails } = await session.send('Runtime.evaluate', { expression: `(${judge})()`, awaitPromise: true, returnByValue: true });
    await session.detach();
    assert.equal(exceptionDetails, undefined, `axe on ${what} fails: ${exceptionDetails?.exception?.description}`);
    assert.deepEqual(JSON.parse(result.value), [], `axe on ${what}, ${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: 'light' });
}

/** Waits until the page has drawn its current layout. */
export const drawn = page => page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done()))));

/** Takes screenshots of the view in light, dark and phone layouts. */
export async function photograph(page, what) {
  for (const [how, size, colorScheme] of [['light', [1280, 860], 'light'], ['dark', [1280, 860], 'dark'], ['phone', [390, 844], 'light']]) {
    await page.setViewportSize({ width: size[0], height: size[1] });
    await page.emulateMedia({ colorScheme });
    await drawn(page);
    let wide;
    const fits = async () => {
      wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      return wide <= 0;
    };
    await until(() => `${what} fits (${how}): it is ${wide} px too wide`, fits, LAYOUT);
    await page.screenshot({ path: join(pictures, `${what}-${how}.png`), fullPage: false });
  }
  await page.setViewportSize({ width: 1280, height: 860 });
  await page.emulateMedia({ colorScheme: 'light' });
  await drawn(page);
}
