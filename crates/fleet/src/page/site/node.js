// A node: its objects, conditions and Events, and the last hour.

import { act, find, get, mayAct, path, query } from './api.js';
import { curve } from './charts.js';
import { bytes, command, el, empty, fill, long, name, number, table, text, time } from './dom.js';
import { fleet, follow, nodes } from './fleet.js';
import { objectPlace } from './objects.js';
import { again } from './rollout.js';
import { badge, byWord, STATES } from './states.js';

const ACTIONS = {
  'confirm-deletions': ['Confirm deletions', seen => `Confirm ${number(seen.heldBack)} deletions on ${seen.name}?`,
    'They followed a change of the store of the cloud side, so they are held back. Once confirmed, the node deletes these objects.'],
  remove: ['Remove', seen => `Remove ${seen.name} from the fleet?`, 'Its records are deleted, and nothing more is sent to it. It keeps its objects. "Admit" readmits it.'],
  admit: ['Admit', seen => `Readmit ${seen.name}?`, 'It is synced with its desired objects.'],
};

export function node(main, named) {
  const where = path('nodes', named);
  const state = el('span'), facts = el('dl', { class: 'facts' }), acts = el('div', { class: 'acts' }), result = el('p', { role: 'status' });
  const problems = el('section'), charts = el('section', { class: 'charts', 'aria-label': 'The last hour' });
  const conditions = el('section'), events = el('section'), held = el('section');
  const body = el('div', {}, problems, charts, conditions, el('section', {}, el('h2', {}, 'Objects'), objectForm(), held), events);
  fill(main, el('header', { class: 'title' }, el('p', { class: 'above' }, 'Node'), el('h1', {}, name(named)), state, acts), result, facts, body);
  let search = '', seen = null, traffic = null;

  function objectForm() {
    let timer;
    const field = el('input', { id: 'of-node', type: 'search', placeholder: 'Name contains', autocomplete: 'off', spellcheck: 'false',
      oninput: () => { clearTimeout(timer); timer = setTimeout(() => { search = field.value.trim(); objects().catch(() => {}); }, 250); } });
    return el('p', { class: 'tools' }, el('label', { for: 'of-node' }, 'Find'), field);
  }

  const waiting = ({ urgency, size, budget }) => [[budget, 'for its budget'], [urgency, 'for their urgency'], [size, 'for their size']]
    .filter(([count]) => count > 0).map(([count, why]) => `${number(count)} ${why}`).join(', ');
  const row = () => nodes.get(named);
  const fact = (label, ...value) => el('div', { class: 'fact' }, el('dt', {}, label), el('dd', {}, ...value));

  function head() {
    const shown = row(), word = shown ? STATES[shown[1]] : seen && byWord(seen.state);
    fill(state, word ? [badge(word), shown && el('span', { class: 'since' }, 'for ', time(shown[2] * 1000, 'for'))] : '');
  }

  async function look() {
    const found = await find(where);
    body.hidden = !found || found.state === 'removed';
    facts.hidden = !found;
    main.querySelector('.empty')?.remove();
    if (!found) {
      return main.append(empty('Node not found', el('p', {}, 'No node with this name has connected, or it was forgotten. A device joins with a token:'),
        command(`edgesync-cloud token create --node ${named}`)));
    }
    seen = found;
    head();
    await actions();
    if (found.state === 'removed') return fill(facts, fact('Removed', time(found.removed)), fact('Connected', found.connected ? 'yes, notified' : 'no'));
    fill(facts,
      fact('Objects held', el('b', {}, number(found.objects)), ` of ${number(found.desired)}`),
      fact('Pending', number(found.pending)),
      fact('Rejected', number(found.rejected)),
      fact('Held back', number(found.heldBack)),
      found.waitingForLink && fact('Waiting for the link', text(waiting(found.waitingForLink))),
      found.filesInEffect !== null && fact('In effect', number(found.filesInEffect), ` of ${number(found.filesInEffect + found.filesNotInEffect)}`),
      fact('Lease', found.ready === null ? 'unknown' : found.ready ? 'valid' : 'expired', found.lastRenewal && [', renewed ', time(found.lastRenewal)]),
      fact('Last report', time(found.lastReport)),
      fact('Report latency', found.roundTripMilliseconds === null ? 'unknown' : `${Math.max(1, Math.round(found.roundTripMilliseconds))} ms`),
      fact('Sent / received', `${bytes(found.bytesSent)} / ${bytes(found.bytesReceived)}`),
      traffic && fact('Traffic', text(traffic)),
      fact('Agent version', text(found.agentVersion ?? 'unknown')));
    const place = one => one.object ? `${one.object.kind} ${one.object.namespace ?? ''}/${one.object.name}` : one.uid;
    const [refused, back, idle] = [found.refusedObjects, found.heldBackObjects, found.objectsNotInEffect]
      .map(some => (some ?? []).sort((one, other) => place(one).localeCompare(place(other), undefined, { numeric: true })));
    const link = one => one.object ? el('a', { href: objectPlace(one.object) }, name(`${one.object.kind} ${one.object.namespace ? `${one.object.namespace}/` : ''}${one.object.name}`)) : name(one.uid);
    fill(problems,
      refused.length > 0 && [el('h2', {}, 'Rejected'), table('Rejected objects', ['Object', 'Version', 'Reason', 'Message'],
        refused.map(one => [link(one), name(one.resourceVersion), text(one.reason), long(one.message)]))],
      back.length > 0 && [el('h2', {}, 'Held back'), el('p', {}, 'These objects are deleted on the node once that is confirmed.'),
        table('Held-back removals', ['Object'], back.slice(0, 200).map(one => [link(one)])), back.length > 200 && el('p', { class: 'none' }, 'More are not shown.')],
      idle.length > 0 && [el('h2', {}, 'Not in effect'), table('Objects not in effect', ['Object', 'State', 'Desired', 'In effect', 'Rule', 'Message', 'Since'],
        idle.map(one => [link(one), text(one.state), name(one.desired), name(one.inEffect ?? 'none'), name(one.rule), long(one.message), time(one.since)]))]);
  }

  async function actions() {
    const can = [seen.state === 'removed' ? 'admit' : 'remove', seen.heldBack > 0 && 'confirm-deletions'].filter(Boolean);
    fill(acts, await mayAct('admin') ? can.map(what => el('button', { type: 'button', id: what, onclick: () => confirm(what) }, ACTIONS[what][0])) : '');
  }

  function confirm(what) {
    const [label, question, about] = ACTIONS[what];
    const dialog = el('dialog', { 'aria-labelledby': 'question', onclose: () => dialog.remove() },
      el('h2', { id: 'question' }, text(question(seen))), el('p', {}, about),
      el('div', { class: 'acts' }, el('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'),
        el('button', { type: 'button', class: 'strong', onclick: async () => {
          dialog.close();
          try {
            await act(`${where}/${what}`);
            result.textContent = `Done: ${label.toLowerCase()}.`;
          } catch (error) {
            fill(result, text(`Failed: ${error.message}`));
          }
          look().catch(() => {});
        } }, label)));
    document.body.append(dialog);
    dialog.showModal();
  }

  async function objects() {
    const found = await find(`${where}/objects?${query({ name: search })}`);
    fill(held, !found ? '' : found.items.length === 0 ? el('p', { class: 'none' }, search ? 'No matching objects.' : 'No objects are placed on this node.')
      : [table('Objects of this node', ['Name', 'Namespace', 'Kind', 'Desired', 'Current'], found.items.map(one => [
        el('a', { href: objectPlace(one) }, name(one.name)), name(one.namespace), text(one.kind), name(one.resourceVersion),
        one.held === null ? el('span', { class: 'none' }, found.known ? '' : 'unknown') : one.held === one.resourceVersion ? 'up to date'
          : [one.held ? name(one.held) : 'none', one.reason && [' (', text(one.reason), ')']]])),
      found.more && el('p', { class: 'none' }, 'More are not shown.')]);
  }

  async function past() {
    const found = await find(`${where}/history`);
    if (!found) return fill(charts);
    const at = found.latencyMilliseconds.map((_, index, all) => (found.last - (all.length - 1 - index) * found.seconds) * 1000);
    fill(charts,
      curve({ title: 'Report latency', at, series: [{ label: 'milliseconds', values: found.latencyMilliseconds, kind: 'main' }], height: 70, show: value => `${Math.round(value)} ms` }),
      curve({ title: 'Sent per minute', at, series: [{ label: 'bytes', values: found.bytesSent, kind: 'main' }], height: 70, show: bytes }),
      curve({ title: 'Received per minute', at, series: [{ label: 'bytes', values: found.bytesReceived, kind: 'main' }], height: 70, show: bytes }));
  }

  // Conditions and Events come from the Kubernetes API: with a cluster as the store, they are in the cluster.
  async function kubernetes() {
    const found = await find(`/api/v1/nodes/${encodeURIComponent(named)}`);
    const all = found?.status?.conditions ?? [];
    const labels = Object.entries(found?.metadata?.labels ?? {});
    traffic = all.find(one => one.type === 'edgesync.io/TrafficBudgetSpent')?.message;
    fill(conditions, !found ? [el('h2', {}, 'Conditions and Events'), el('p', { class: 'none' }, 'Stored in the cluster: ', command(`kubectl describe node ${named}`))]
      : [el('h2', {}, 'Conditions'), all.length === 0 ? el('p', { class: 'none' }, 'None reported.')
        : table('Conditions', ['Type', 'Status', 'Reason', 'Message', 'Since'], all.map(one => [text(one.type), text(one.status), text(one.reason), long(one.message), time(one.lastTransitionTime)])),
      labels.length > 0 && el('details', {}, el('summary', {}, `${labels.length} labels`), el('ul', { class: 'labels' }, labels.map(([key, value]) => el('li', {}, name(`${key}=${value}`)))))]);
    const list = found && await find(`/apis/events.k8s.io/v1/events?limit=200&fieldSelector=${encodeURIComponent(`regarding.kind=Node,regarding.name=${named}`)}`);
    const items = (list?.items ?? []).map(one => ({ ...one, last: one.series?.lastObservedTime ?? one.deprecatedLastTimestamp ?? one.eventTime ?? one.metadata.creationTimestamp }));
    items.sort((one, other) => Date.parse(other.last) - Date.parse(one.last));
    fill(events, found && [el('h2', {}, 'Events'), items.length === 0 ? el('p', { class: 'none' }, 'None in the last hour.')
      : table('Events', ['Last seen', 'Type', 'Reason', 'Message'], items.slice(0, 50).map(one => [time(one.last), text(one.type), text(one.reason), long(one.note)]))]);
  }

  const ends = [again(look, 2000), again(objects, 5000), again(past, 30_000), again(kubernetes, 5000), follow(changed => {
    if (fleet.live === 'live' && (changed === null || changed.includes(named))) head();
  })];
  return () => ends.forEach(end => end());
}
