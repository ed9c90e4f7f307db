// Roll-outs: the progress of an object's version or of a rule, and the waves of a rule.

import { find, get, path, query } from './api.js';
import { curve } from './charts.js';
import { el, empty, fill, long, name, number, table, text, time } from './dom.js';
import { badge, byWord } from './states.js';
import { Waves } from './waves.js';

const EVERY = 2000;

/** Polls until the view ends. */
export function again(task, every) {
  let timer, ended = false;
  const turn = async () => {
    try { await task(); } catch (error) { if (error.code === 401) ended = true; }
    if (!ended) timer = setTimeout(turn, document.hidden ? every * 5 : every);
  };
  turn();
  return () => { ended = true; clearTimeout(timer); };
}

const place = rule => rule.kind === 'configuration' ? path('placements', 'configuration', rule.name)
  : path('placements', rule.namespace || '-', rule.name);

export const ruleName = rule => rule.kind === 'configuration' ? `configuration [[placement]] ${rule.name}`
  : `${rule.namespace ? `${rule.namespace}/` : ''}${rule.name}`;

/** Describes the roll-out of a rule in a list. */
const staged = ({ revision, open, waves, paused }) => text([revision === null ? 'no revision yet' : `revision ${number(revision)}: ${number(open)} of ${number(waves)} waves`,
  paused && `paused (${paused})`].filter(Boolean).join(', '));

/** Shows all rules. */
export function rollouts(main) {
  const body = el('div');
  fill(main, el('h1', {}, 'Roll-outs'), body);
  return again(async () => {
    const { items } = await get('rollouts');
    fill(body, items.length === 0 ? empty('No placement rules', el('p', {}, 'A Placement selects objects and nodes. An object that names its nodes has its own roll-out: find it in ', el('a', { href: '#/objects' }, 'Objects'), '.'))
      : table('Placement rules', ['Rule', 'Kind', '#Objects', '#Nodes', 'In force', 'Roll-out in waves'], items.map(rule => [
        el('a', { href: `#/${place(rule)}` }, name(ruleName(rule))), text(rule.kind), number(rule.objects), number(rule.nodes), rule.inForce ? 'yes' : 'no, see its status',
        rule.rollout ? staged(rule.rollout) : ''])));
  }, 5000);
}

/** Shows the roll-out of a rule: its waves, and the nodes that hold all of its objects. */
export function placement(main, namespace, named) {
  const resolve = async () => {
    const { items } = await get('rollouts');
    return items.find(one => one.name === named && (one.kind === 'configuration' ? 'configuration' : one.namespace || '-') === namespace);
  };
  const waves = new Waves(async () => (await resolve())?.rollout?.rule);
  const title = namespace === 'configuration' ? `configuration [[placement]] ${named}` : `${namespace === '-' ? '' : `${namespace}/`}${named}`;
  const ends = [show(main, 'Placement', async () => {
    const rule = await resolve();
    if (!rule) return null;
    return rule.kind === 'configuration' ? path('configured', rule.name) : path('placements', rule.uid);
  }, [el('h1', {}, 'Roll-out of ', name(title)), waves.acts], [waves.result, waves.body]), again(() => waves.look(), EVERY), () => waves.end()];
  return () => ends.forEach(end => end());
}

/** Shows the roll-out of an object. */
export function object(main, kind, namespace, named) {
  const space = namespace === '-' ? '' : namespace;
  return show(main, 'Object', async () => {
    const { items } = await get(`objects?${query({ kind, namespace: space, name: named, exact: '1' })}`);
    const found = items.find(one => one.namespace === space);
    return found ? path('objects', found.uid) : null;
  }, [el('p', { class: 'above' }, text(kind)), el('h1', {}, space && [name(space), el('span', { class: 'slash' }, '/')], name(named))]);
}

function show(main, what, resolve, head, before = []) {
  const body = el('div');
  let where = null;
  fill(main, el('header', { class: 'title' }, head), before, body);
  return again(async () => {
    where ??= await resolve();
    const seen = where && await find(`rollouts/${where}`);
    if (!seen) {
      where = null;
      return fill(body, empty(`${what} not found`, el('p', {}, 'It was deleted, is not in force, is placed on no node, or is a Secret; only the command line shows Secrets.')));
    }
    fill(body, drawn(seen));
  }, EVERY);
}

function drawn(seen) {
  const { desired, holding, behind, states, curve: points, stragglers } = seen;
  const done = desired ? Math.floor(holding / desired * 100) : 0;
  const counts = states.map((word, index) => [word, behind[index]]).filter(([, count]) => count > 0);
  const effect = seen.inEffect + seen.notInEffect;
  return [
    el('div', { class: 'sum' },
      el('p', { class: 'big' }, el('strong', {}, number(holding)), ` of ${number(desired)} nodes hold `,
        seen.object ? ['version ', name(seen.version)] : `all of ${number(seen.objects)} objects`),
      el('p', { class: 'small' }, seen.since && ['Changed ', time(seen.since), '. '],
        effect > 0 && `In effect on ${number(seen.inEffect)} of ${number(effect)} nodes that report it. `,
        desired === 0 ? 'No known node is selected.' : holding === desired ? 'Complete.' : `${number(desired - holding)} remaining.`)),
    el('progress', { max: Math.max(1, desired), value: holding, 'aria-label': `${done} % of the nodes` }),
    counts.length > 0 && el('ul', { class: 'badges' }, counts.map(([word, count]) => el('li', {}, badge(byWord(word)), ` ${number(count)}`))),
    curve({
      title: 'Nodes that hold it', at: points.at, height: 150, of: Math.max(1, ...points.desired), step: true,
      series: [{ label: 'holding', values: points.holding, kind: 'main' }, { label: 'desired', values: points.desired, kind: 'other' }],
    }),
    el('h2', {}, 'Nodes behind'),
    stragglers.length === 0 ? el('p', { class: 'none' }, 'None.')
      : table('Nodes that do not hold it', ['Node', 'Status', 'Age', 'Current', 'Message'], stragglers.map(one => [
        el('a', { href: `#/${path('nodes', one.node)}` }, name(one.node)), badge(byWord(one.why)), time(one.since, 'for'),
        one.object ? text(`missing: ${one.object}`) : one.held ? name(one.held) : one.why === 'offline' ? el('span', { class: 'none' }, 'unknown while offline') : 'none',
        long(one.message ?? '')])),
    desired - holding > stragglers.length && el('p', { class: 'none' }, 'Only the first 50 for each status are shown.'),
  ];
}
