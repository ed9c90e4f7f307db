// The page in a real browser with real programs. `tests/page/run` runs it.

import assert from 'node:assert/strict';
import { cp, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe } from 'node:test';

import { simulate } from './simulated.mjs';
import { accessible, at, Browser, clean, click, configMap, drawn, go, load, photograph, Site, test, text, UNREACHED, until } from './support.mjs';

const COUNT = 40;

/** Limits for ten thousand nodes, on an idle machine: milliseconds to the first picture, bytes of heap, frames per second. */
const FIRST_PICTURE = 5000, HEAP = 100 << 20, FRAMES = 30;

let browser;
before(async () => { browser = await Browser.open(); });
after(() => browser.close());

const pem = (config, key) => Buffer.from(new RegExp(`${key}: (\\S+)`).exec(config)[1], 'base64');

/** Opens a browser with the certificate of an operator; returns it with the address of the page. */
async function operator(site, role) {
  const origin = `https://127.0.0.1:${site.ports.api}`;
  const config = await site.cloud('kubeconfig', '--user', 'ada', '--role', role, '--api', origin);
  return [await Browser.open([{ origin, cert: pem(config, 'client-certificate-data'), key: pem(config, 'client-key-data') }]), `${origin}/page/`];
}

describe('a fleet', () => {
  let site, page;
  before(async () => { site = await Site.open(); page = await browser.page(site.address); });
  after(async () => { await page.close(); await site.close(); });

  const sum = words => until(words, async () => (await text(page, '.big')).includes(words));

  test('without nodes shows the first steps', async () => {
    await page.getByText('No node has joined yet').waitFor();
    assert.match(await text(page, '.empty'), /edgesync-cloud token create/);
    assert.equal(new URL(page.url()).hash, '#/', 'the key leaves the address');
    await photograph(page, 'empty');
    await accessible(page, 'a fleet without nodes');
    clean(page);
  });

  test('updates without a reload while it grows and syncs', async () => {
    await page.evaluate(() => { window.same = true; });
    for (const [name, where] of [['edge-1', 'north'], ['edge-2', 'north'], ['edge-3', 'south']]) await site.device(name, { site: where });
    await sum('3 of 3 nodes in sync');
    await site.apply(...Array.from({ length: COUNT }, (_, number) => configMap(`line-${number}`, { speed: '40' })));
    await until('all hold everything', async () => (await text(page, '.sum')).includes(`${3 * COUNT} of ${3 * COUNT} objects held`));
    await sum('3 of 3 nodes in sync');
    await site.stop('edge-3');
    await sum('2 of 3 nodes in sync');
    await page.locator('.listed').getByText('edge-3').waitFor();
    await photograph(page, 'overview');
    await accessible(page, 'the overview');
    assert.equal(await page.evaluate(() => window.same), true, 'the page was loaded again');
    clean(page);
  });

  test('is grouped and filtered by its address', async keep => {
    await page.getByLabel('Group by').selectOption('site');
    await click(page.locator('#state-offline'));
    await page.locator('#state-offline[aria-pressed=true]').waitFor();
    await at(page, '#/?state=offline&group=site');
    await until('only the offline node is listed', async () => await page.locator('.listed tbody tr').count() === 1);
    const other = keep(await browser.page(page.url()));
    await other.locator('#state-offline[aria-pressed=true]').waitFor();
    await until('the same group', async () => await other.getByLabel('Group by').inputValue() === 'site');
    clean(other);
    await go(page, '#/');
  });

  test('shows each node', async () => {
    await go(page, '#/nodes/edge-1');
    await page.getByText(`${COUNT} of ${COUNT}`).waitFor();
    await page.getByRole('region', { name: 'Objects of this node' }).getByText('line-12').waitFor();
    await page.getByText('edgesync.io/StoreHealthy').waitFor();
    const time = page.locator('dd time').first();
    assert.match(await time.getAttribute('title'), /\(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)/);
    await photograph(page, 'node');
    await accessible(page, 'a node');
    await go(page, '#/nodes/nobody');
    await page.getByText('Node not found').waitFor();
    // The page asks for the node again until it is left.
    await go(page, '#/objects');
    clean(page, /404/);
  });

  test('shows what the objects of a node wait for', async keep => {
    const page = keep(await browser.page(site.address));
    const waiting = {
      uid: 'u', object: { apiVersion: 'v1', kind: 'ConfigMap', namespace: 'plant', name: 'line-12' }, held: '8', inEffect: '7', desired: '8',
      state: 'Waiting', rule: 'plc', message: 'Hold until 2026-11-26T12:00:00Z: ada: harvest', since: '2026-11-26T10:00:00Z',
    };
    await page.route(/\/edgesync\/v1\/nodes\/edge-1$/, async route => {
      const response = await route.fetch();
      await route.fulfill({ response, json: { ...await response.json(), filesInEffect: 3, filesNotInEffect: 1, objectsNotInEffect: [waiting] } });
    });
    await go(page, '#/nodes/edge-1');
    await page.getByText('3 of 4').waitFor();
    const row = page.getByRole('region', { name: 'Objects not in effect' }).locator('tbody tr');
    await row.getByText('Waiting').waitFor();
    assert.equal(await row.count(), 1);
    for (const words of ['line-12', 'plc', waiting.message]) assert.ok((await row.innerText()).includes(words), words);
    clean(page);
  });

  test('shows objects and the progress of a version', async () => {
    await go(page, '#/objects');
    await page.getByLabel('Name contains').fill('line-12');
    await until('one object', async () => await page.locator('main tbody tr').count() === 1);
    await at(page, '#/objects?name=line-12');
    await page.getByLabel('Name contains').fill('line');
    await until('more objects', async () => await page.locator('main tbody tr').count() === COUNT);
    await photograph(page, 'objects');
    await accessible(page, 'objects');
    await click(page.getByRole('link', { name: 'line-12' }));
    await sum('2 of 3 nodes hold');
    const before = await text(page, '.big .name');
    await site.apply(configMap('line-12', { speed: '50' }));
    await until('another version', async () => await text(page, '.big .name') !== before && (await text(page, '.big')).startsWith('2'));
    await site.device('edge-3', { site: 'south' });
    await sum('3 of 3 nodes hold');
    await until('a curve', async () => await page.locator('.line.main').count() === 1);
    await page.evaluate(() => { document.querySelector('main header').same = true; });
    await site.stop('edge-3');
    await sum('2 of 3 nodes hold');
    await page.getByText('unknown while offline').waitFor();
    await photograph(page, 'rollout');
    await accessible(page, 'a roll-out');
    assert.equal(await page.evaluate(() => document.querySelector('main header').same), true, 'the view was opened again');
    clean(page);
  });

  test('shows Placements and their progress', async () => {
    await site.apply({ apiVersion: 'edgesync.io/v1alpha1', kind: 'ClusterPlacement', metadata: { name: 'lines' }, spec: { nodes: { names: ['edge-*'] }, objects: { kinds: ['ConfigMap'], namespaces: ['plant'] } } });
    await go(page, '#/rollouts');
    await click(page.getByRole('link', { name: 'lines', exact: true }));
    await at(page, '#/placements/-/lines');
    await sum(`2 of 3 nodes hold all of ${COUNT} objects`);
    await photograph(page, 'placement');
    await accessible(page, 'the roll-out of a Placement');
    clean(page);
  });

  test('works with the keyboard alone', async () => {
    await go(page, '#/');
    await page.reload();
    await sum('2 of 3');
    const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent);
    const seen = [];
    for (let steps = 0; steps < 40 && !(await focused()).startsWith('Map of all nodes'); steps += 1) {
      await page.keyboard.press('Tab');
      seen.push(await focused());
    }
    assert.ok(seen.some(one => one === 'Skip to the content') && seen.some(one => one === 'Roll-outs') && seen.some(one => one.startsWith('offline')), seen.join(' | '));
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowRight');
    assert.match(await text(page, '[aria-live=polite]'), /^edge-2, in sync/);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'edge-2' }).waitFor();
    await page.getByRole('button', { name: 'Remove' }).focus();
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor();
    await accessible(page, 'a question');
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    assert.equal((await site.json('GET', 'nodes/edge-2')).state, 'in sync', 'nothing was done');
    clean(page);
  });

  test('removes and admits nodes after a confirmation', async () => {
    await go(page, '#/nodes/edge-3');
    for (const [button, state] of [['Remove', 'removed'], ['Admit', null]]) {
      await click(page.getByRole('button', { name: button }));
      await click(page.getByRole('dialog').getByRole('button', { name: button }));
      await page.getByText(`Done: ${button.toLowerCase()}.`).waitFor();
      if (state) await until(state, async () => (await site.json('GET', 'nodes/edge-3')).state === state);
      else await until('it is not removed any more', () => site.json('GET', 'nodes/edge-3').then(node => node.state !== 'removed', () => true));
    }
    clean(page, /404/);
  });

  test('keeps its last state without a connection and resumes', async () => {
    await go(page, '#/');
    await sum('2 of ');
    await site.stop('cloud', 'SIGKILL');
    await page.getByText('Disconnected').waitFor();
    assert.match(await text(page, '#live'), /data from \d\d:\d\d/);
    assert.match(await text(page, '.big'), /^2 of /, 'what was known is still there');
    await photograph(page, 'no-connection');
    await site.cloudStarts();
    await until('it is live', async () => await text(page, '#live') === 'Live');
    await sum('2 of ');
    clean(page, UNREACHED);
  });

  test('asks for a missing key', async () => {
    await page.evaluate(() => localStorage.clear());
    await page.reload();
    await page.getByText('Sign in').waitFor();
    await photograph(page, 'key');
    await accessible(page, 'the page without a key');
    clean(page, /401/);
    // The page reloads itself with the key.
    await page.goto(site.address);
    await sum('2 of ');
  });
});

describe('a node with problems', () => {
  let site, page;
  before(async () => {
    site = await Site.open();
    await site.device('edge-1', {}, '[sync]\nmax_object = "256KiB"\n[traffic]\ndaily_budget = "1GiB"');
    page = await browser.page(site.address);
    await site.known('edge-1');
    await go(page, '#/nodes/edge-1');
  });
  after(async () => { await page.close(); await site.close(); });

  test('shows the objects that it rejects', async () => {
    await site.apply(configMap('too-large', { text: 'x'.repeat(300 << 10) }), configMap('fits', { text: 'x' }));
    const rejected = page.getByRole('region', { name: 'Rejected objects' });
    await rejected.getByText('ConfigMap plant/too-large').waitFor();
    await rejected.getByText('TooLarge').waitFor();
    await page.getByText('less than a quarter of the daily budget of 1 GiB (UTC) used').first().waitFor();
    await photograph(page, 'rejected');
    await accessible(page, 'a node that rejects an object');
    await click(rejected.getByRole('link'));
    await page.getByRole('region', { name: 'Nodes that do not hold it' }).getByText('must be at most 262144 bytes').waitFor();
    await go(page, '#/?state=reject');
    await until('it is counted', async () => await page.locator('.listed tbody tr').count() === 1);
    await site.json('DELETE', '/api/v1/namespaces/plant/configmaps/too-large');
    await until('it is not any more', async () => await page.locator('.listed tbody tr').count() === 0);
    clean(page);
  });

  test('deletes held back objects only after a confirmation', async () => {
    await site.stop('cloud');
    const copied = ['', '-wal', '-shm'].map(end => [site.file(`cloud.db${end}`), site.file(`copy.db${end}`)]);
    for (const [from, to] of copied) await cp(from, to, { force: true }).catch(error => assert.equal(error.code, 'ENOENT'));
    await site.cloudStarts();
    await site.apply(...Array.from({ length: 30 }, (_, number) => configMap(`later-${number}`, { speed: '1' })));
    await until('the node has them', async () => (await site.json('GET', 'nodes/edge-1')).objects === 31);
    await site.stop('cloud', 'SIGKILL');
    for (const [to, from] of copied) {
      await rm(to, { force: true });
      await cp(from, to).catch(error => assert.equal(error.code, 'ENOENT'));
    }
    await site.cloudStarts();
    await go(page, '#/nodes/edge-1');
    await until('it is held back', async () => (await text(page, 'main .title')).includes('held back'));
    await until('what is held back', async () => await page.getByRole('region', { name: 'Held-back removals' }).locator('tbody tr').count() === 30);
    await photograph(page, 'held-back');
    await accessible(page, 'a node whose removals are held back');
    await click(page.getByRole('button', { name: 'Confirm deletions' }));
    await page.getByRole('dialog').getByText('Confirm 30 deletions on edge-1?').waitFor();
    await click(page.getByRole('button', { name: 'Cancel' }));
    assert.equal((await site.json('GET', 'nodes/edge-1')).objects, 31, 'nothing was done');
    await click(page.getByRole('button', { name: 'Confirm deletions' }));
    await click(page.getByRole('dialog').getByRole('button', { name: 'Confirm deletions' }));
    await until('they are gone', async () => (await site.json('GET', 'nodes/edge-1')).objects === 1);
    await until('it is in sync', async () => (await text(page, 'main .title')).includes('in sync'));
    clean(page, UNREACHED);
  });
});

describe('a roll-out in waves', () => {
  const RULE = 'rollouts/rules/line';
  const waves = [{ selector: 'stage=canary' }, { percent: 50 }, {}];
  const rule = { apiVersion: 'edgesync.io/v1alpha1', kind: 'ClusterPlacement', metadata: { name: 'line' }, spec: { nodes: { names: ['edge-*'] }, objects: { kinds: ['ConfigMap'], namespaces: ['line'] }, rollout: { waves: waves.map(wave => ({ ...wave, heldOnly: true, allowEmpty: true })), soak: '1h', settle: '1s' } } };
  let site, page;
  before(async () => {
    site = await Site.open();
    for (const name of ['edge-1', 'edge-2', 'edge-3']) await site.device(name);
    for (const name of ['edge-1', 'edge-2', 'edge-3']) await site.known(name);
    for (const name of ['edge-1', 'edge-2']) await site.json('PATCH', `/api/v1/nodes/${name}`, { metadata: { labels: { stage: 'canary' } } });
    page = await browser.page(site.address);
  });
  after(async () => { await page.close(); await site.close(); });

  const status = () => site.json('GET', RULE);
  const button = name => page.getByRole('button', { name, exact: true });
  const change = speed => site.apply(configMap('settings', { speed }, 'line'));
  const confirm = async (name, ...words) => {
    await click(button(name));
    const dialog = page.getByRole('dialog');
    for (const one of words) await dialog.getByText(one).waitFor();
    await click(dialog.getByRole('button', { name, exact: true }));
    await page.getByText(`Done: ${name.toLowerCase()}.`).waitFor();
  };

  test('shows a bar per wave, and waits for the first one', async () => {
    await change('40');
    await site.apply(rule);
    await until('the first revision is stable', () => status().then(seen => seen.revisions.length === 1, () => false));
    await go(page, '#/rollouts');
    await page.getByRole('region', { name: 'Placement rules' }).getByText(/^revision 1: 3 of 3 waves$/).waitFor();
    await click(page.getByRole('link', { name: 'line', exact: true }));
    await page.getByText('Revision 1 is the stable one').waitFor();
    assert.deepEqual([await button('Pause').count(), await button('Undo').count()], [1, 0], 'nothing can be undone');
    await change('50');
    await page.getByText('Revision 2 is open for 1 of 3 waves.').waitFor();
    const first = page.locator('.wave').first();
    await first.getByText('good 2').waitFor();
    assert.match(await text(page, '.wave'), /^Wave 1 ?stage=canary ?open, 2 nodes ?good 2/);
    assert.equal(await first.locator('.bar .layer.sync').getAttribute('width'), '2');
    assert.equal(await page.locator('.wave .bar').count(), 1, 'the others are not open');
    await page.getByRole('region', { name: 'Conditions of the roll-out' }).getByText('Soaking').waitFor();
    await page.getByRole('region', { name: 'Revisions that nodes have' }).getByText('1 of 3').waitFor();
    await photograph(page, 'waves');
    await accessible(page, 'a roll-out in waves');
    clean(page);
  });

  test('is paused after a confirmation, which no refresh closes', async () => {
    await click(button('Pause'));
    const dialog = page.getByRole('dialog');
    await dialog.getByText('Revision 2 stays open for 1 of 3 waves.').waitFor();
    await accessible(page, 'a question about a roll-out');
    await photograph(page, 'waves-question');
    // A refresh of the view leaves the dialog and its focus.
    await dialog.getByRole('button', { name: 'Cancel' }).focus();
    await change('60');
    await page.locator('main').getByText('Revision 3 is open for 1 of 3 waves.').waitFor({ state: 'attached' });
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Cancel');
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    assert.equal((await status()).paused, null, 'nothing was done');
    await until('the focus returns', () => page.evaluate(() => document.activeElement.id === 'rollout-pause'));
    await confirm('Pause', 'Revision 3 stays open');
    await page.getByText('Paused by an operator.').waitFor();
    assert.equal((await status()).paused, 'Command');
    await photograph(page, 'waves-paused');
    await accessible(page, 'a paused roll-out');
    clean(page);
  });

  test('shows why a command is refused', async () => {
    await click(button('Undo'));
    const dialog = page.getByRole('dialog');
    await dialog.getByText('Undo revision 3 of line?').waitFor();
    await site.cloud('rollout', 'promote', 'line');
    await site.cloud('rollout', 'undo', 'line');
    await click(dialog.getByRole('button', { name: 'Undo' }));
    await page.getByText(/^Failed: /).waitFor();
    assert.match(await text(page, 'main [role=status]'), /^Failed: the roll-out has moved since/);
    clean(page, /409/);
  });

  test('is resumed, promoted and undone with what was seen', async () => {
    await confirm('Resume', 'Waves open again by themselves');
    await change('70');
    await page.getByText('Revision 4 is open for 1 of 3 waves.').waitFor();
    await confirm('Promote', 'The open wave is accepted without further judgement. The revision opens for wave 2 (50 % of all nodes).');
    await page.getByText('Revision 4 is open for 2 of 3 waves.').waitFor();
    await confirm('Undo', 'Undo revision 4 of line?', 'Its nodes return to revision 1');
    await page.getByText('Revision 1 is the stable one').waitFor();
    await page.getByText('Rejected versions: 1.').waitFor();
    await until('revision 1 is the only one', async () => (await status()).revisions.map(one => one.number).join() === '1');
    const history = page.getByRole('region', { name: 'Revisions that have ended' });
    await history.getByText('Undone').first().waitFor();
    await history.getByText(/^page key of /).first().waitFor();
    await photograph(page, 'waves-undone');
    await accessible(page, 'a roll-out that was undone');
    clean(page);
  });

  test('has buttons for the role edit, and none for view', async keep => {
    for (const [role, count] of [['view', 0], ['edit', 1]]) {
      const [other, address] = await operator(site, role);
      keep(other);
      const seen = await other.page(`${address}#/placements/-/line`);
      await seen.getByText('Revision 1 is the stable one').waitFor();
      await until(`${count} buttons for ${role}`, async () => await seen.getByRole('button', { name: 'Pause' }).count() === count);
      const answer = await seen.evaluate(async path => {
        const sent = await fetch(`/edgesync/v1/${path}`, { method: 'POST', headers: { 'X-Edgesync-Page': '1', 'Content-Type': 'application/json' }, body: '{"action":"undo","revision":99}' });
        return [sent.status, (await sent.json()).message];
      }, RULE);
      if (role === 'view') assert.deepEqual(answer, [403, "requires role 'edit', have 'view'"]);
      else assert.deepEqual([answer[0], /moved since/.test(answer[1])], [409, true], answer[1]);
      clean(seen, /403|409/);
    }
  });
});

describe('another access', () => {
  test('by certificate opens the page with the rights of the role', async keep => {
    const site = keep(await Site.open());
    await site.device('edge-1');
    await site.known('edge-1');
    await site.apply(configMap('settings', { speed: '40' }));
    for (const role of ['admin', 'view']) {
      const [other, address] = await operator(site, role);
      keep(other);
      const page = await other.page(address);
      await until('in sync', async () => (await text(page, '.big')).includes('1 of 1 nodes in sync'));
      await go(page, '#/nodes/edge-1');
      await page.getByRole('region', { name: 'Objects of this node' }).getByText('settings').waitFor();
      // The facts follow the buttons, which are shown once the role is known.
      await page.getByText('Agent version').waitFor();
      assert.equal(await page.getByRole('button', { name: 'Remove' }).count(), role === 'admin' ? 1 : 0, role);
      clean(page);
    }
  });

  test('over a cluster shows the objects of the cluster', async keep => {
    const cluster = keep(await Site.open());
    await cluster.apply({ apiVersion: 'edgesync.io/v1alpha1', kind: 'ClusterPlacement', metadata: { name: 'lines' }, spec: { nodes: { names: ['edge-*'] }, objects: { kinds: ['ConfigMap'], namespaces: ['plant'] } } }, configMap('settings', { speed: '40' }));
    const site = keep(await Site.open({ over: cluster }));
    await site.device('edge-1', { site: 'north' });
    const page = keep(await browser.page(site.address));
    await until('in sync', async () => (await text(page, '.big')).includes('1 of 1 nodes in sync') && (await text(page, '.sum')).includes('1 of 1 objects held'));
    await go(page, '#/objects');
    await click(page.getByRole('link', { name: 'settings' }));
    await until('held', async () => (await text(page, '.big')).includes('1 of 1 nodes hold'));
    const before = await text(page, '.big .name');
    await cluster.apply(configMap('settings', { speed: '50' }));
    await until('another version', async () => await text(page, '.big .name') !== before && (await text(page, '.big')).startsWith('1'));
    await go(page, '#/placements/-/lines');
    await until('the roll-out', async () => (await text(page, '.big')).includes('1 of 1 nodes hold all of 1 object'));
    await go(page, '#/nodes/edge-1');
    await page.getByText('kubectl describe node edge-1').waitFor();
    await page.getByRole('region', { name: 'Objects of this node' }).getByText('settings').waitFor();
    await photograph(page, 'cluster-node');
    clean(page, /404/);
  });
});

describe('foreign text', () => {
  const HOSTILE = ['<img src=x onerror="window.bad=1">', '<script>window.bad=1</script>', '"><svg onload=window.bad=1>', '\u202eecin si siht', '{{constructor.constructor("window.bad=1")()}}'];
  const LINE = `${'long '.repeat(2048)}\u2066end`;

  test('in events and conditions is shown as text', async keep => {
    const site = keep(await Site.open({ nodes: 'max_events = 100' }));
    await site.device('edge-1');
    await until('the node', () => site.json('GET', '/api/v1/nodes/edge-1').then(node => node.status?.conditions?.length, () => 0));
    const now = new Date().toISOString();
    for (const [number, note] of [...HOSTILE.map(one => one), LINE.slice(0, 1000)].entries()) {
      await site.json('POST', '/apis/events.k8s.io/v1/namespaces/default/events', {
        metadata: { name: `odd-${number}`, namespace: 'default' }, eventTime: now.replace('Z', '000Z'), type: 'Normal', reason: 'Odd', action: 'Odd', note,
        reportingController: 'test/test', reportingInstance: 'test', regarding: { apiVersion: 'v1', kind: 'Node', name: 'edge-1' },
      });
    }
    const second = now.replace(/\.\d+/, '');
    // A patch, because the device writes the same status meanwhile.
    await site.json('PATCH', '/api/v1/nodes/edge-1/status', {
      metadata: { labels: { odd: 'a' }, annotations: { odd: HOSTILE[0] } },
      status: { conditions: [{ type: 'Odd', status: 'True', reason: 'Odd', message: LINE, lastTransitionTime: second, lastHeartbeatTime: second }] },
    });
    const page = keep(await browser.page(site.address));
    await go(page, '#/nodes/edge-1');
    for (const note of HOSTILE) {
      const shown = note.replace('\u202e', '\u27e8U+202E\u27e9');
      await until(shown, async () => (await page.evaluate(() => document.body.innerText)).includes(shown));
    }
    await until('the long line is there, in a box', async () => (await page.locator('.long').allInnerTexts()).some(one => one.length > 10_000 && one.endsWith('\u27e8U+2066\u27e9end')));
    assert.equal(await page.evaluate(() => window.bad), undefined);
    assert.equal(await page.locator('main script, main img, main [onerror], main [onload]').count(), 0);
    await photograph(page, 'hostile');
    for (const odd of ['#/nodes/%3Cimg%20src%3Dx%20onerror%3Dwindow.bad%3D1%3E', '#/objects?name=%3Cscript%3Ewindow.bad%3D1%3C/script%3E', '#/%E0%A4%A', '#/objects/%00/-/%E2%80%AE', '#key=<x>', '#/?state=<x>&group="><b>']) {
      await go(page, odd);
      await page.waitForFunction(() => document.querySelector('main').children.length > 0);
      assert.equal(await page.evaluate(() => window.bad), undefined, odd);
    }
    clean(page, /404|400/);
  });

  test('in names and labels is shown as text', async keep => {
    const site = keep(await Site.open());
    const odd = keep(await simulate(site.address.split('#')[0], { count: 40, nameOf: number => HOSTILE[number] ?? `edge-${number}`, key: HOSTILE[0], sites: HOSTILE }));
    const page = keep(await browser.page(odd.address));
    await until('the picture', async () => (await text(page, '.big')).includes('of 40'));
    await page.getByLabel('Group by').selectOption(HOSTILE[0]);
    await until('groups', () => page.url().includes('group='));
    await go(page, '#/?list=all');
    const table = page.locator('.listed table');
    for (const one of HOSTILE) {
      const shown = one.replace('\u202e', '\u27e8U+202E\u27e9');
      await until(shown, async () => (await table.innerText()).includes(shown));
    }
    assert.equal(await page.evaluate(() => window.bad), undefined);
    assert.equal(await page.locator('main script, main img, main [onerror], main [onload]').count(), 0);
    await photograph(page, 'hostile-names');
    clean(page, /404/);
  });

  test('in the waves of a roll-out is shown as text, and commands name what was seen', async keep => {
    const site = keep(await Site.open());
    const fixture = async name => JSON.parse(await readFile(join(import.meta.dirname, `../fixtures/admin/${name}.json`), 'utf8'));
    const [rules, progress, status] = await Promise.all(['rules', 'rollout-of-rule', 'rollout-status'].map(fixture));
    const rule = rules.items.find(one => one.rollout);
    [rule.rollout.rule, status.rule, status.waves[0].selector, status.paused, status.history[0].by] = [HOSTILE[0], HOSTILE[0], HOSTILE[2], 'FailuresExceeded', HOSTILE[3]];
    status.waves[0].failures = HOSTILE.map(node => ({ node, message: node }));
    Object.assign(status.waves[0], { nodes: 12, good: 4, heldOnly: 1, pending: 2, waiting: 1, failed: 3, away: 1 });
    status.conditions[1].message = LINE;
    const sent = [];
    const page = keep(await browser.page(site.address));
    await page.route(/\/edgesync\/v1\/rollouts(\/|$)/, route => {
      const asked = route.request(), path = new URL(asked.url()).pathname.replace('/edgesync/v1/', '');
      if (asked.method() === 'POST') {
        sent.push([decodeURIComponent(path), JSON.parse(asked.postData())]);
        return route.fulfill({ status: 409, json: { message: HOSTILE[4] } });
      }
      return route.fulfill({ json: path === 'rollouts' ? rules : path.startsWith('rollouts/rules/') ? status : progress });
    });
    await go(page, `#/placements/${rule.namespace}/${rule.name}`);
    await page.getByText('Paused: FailuresExceeded.').waitFor();
    const failures = page.getByRole('region', { name: 'First failures of each wave' });
    for (const one of HOSTILE) {
      const shown = one.replace('\u202e', '\u27e8U+202E\u27e9');
      assert.ok((await failures.innerText()).includes(shown), shown);
    }
    const parts = await page.locator('.wave .bar rect').evaluateAll(all => all.map(one => `${one.getAttribute('class')} ${one.getAttribute('x')} ${one.getAttribute('width')}`));
    assert.deepEqual(parts, ['layer sync 0 5', 'layer syncing 5 2', 'layer held 7 1', 'layer reject 8 3', 'layer away 11 1']);
    assert.match(await text(page, '.wave .badges'), /^good 5 ?pending 2 ?waiting 1 ?failed 3 ?away 1$/);
    for (const name of ['Resume', 'Promote', 'Undo']) {
      await click(page.getByRole('button', { name, exact: true }));
      await click(page.getByRole('dialog').getByRole('button', { name, exact: true }));
      await page.getByText(`Failed: ${HOSTILE[4]}`).waitFor();
    }
    assert.deepEqual(sent, [{ action: 'resume', reason: 'FailuresExceeded' }, { action: 'promote', revision: 2, open: 1 }, { action: 'undo', revision: 2 }]
      .map(body => [`rollouts/rules/${HOSTILE[0]}`, body]));
    assert.equal(await page.evaluate(() => window.bad), undefined);
    assert.equal(await page.locator('main script, main img, main [onerror], main [onload]').count(), 0);
    await photograph(page, 'waves-failed');
    await accessible(page, 'a roll-out that has failed');
    clean(page, /409/);
  });
});

describe('ten thousand nodes', () => {
  test('are drawn fast, in little memory, at a steady frame rate', async (keep, t) => {
    const site = keep(await Site.open());
    const many = keep(await simulate(site.address.split('#')[0]));
    const began = performance.now();
    const page = keep(await browser.page(many.address));
    await until('the picture', () => page.evaluate(() => document.querySelector('.big')?.textContent.includes('of 10,000') && document.querySelector('canvas').width > 300));
    await drawn(page);
    const first = performance.now() - began;
    await photograph(page, 'ten-thousand');
    const height = () => page.evaluate(() => document.querySelector('canvas').height);
    const ungrouped = await height();
    await page.getByLabel('Group by').selectOption('site');
    await until('the map is laid out in groups', async () => await height() !== ungrouped);
    await page.locator('.plot').waitFor();
    await photograph(page, 'ten-thousand-grouped');
    await accessible(page, 'ten thousand nodes');
    many.change(500);
    const seen = await page.evaluate(() => new Promise(done => {
      const frames = [], began = performance.now();
      let last = began;
      const frame = now => {
        frames.push(now - last);
        last = now;
        if (now - began < 10_000) return requestAnimationFrame(frame);
        done(frames);
      };
      requestAnimationFrame(frame);
    }));
    const longest = Math.max(...seen.slice(1)), rate = seen.length / 10;
    const session = await page.context().newCDPSession(page);
    await session.send('HeapProfiler.collectGarbage');
    const heap = (await session.send('Runtime.getHeapUsage')).usedSize;
    t.diagnostic(`first picture after ${Math.round(first)} ms; ${rate} frames a second, the longest ${Math.round(longest)} ms; heap ${(heap / 1e6).toFixed(1)} MB`);
    assert.ok(first < FIRST_PICTURE || first < FIRST_PICTURE * load(), `the first picture took ${first} ms`);
    assert.ok(heap < HEAP, `${heap} bytes of heap`);
    assert.ok(rate >= FRAMES || rate >= FRAMES / load(), `${rate} frames a second`);
    clean(page, /404/);
  });
});
