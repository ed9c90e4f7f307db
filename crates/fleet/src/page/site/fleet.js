// State of all nodes, from one watch stream shared by all views.

import { lines, Refused } from './api.js';

const SILENCE = 25_000;
const LONGEST = 15_000;

/** Nodes by name: `[name, state, since, held, desired, pending, problems]`. */
export const nodes = new Map();
export const fleet = { revision: 0, start: '', counts: [], held: 0, desired: 0, at: 0, live: 'connecting', why: null };

const listeners = new Set();

/** Calls `listen` with the changed names, or null if all may have changed. Returns a function that unsubscribes. */
export function follow(listen) {
  listeners.add(listen);
  return () => listeners.delete(listen);
}

const notify = changed => listeners.forEach(listen => listen(changed));

function take(line) {
  restartTimeout();
  if (line.type === 'ALIVE') {
    fleet.at = line.at;
    return notify([]);
  }
  const isAll = line.type === 'SNAPSHOT';
  if (isAll) nodes.clear();
  for (const row of line.nodes) nodes.set(row[0], row);
  for (const gone of line.gone) nodes.delete(gone);
  const { revision, start, counts, held, desired, at } = line;
  Object.assign(fleet, { revision, start, counts, held, desired, at, live: 'live', why: null });
  notify(isAll || line.gone.length ? null : line.nodes.map(row => row[0]));
}

let silence, cut;
function restartTimeout() {
  clearTimeout(silence);
  silence = setTimeout(() => cut?.abort(), SILENCE);
}

/** Watches the fleet while the page is open, and reconnects with backoff. */
export async function run() {
  let pause = 500;
  for (;;) {
    cut = new AbortController();
    restartTimeout();
    const began = Date.now();
    try {
      await lines(`summary?watch=1&start=${fleet.start}&revision=${fleet.revision}`, take, cut.signal);
      fleet.why = null;
    } catch (error) {
      fleet.why = error instanceof Refused ? error : null;
    }
    clearTimeout(silence);
    fleet.live = fleet.why && [401, 403].includes(fleet.why.code) ? 'refused' : 'lost';
    notify([]);
    pause = Date.now() - began > 10_000 ? 500 : Math.min(pause * 2, LONGEST);
    await new Promise(go => setTimeout(go, pause * (0.75 + Math.random() / 2)));
  }
}
