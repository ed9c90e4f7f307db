// Builds elements. Values from the server become text, never markup.

/** Creates an element with attributes, listeners (`onclick`) and children: elements or texts. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = document.documentElement.namespaceURI.replace('1999/xhtml', '2000/svg');

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Characters that reorder text, are invisible, or break the line: shown as their code points.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const shown = character => `\u27e8U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}\u27e9`;

/** Replaces invisible characters with their code points. */
export const plain = value => String(value ?? '').replace(HIDDEN, shown);

/** Creates an element for foreign text, in its own direction. */
export const text = value => el('bdi', {}, plain(value));

/** Creates an element for a foreign name, in the font of names. */
export const name = value => el('bdi', { class: 'name' }, plain(value));

/** Creates an element for foreign text of any length; long text scrolls. */
export const long = value => plain(value).length > 300
  ? el('div', { class: 'long', tabindex: 0, role: 'region', 'aria-label': 'Long text' }, text(value))
  : text(value);

const LOCAL = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: 'short' });
const NUMBER = new Intl.NumberFormat('en');

export const number = value => NUMBER.format(value ?? 0);
const SECONDS = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' });

/** Formats the time of day, with seconds if the whole range is short. */
export const clock = (milliseconds, whole = Infinity) => (whole < 600_000 ? SECONDS : CLOCK).format(milliseconds);

/** Formats a duration: `3 min`, `2 h`, `5 d`. */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

/** Creates a time in the reader's zone, with UTC as its title. */
export function time(value, how = 'ago') {
  const at = typeof value === 'number' ? value : Date.parse(value);
  if (!value || Number.isNaN(at)) return el('span', { class: 'none' }, 'unknown');
  const iso = new Date(at).toISOString();
  const made = el('time', { datetime: iso, title: `${LOCAL.format(at)} (${iso.replace('T', ' ').slice(0, 19)} UTC)` });
  const update = () => {
    const ago = (Date.now() - at) / 1000;
    made.textContent = how === 'ago' ? `${span(ago)} ago` : how === 'for' ? span(ago) : LOCAL.format(at);
  };
  made.update = how === 'at' ? undefined : update;
  update();
  return made;
}

/** Formats a size: `12 KB`. */
export function bytes(value) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let amount = value ?? 0, unit = 0;
  while (amount >= 1000 && unit < units.length - 1) { amount /= 1000; unit += 1; }
  return `${amount >= 100 || unit === 0 ? Math.round(amount) : amount.toFixed(1)} ${units[unit]}`;
}

/** Creates a table with a caption for screen readers; rows are lists of cells. */
export function table(caption, heads, rows) {
  const head = el('tr', {}, heads.map(label => el('th', { scope: 'col', class: label.startsWith('#') && 'number' }, label.replace('#', ''))));
  const cells = row => row.map((cell, place) => place === 0
    ? el('th', { scope: 'row' }, cell)
    : el('td', { class: heads[place].startsWith('#') && 'number', 'data-label': heads[place].replace('#', '') }, cell));
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    el('table', {}, el('caption', { class: 'unseen' }, caption), el('thead', {}, head),
      el('tbody', {}, rows.map(row => el('tr', {}, cells(row))))));
}

/** Creates the placeholder of an empty view, with the next steps. */
export const empty = (title, ...more) => el('div', { class: 'empty' }, el('h2', {}, title), ...more);

/** Creates a command that can be copied. */
export const command = line => el('code', { class: 'command' }, line);

/** Replaces the children of an element, and keeps focus and scroll positions. */
export function fill(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const key = focused && (focused.id || focused.getAttribute('href') || focused.getAttribute('aria-label'));
  const scrolled = [...parent.querySelectorAll('.scroll')].map(one => one.scrollTop);
  parent.replaceChildren(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  [...parent.querySelectorAll('.scroll')].forEach((one, place) => { one.scrollTop = scrolled[place] ?? 0; });
  if (!key) return;
  for (const one of parent.querySelectorAll('a, button, input, select, [tabindex]')) {
    if ([one.id, one.getAttribute('href'), one.getAttribute('aria-label')].includes(key)) return one.focus({ preventScroll: true });
  }
}
