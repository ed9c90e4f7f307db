// Search for objects by kind, namespace and name.

import { find, get, path, query } from './api.js';
import { bytes, el, empty, fill, name, table, text } from './dom.js';

const KINDS = '/edgesync/v1/resources';

export const objectPlace = one => `#/${path('objects', one.kind, one.namespace || '-', one.name)}`;

export function objects(main, parameters) {
  let newest = 0, timer;
  const value = key => parameters.get(key) ?? '';
  const options = el('datalist', { id: 'kinds' });
  const input = (id, label, more = {}) => el('p', {}, el('label', { for: id }, label),
    el('input', { id, name: id, value: value(id), autocomplete: 'off', spellcheck: 'false', ...more }));
  const form = el('form', { class: 'search', role: 'search', onsubmit: event => { event.preventDefault(); look(); }, oninput: () => { clearTimeout(timer); timer = setTimeout(look, 250); } },
    input('kind', 'Kind', { list: 'kinds', placeholder: 'any' }), input('namespace', 'Namespace', { placeholder: 'any' }),
    input('name', 'Name contains', { type: 'search', placeholder: 'any' }), options);
  const found = el('div', { 'aria-live': 'polite' });
  fill(main, el('h1', {}, 'Objects'), form, found);

  async function look() {
    const fields = Object.fromEntries(new FormData(form));
    const asked = query(fields), mine = newest += 1;
    history.replaceState(null, '', asked ? `#/objects?${asked}` : '#/objects');
    const { items, more } = await get(`objects?${asked}`);
    if (mine !== newest) return;
    fill(found, items.length === 0 ? empty('No matching objects', el('p', {}, asked ? 'Objects placed on no node are not shown, except ConfigMaps.' : 'No objects are placed on nodes yet. ',
      !asked && [el('code', { class: 'command' }, 'edgesync-cloud apply -f manifest.yaml'), ' adds objects; a Placement or a label places them on nodes.']))
      : [table('Objects', ['Name', 'Namespace', 'Kind', 'Version', '#Size'], items.map(one => [
        el('a', { href: objectPlace(one) }, name(one.name)), name(one.namespace), text(one.kind), name(one.resourceVersion), one.bytes ? bytes(one.bytes) : ''])),
      more && el('p', { class: 'none' }, 'More objects match: narrow the search.')]);
  }

  look().catch(() => { /* the connection status shows it */ });
  find(KINDS).then(kinds => {
    const all = [...new Set((kinds ?? []).map(one => one.kind))].sort();
    options.replaceChildren(...all.map(kind => el('option', { value: kind })));
  }).catch(() => { /* the field accepts any kind */ });
  return () => clearTimeout(timer);
}
