// The page: routes, and the connection status.

import { takeKey } from './api.js';
import { command, el, empty, fill, clock } from './dom.js';
import { fleet, follow, run } from './fleet.js';
import { node } from './node.js';
import { objects } from './objects.js';
import { overview } from './overview.js';
import { object, placement, rollouts } from './rollout.js';

const main = document.getElementById('main');
const live = document.getElementById('live');
let end = null;
/** Whether the view is the request to sign in. */
let asks = false;

const go = address => { location.hash = address; };

function view([first, ...rest], parameters) {
  if (first === '') return ['Overview', () => overview(main, parameters, go)];
  if (first === 'nodes' && rest.length === 1) return [rest[0], () => node(main, rest[0])];
  if (first === 'rollouts' && rest.length === 0) return ['Roll-outs', () => rollouts(main)];
  if (first === 'placements' && rest.length === 2) return [rest[1], () => placement(main, ...rest)];
  if (first === 'objects' && rest.length === 0) return ['Objects', () => objects(main, parameters)];
  if (first === 'objects' && rest.length === 3) return [rest[2], () => object(main, ...rest)];
  return ['Not found', () => { fill(main, empty('Page not found', el('p', {}, el('a', { href: '#/' }, 'Overview')))); }];
}

function decoded(word) {
  try { return decodeURIComponent(word); } catch { return word; }
}

function open(moved) {
  if (takeKey()) return location.reload();
  const [where, asked] = location.hash.replace(/^#\/?/, '').split('?');
  const words = where.split('/').map(decoded);
  end?.();
  asks = false;
  main.replaceChildren();
  const [title, show] = view(words, new URLSearchParams(asked));
  document.title = `${title} \u00b7 edgesync`;
  end = show() ?? null;
  const section = { nodes: '', placements: 'rollouts' }[words[0]] ?? words[0];
  for (const link of document.querySelectorAll('nav a')) {
    if (link.getAttribute('href') === `#/${section}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (moved) main.focus({ preventScroll: true });
  if (moved) scrollTo(0, 0);
}

/** Shows the connection status. */
function showConnection() {
  const known = fleet.at ? `, data from ${clock(fleet.at)}` : '';
  const [what, words] = {
    live: ['live', 'Live'],
    connecting: ['wait', 'Connecting'],
    lost: ['lost', `Disconnected${known}, retrying`],
    refused: ['lost', 'Unauthorized'],
  }[fleet.live];
  if (live.className !== what || live.lastChild?.textContent !== words) {
    live.className = what;
    live.replaceChildren(el('i', { 'aria-hidden': 'true' }), el('span', {}, words));
  }
  if (fleet.live === 'refused' && !asks) {
    end?.();
    end = null;
    asks = true;
    const how = location.protocol === 'https:' ? ['This browser has presented no operator certificate. ', 'Create one, and import it:']
      : ['This page needs a key, which is valid for twelve hours. ', 'On the machine of the cloud side, run:'];
    fill(main, el('div', { class: 'empty' }, el('h1', {}, 'Sign in'), el('p', {}, how),
      command(location.protocol === 'https:' ? 'edgesync-cloud kubeconfig' : 'edgesync-cloud page'),
      el('p', { class: 'none' }, 'Open the address that it prints.')));
  } else if (fleet.live === 'live' && asks) {
    open(false);
  }
}

takeKey();
open(false);
addEventListener('hashchange', () => open(true));
follow(showConnection);
showConnection();
setInterval(() => document.querySelectorAll('time').forEach(one => one.update?.()), 1000);
run();
