// Tests the API with the JavaScript client library @kubernetes/client-node:
// node client.mjs FOLDER cloud|node KUBECONFIG
//
// FOLDER contains the library. Prints "ok" and exits with 0 if all responses match the expectations of a
// Kubernetes client.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, side, kubeconfig] = process.argv.slice(2);
const library = createRequire(join(folder, 'package.json')).resolve('@kubernetes/client-node');
const k8s = await import(pathToFileURL(library));

const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const core = config.makeApiClient(k8s.CoreV1Api);
const leases = config.makeApiClient(k8s.CoordinationV1Api);
const namespace = 'default';

const as = (strategy) => k8s.setHeaderOptions('Content-Type', strategy);

async function refused(code, call) {
  const error = await call.then(() => assert.fail(`this was not refused with ${code}`), (error) => error);
  assert.equal(error.code, code, `${error.code} instead of ${code}: ${error.body}`);
  return error;
}

// Returns the events of a watch until `enough` holds; the watch times out otherwise.
function told(path, query, enough) {
  return new Promise((resolve, reject) => {
    const events = [];
    let request;
    const each = (type, object) => {
      events.push(`${type} ${object.metadata.name}`);
      if (enough(events)) {
        request.then((controller) => controller.abort());
        resolve(events);
      }
    };
    const ended = (error) => reject(error ?? new Error(`the watch ended after ${events}`));
    request = new k8s.Watch(config).watch(path, { timeoutSeconds: 20, ...query }, each, ended);
  });
}

const map = (name, data) => ({ metadata: { name, labels: { suite: 'javascript' } }, data });

async function objects() {
  const made = await core.createNamespacedConfigMap({ namespace, body: map('a', { x: '1' }) });
  assert(made.metadata.uid && made.metadata.creationTimestamp instanceof Date);
  await refused(409, core.createNamespacedConfigMap({ namespace, body: map('a') }));
  await refused(404, core.readNamespacedConfigMap({ namespace, name: 'none' }));
  await refused(422, core.createNamespacedConfigMap({ namespace, body: map('No Name') }));

  const patch = (body, strategy) => core.patchNamespacedConfigMap({ namespace, name: 'a', body }, as(strategy));
  await patch({ data: { y: '2' } }, k8s.PatchStrategy.MergePatch);
  await patch({ data: { x: null } }, k8s.PatchStrategy.StrategicMergePatch);
  const patched = await patch([{ op: 'add', path: '/data/z', value: '3' }], k8s.PatchStrategy.JsonPatch);
  assert.deepEqual(patched.data, { y: '2', z: '3' });
  const replaced = await core.replaceNamespacedConfigMap({ namespace, name: 'a', body: { ...patched, data: { z: '4' } } });
  assert.deepEqual(replaced.data, { z: '4' });
  await refused(409, core.replaceNamespacedConfigMap({ namespace, name: 'a', body: patched }));

  // Any kind, by server-side apply.
  const any = k8s.KubernetesObjectApi.makeApiClient(config);
  const deployment = {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace },
    spec: {
      selector: { matchLabels: { app: 'web' } },
      template: { metadata: { labels: { app: 'web' } }, spec: { containers: [{ name: 'nginx', image: 'nginx:1.27' }] } },
    },
  };
  const apply = () => any.patch(deployment, undefined, undefined, 'suite', true, k8s.PatchStrategy.ServerSideApply);
  const applied = await apply();
  assert.equal(applied.spec.replicas, 1);
  assert.equal((await apply()).metadata.resourceVersion, applied.metadata.resourceVersion);

  for (let number = 0; number < 5; number += 1) {
    await core.createNamespacedConfigMap({ namespace, body: map(`page-${number}`) });
  }
  const names = [];
  let token;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, limit: 2, _continue: token, labelSelector: 'suite=javascript' });
    names.push(...page.items.map((item) => item.metadata.name));
    token = page.metadata._continue;
  } while (token);
  assert.deepEqual(names, ['a', 'page-0', 'page-1', 'page-2', 'page-3', 'page-4']);
  await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector: 'suite=javascript' });
}

// A Lease as a leader election writes it: times have six digits, and rewriting a read object changes
// nothing.
async function lease() {
  const spec = { holderIdentity: 'one', leaseDurationSeconds: 15, renewTime: new k8s.V1MicroTime() };
  const made = await leases.createNamespacedLease({ namespace, body: { metadata: { name: 'gate' }, spec } });
  const again = await leases.replaceNamespacedLease({ namespace, name: 'gate', body: made });
  assert.equal(again.metadata.resourceVersion, made.metadata.resourceVersion, 'nothing has changed');
  const body = { spec: { holderIdentity: 'two' } };
  const taken = await leases.patchNamespacedLease({ namespace, name: 'gate', body }, as(k8s.PatchStrategy.MergePatch));
  assert.equal(taken.spec.holderIdentity, 'two');
  await refused(409, leases.replaceNamespacedLease({ namespace, name: 'gate', body: made }));
  const { items } = await leases.listNamespacedLease({ namespace });
  assert.deepEqual(items.map((item) => item.metadata.name), ['gate']);
}

async function watching() {
  const { metadata } = await leases.listNamespacedLease({ namespace });
  const path = `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases`;
  const events = told(path, { resourceVersion: metadata.resourceVersion }, (events) => events.length === 3);
  await leases.createNamespacedLease({ namespace, body: { metadata: { name: 'watched' }, spec: {} } });
  const body = { spec: { holderIdentity: 'one' } };
  await leases.patchNamespacedLease({ namespace, name: 'watched', body }, as(k8s.PatchStrategy.MergePatch));
  await leases.deleteNamespacedLease({ namespace, name: 'watched' });
  assert.deepEqual(await events, ['ADDED watched', 'MODIFIED watched', 'DELETED watched']);
}

// Objects from the cloud on the node, and the refusal of writes to them.
async function held() {
  const { items } = await core.listConfigMapForAllNamespaces();
  assert.deepEqual(items.map((item) => item.metadata.name), ['settings']);
  const settings = await core.readNamespacedConfigMap({ namespace, name: 'settings' });
  assert.deepEqual(settings.data, { mode: 'fast' });
  const error = await refused(403, core.createNamespacedConfigMap({ namespace, body: map('a') }));
  assert.match(error.body.toString(), /change it on the cloud side/);
  await refused(403, core.listNamespacedSecret({ namespace }));
  await told('/api/v1/configmaps', {}, (events) => events.includes('ADDED settings'));
}

await (side === 'cloud' ? objects() : held());
await lease();
await watching();
console.log('ok');
