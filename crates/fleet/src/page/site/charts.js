// Small charts: lines and stacked areas, each with a text for screen readers.

import { clock, el, number, svg } from './dom.js';
import { STATES } from './states.js';

const WIDTH = 600;

/** Rounds up to a round number. */
function round(value) {
  if (value <= 5) return Math.max(1, Math.ceil(value));
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map(one => one * step).find(one => one >= value);
}

function frame(title, height, at, top, show, children, legend) {
  const drawing = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'plot' },
    ...[0, 0.5, 1].map(part => svg('line', { x1: 0, x2: WIDTH, y1: height * part, y2: height * part, class: 'grid' })), ...children);
  const scale = el('div', { class: 'scale', 'aria-hidden': 'true' }, [1, 0.5, 0].map(part => el('span', {}, show(top * part))));
  const times = at.length > 1 && el('div', { class: 'times', 'aria-hidden': 'true' }, [at[0], at.at(-1)].map(one => el('span', {}, clock(one, at.at(-1) - at[0]))));
  return el('figure', { class: 'chart' }, el('figcaption', {}, title, legend), el('div', { class: 'canvas' }, scale, drawing), times);
}

const xs = at => {
  const [first, last] = [at[0], at.at(-1)];
  return at.map(one => last > first ? (one - first) / (last - first) * WIDTH : WIDTH);
};

/** Draws lines over time. `series` are `{ label, values, kind }`; `of` is the top of the scale, if given. */
export function curve({ title, at, series, height = 120, show = number, of = 0, step = false }) {
  if (at.length < 2) return el('figure', { class: 'chart' }, el('figcaption', {}, title), el('p', { class: 'none' }, 'Needs two samples.'));
  const top = of || round(Math.max(1, ...series.flatMap(one => one.values)));
  const x = xs(at);
  const y = value => height - Math.min(1, value / top) * (height - 3) - 1.5;
  const drawn = series.flatMap(({ values, kind }) => {
    const points = values.map((value, place) => step && place
      ? `H${x[place].toFixed(1)}V${y(value).toFixed(1)}` : `${place ? 'L' : 'M'}${x[place].toFixed(1)} ${y(value).toFixed(1)}`).join('');
    const line = svg('path', { d: points, class: `line ${kind}` });
    return kind === 'main' ? [svg('path', { d: `${points}V${height}H${x[0]}Z`, class: 'area' }), line] : [line];
  });
  const words = series.map(one => `${one.label} ${show(one.values.at(-1))} now, ${show(Math.max(...one.values))} maximum`).join('; ');
  const legend = series.length > 1 && el('span', { class: 'legend' }, series.map(one => el('span', { class: `key ${one.kind}` }, one.label)));
  const made = frame(title, height, at, top, show, drawn, legend);
  made.append(el('p', { class: 'unseen' }, words));
  return made;
}

/** Draws the nodes out of sync over time, stacked by state, the most urgent at the bottom. */
export function layers(title, at, counts, height = 96) {
  if (at.length < 2) return el('figure', { class: 'chart' }, el('figcaption', {}, title), el('p', { class: 'none' }, 'Sampled every ten seconds.'));
  const order = [4, 5, 3, 6, 2, 1];
  const totals = at.map((_, place) => order.reduce((sum, state) => sum + counts[state][place], 0));
  const top = round(Math.max(1, ...totals));
  const x = xs(at);
  let below = at.map(() => 0);
  const drawn = [];
  for (const state of order) {
    const above = below.map((sum, place) => sum + counts[state][place]);
    if (above.some((sum, place) => sum > below[place])) {
      const y = value => (height - value / top * height).toFixed(1);
      const up = above.map((value, place) => `${place ? 'L' : 'M'}${x[place].toFixed(1)} ${y(value)}`).join('');
      const down = below.map((value, place) => `L${x[place].toFixed(1)} ${y(value)}`).reverse().join('');
      drawn.push(svg('path', { d: `${up}${down}Z`, class: `layer ${STATES[state].key}` }));
    }
    below = above;
  }
  const made = frame(title, height, at, top, number, drawn);
  const words = order.filter(state => counts[state].at(-1)).map(state => `${counts[state].at(-1)} ${STATES[state].word}`).join(', ');
  made.append(el('p', { class: 'unseen' }, `Now: ${words || 'none'}`));
  return made;
}
