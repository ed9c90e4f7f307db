// Overview of the fleet: nodes in sync, nodes out of sync, and since when.

import { find, get, path } from './api.js';
import { layers } from './charts.js';
import { command, el, empty, fill, name, number, span, table, time } from './dom.js';
import { fleet, follow, nodes } from './fleet.js';
import { Heatmap } from './heatmap.js';
import { badge, REMOVED, sign, STATES, URGENCY } from './states.js';

const ROWS = 100;
/** Padding of the map, as in the style sheet. */
const PAD = 12;
const LABELS_EVERY = 30_000, HISTORY_EVERY = 10_000;

export function overview(main, parameters, go) {
  const chosen = new Set((parameters.get('state') ?? '').split(',').filter(Boolean));
  let group = parameters.get('group') ?? '', search = parameters.get('q') ?? '', all = parameters.get('list') === 'all';
  let values = null, timers = [], ended = false;

  const sum = el('div', { class: 'sum' });
  const legend = el('div', { class: 'states', role: 'group', 'aria-label': 'Show only nodes that are' });
  const groups = el('select', { id: 'group', onchange: () => { group = groups.value; keep(); regroup(); } }, el('option', { value: '' }, 'none'));
  const field = el('input', {
    id: 'search', type: 'search', placeholder: 'Node name', value: search, autocomplete: 'off', spellcheck: 'false',
    oninput: () => { search = field.value.trim(); keep(); map.draw(); list(); },
  });
  const canvas = el('canvas', { 'aria-hidden': 'true' });
  const tip = el('div', { class: 'tip', hidden: true });
  const announcement = el('p', { class: 'unseen', 'aria-live': 'polite' });
  const box = el('div', {
    class: 'map', tabindex: 0, role: 'application', 'aria-label': 'Map of all nodes. Arrow keys move between nodes, Enter opens one. The table below has the same nodes.',
    onkeydown: press, onpointermove: hover, onpointerleave: () => { tip.hidden = true; },
    onclick: event => { const place = under(event); if (place >= 0) go(`#/${path('nodes', map.names[place])}`); },
    onblur: () => { map.choose(-1); tip.hidden = true; },
  }, canvas, tip);
  const hour = el('section', { class: 'hour', 'aria-label': 'The last hour' });
  const listed = el('section', { class: 'listed' });
  const tools = el('div', { class: 'tools' }, el('p', {}, el('label', { for: 'search' }, 'Find'), field), el('p', {}, el('label', { for: 'group' }, 'Group by'), groups));
  const body = el('div', {}, legend, tools, box, announcement, hour, listed);
  fill(main, el('h1', { class: 'unseen' }, 'Overview'), sum, body);

  const stateOf = node => nodes.get(node)?.[1] ?? REMOVED;
  const fits = (node, state) => (!chosen.size || chosen.has(STATES[state].key)) && (!search || node.includes(search));
  const map = new Heatmap(canvas, stateOf, fits);

  function keep() {
    const kept = new URLSearchParams();
    if (chosen.size) kept.set('state', [...chosen].join(','));
    if (group) kept.set('group', group);
    if (search) kept.set('q', search);
    if (all) kept.set('list', 'all');
    history.replaceState(null, '', kept.size ? `#/?${kept}` : '#/');
  }

  function count() {
    const counts = fleet.counts, total = counts.slice(0, REMOVED).reduce((one, other) => one + other, 0);
    const inSync = counts[0] ?? 0;
    const problems = STATES.filter(state => state.problem).reduce((one, state) => one + (counts[state.place] ?? 0), 0);
    fill(sum, el('p', { class: 'big' }, el('strong', {}, number(inSync)), ` of ${number(total)} nodes in sync`),
      el('p', { class: 'small' }, problems ? `${number(problems)} ${problems === 1 ? 'needs' : 'need'} attention. ` : 'None needs attention. ',
        `${number(fleet.held)} of ${number(fleet.desired)} objects held.`));
    const shown = STATES.filter(state => (counts[state.place] ?? 0) > 0 || state.place < REMOVED);
    fill(legend, shown.map(state => el('button', {
      type: 'button', id: `state-${state.key}`, class: `state${counts[state.place] ? '' : ' zero'}`, title: `A node that ${state.about}`, 'aria-pressed': String(chosen.has(state.key)),
      onclick: () => {
        if (!chosen.delete(state.key)) chosen.add(state.key);
        keep(); count(); map.draw(); list();
      },
    }, sign(state), el('span', {}, state.word), el('b', {}, number(counts[state.place])))));
  }

  function grouped() {
    const names = [...nodes.keys()].filter(node => nodes.get(node)[1] !== REMOVED).sort();
    if (!group || !values) return [['', names]];
    const of = new Map(Object.entries(values).flatMap(([value, some]) => some.map(node => [node, value])));
    const parts = new Map();
    for (const node of names) {
      const value = of.get(node) ?? '';
      if (!parts.has(value)) parts.set(value, []);
      parts.get(value).push(node);
    }
    return [...parts].sort(([one], [other]) => (one === '') - (other === '') || one.localeCompare(other))
      .map(([value, some]) => [value || 'no label', some]);
  }

  function lay() {
    const isEmpty = fleet.revision > 0 && nodes.size === 0;
    body.hidden = isEmpty;
    sum.hidden = isEmpty;
    main.querySelector('.empty')?.remove();
    if (isEmpty) return main.append(welcome());
    map.lay(grouped(), (box.clientWidth || 324) - 2 * PAD, Math.max(220, innerHeight * 0.55));
  }

  async function regroup() {
    values = group ? (await find(`labels?key=${encodeURIComponent(group)}`))?.values ?? {} : null;
    if (!ended) lay();
  }

  async function labels() {
    const { keys } = await get('labels');
    const options = [...keys.map(one => one.key), ...(group && !keys.some(one => one.key === group) ? [group] : [])];
    groups.replaceChildren(el('option', { value: '' }, 'none'), ...options.map(key => el('option', { value: key }, key)));
    groups.value = group;
    if (group) await regroup();
  }

  async function past() {
    const seen = await get('summary/history');
    if (!ended) fill(hour, layers('Nodes out of sync, last hour', seen.at.map(second => second * 1000), seen.counts));
  }

  function list() {
    const matching = [...nodes.values()].filter(row => (all || chosen.size || search ? true : STATES[row[1]].problem) && fits(row[0], row[1]));
    matching.sort((one, other) => URGENCY.indexOf(one[1]) - URGENCY.indexOf(other[1]) || one[2] - other[2] || (one[0] < other[0] ? -1 : 1));
    const some = matching.slice(0, ROWS);
    const title = chosen.size || search ? 'Matching nodes' : all ? 'All nodes' : 'Nodes that need attention';
    fill(listed,
      el('div', { class: 'head' }, el('h2', {}, title, el('span', { class: 'count' }, number(matching.length))),
        !chosen.size && !search && el('button', { type: 'button', id: 'all', onclick: () => { all = !all; keep(); list(); } }, all ? 'Show only nodes that need attention' : 'Show all')),
      some.length === 0 ? el('p', { class: 'none' }, chosen.size || search ? 'No matching nodes.' : 'No problems.')
        : table(title, ['Node', 'Status', 'Since', '#Objects', '#Pending', '#Problems'], some.map(([node, state, since, held, desired, pending, problems]) => [
          el('a', { href: `#/${path('nodes', node)}` }, name(node)), badge(STATES[state]), time(since * 1000),
          held === desired ? number(held) : `${number(held)} of ${number(desired)}`, number(pending), number(problems)])),
      matching.length > ROWS && el('p', { class: 'none' }, `Only the first ${ROWS} are shown.`));
  }

  function point(place, x, y) {
    const row = nodes.get(map.names[place]);
    if (!row) return;
    const [node, state, since, held, desired] = row, { word } = STATES[state];
    const ago = span(Date.now() / 1000 - since);
    fill(tip, el('strong', {}, name(node)), badge(STATES[state]), el('span', {}, `for ${ago}; ${number(held)} of ${number(desired)} objects`));
    tip.hidden = false;
    tip.style.left = `${Math.min(x + PAD, Math.max(0, box.clientWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.min(y + PAD, Math.max(0, box.scrollHeight - tip.offsetHeight - 8))}px`;
    return `${node}, ${word} for ${ago}, ${held} of ${desired} objects`;
  }

  function under(event) {
    const edge = canvas.getBoundingClientRect();
    return map.at(event.clientX - edge.left, event.clientY - edge.top);
  }

  function hover(event) {
    const place = under(event);
    box.classList.toggle('over', place >= 0);
    if (place < 0) tip.hidden = true;
    else point(place, map.x[place] + map.size + 6, map.y[place] + map.size + 6);
  }

  function press(event) {
    if (event.key === 'Enter' && map.chosen >= 0) return go(`#/${path('nodes', map.names[map.chosen])}`);
    if (!event.key.startsWith('Arrow') && !['Home', 'End'].includes(event.key)) return;
    event.preventDefault();
    const place = map.next(event.key);
    map.choose(place);
    if (place < 0) return;
    announcement.textContent = point(place, map.x[place] + map.size + 6, map.y[place] + map.size + 6);
    canvas.scrollIntoView({ block: 'nearest' });
  }

  const quiet = task => () => task().catch(() => { /* the connection status shows it */ });
  let known = 0, listing = 0, asking = 0;
  const end = follow(changed => {
    count();
    if (changed === null || known !== nodes.size) lay();
    else map.change(changed);
    if (known !== nodes.size && !asking) asking = setTimeout(() => { asking = 0; quiet(labels)(); }, 1500);
    known = nodes.size;
    if (!listing) listing = setTimeout(() => { listing = 0; list(); }, 500);
  });
  const sized = new ResizeObserver(() => { if (box.clientWidth && box.clientWidth - 2 * PAD !== map.width) lay(); });
  sized.observe(box);
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const repaint = () => map.draw();
  dark.addEventListener('change', repaint);

  count(); lay(); list();
  quiet(labels)(); quiet(past)();
  timers = [setInterval(quiet(labels), LABELS_EVERY), setInterval(quiet(past), HISTORY_EVERY)];
  return () => {
    ended = true;
    end();
    timers.forEach(clearInterval);
    clearTimeout(listing);
    clearTimeout(asking);
    sized.disconnect();
    dark.removeEventListener('change', repaint);
  };
}

function welcome() {
  return empty('No node has joined yet',
    el('p', {}, 'Create a token here, and join with it on the device:'),
    el('ol', {}, el('li', {}, command('edgesync-cloud token create --node edge-1')),
      el('li', {}, command('edgesync join --cloud https:' + '//HOST:10002 --token -')),
      el('li', {}, command('edgesync run'))),
    el('p', { class: 'none' }, 'The node appears here when it connects. No reload is needed.'));
}
