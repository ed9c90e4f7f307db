// The waves of a rule's roll-out: their nodes, the revisions, and the commands of operators.

import { act, find, mayAct, path } from './api.js';
import { el, fill, long, name, number, svg, table, text, time } from './dom.js';
import { sign } from './states.js';

/** Interval between two look-ups of the rule, in milliseconds. */
const RESOLVE_EVERY = 5000;

/** States of the nodes of a wave: word, CSS class, and count. */
const COUNTS = [
  ['good', 'sync', wave => wave.good + wave.heldOnly],
  ['pending', 'syncing', wave => wave.pending],
  ['waiting', 'held', wave => wave.waiting],
  ['failed', 'reject', wave => wave.failed],
  ['away', 'away', wave => wave.away],
];

/** Consequences of a resumption by the reason of the pause. */
const RESUMED = {
  Command: 'Waves open again by themselves, and new revisions begin.',
  FailuresExceeded: 'The last open wave has to prove itself again. The roll-out pauses again if a wave still has too many failures.',
  WavesChanged: 'The newest revision begins with the first wave.',
};

/** The newest revision above the stable one, if there is one. */
const moving = seen => seen.revisions.length > 1 ? seen.revisions.at(-1) : null;

/** Creates the cell of a message, which stays wide enough to read. */
const message = one => el('div', { class: 'message' }, long(one.message));

const waveName = (seen, place) => [`wave ${place + 1} (`, describe(seen.waves[place]), ')'];

/** Commands by their action: label, whether the status permits it, question, consequence, and the request, which names what was seen. */
const COMMANDS = {
  pause: ['Pause', seen => seen.paused === null, seen => ['Pause the roll-out of ', name(seen.rule), '?'],
    seen => {
      const top = moving(seen);
      return [top && `Revision ${number(top.number)} stays open for ${number(top.open)} of ${number(seen.waves.length)} waves. `,
        'Until "Resume", no wave opens, no revision begins, and none is undone by itself.'];
    },
    () => ({})],
  resume: ['Resume', seen => seen.paused !== null, seen => ['Resume the roll-out of ', name(seen.rule), '?'],
    seen => {
      const top = moving(seen);
      return [top && `Revision ${number(top.number)} is open for ${number(top.open)} of ${number(seen.waves.length)} waves. `, RESUMED[seen.paused]];
    },
    seen => ({ reason: seen.paused })],
  promote: ['Promote', seen => moving(seen) !== null, seen => [`Promote revision ${number(moving(seen).number)} of `, name(seen.rule), '?'],
    seen => {
      const top = moving(seen);
      const accepted = top.open > 0 && `The ${top.open === 1 ? 'open wave is' : `${number(top.open)} open waves are`} accepted without further judgement. `;
      return top.open < seen.waves.length ? [accepted, 'The revision opens for ', waveName(seen, top.open), '.']
        : [accepted, 'The revision becomes the stable one, for all nodes, and cannot be undone any more.'];
    },
    seen => ({ revision: moving(seen).number, open: moving(seen).open })],
  undo: ['Undo', seen => moving(seen) !== null, seen => [`Undo revision ${number(moving(seen).number)} of `, name(seen.rule), '?'],
    seen => [`Its nodes return to revision ${number(seen.revisions.at(-2).number)}. What it has changed is rejected: later revisions do not have these versions until the objects change again.`],
    seen => ({ revision: moving(seen).number })],
};

function describe(wave) {
  const parts = [wave.selector && name(wave.selector), wave.percent !== null && `${number(wave.percent)} % of all nodes`].filter(Boolean);
  return parts.length ? parts.flatMap((part, place) => place ? [', ', part] : [part]) : 'all other nodes';
}

/** The view of a roll-out in waves; empty for a rule without one. `resolve` returns the name of the rule in requests. */
export class Waves {
  constructor(resolve) {
    this.resolve = resolve;
    this.resolved = -Infinity;
    this.drawn = null;
    this.acts = el('div', { class: 'acts' });
    this.result = el('p', { role: 'status' });
    this.body = el('div');
    this.unfocused = null;
  }

  async look() {
    if (performance.now() - this.resolved > RESOLVE_EVERY) {
      this.rule = await this.resolve();
      this.resolved = performance.now();
    }
    await this.show(this.rule ? await find(`rollouts/rules/${encodeURIComponent(this.rule)}`) : null);
  }

  /** Draws a status, unless it is shown already: so a selected text stays selected. */
  async show(seen) {
    const same = JSON.stringify(seen);
    if (same === this.drawn) return;
    const mayMove = seen?.valid && await mayAct('edit', 'admin');
    fill(this.body, seen ? drawn(seen) : '');
    fill(this.acts, mayMove ? Object.entries(COMMANDS).filter(([, [, permits]]) => permits(seen))
      .map(([action, [label]]) => el('button', { type: 'button', id: `rollout-${action}`, onclick: () => this.ask(action, seen) }, label)) : '');
    this.drawn = same;
    if (this.unfocused && [document.body, document.getElementById('main')].includes(document.activeElement)) this.focus(this.unfocused);
  }

  /** Returns the focus to the button of an action, when it is drawn, unless another dialog has it. */
  focus(action) {
    const button = document.getElementById(`rollout-${action}`);
    this.unfocused = button ? null : action;
    if (!document.querySelector('dialog[open]')) button?.focus({ preventScroll: true });
  }

  /** Asks for confirmation. The dialog is outside of the view: no refresh replaces it, and what it names is what is sent. */
  ask(action, seen) {
    const [label, , question, about, request] = COMMANDS[action];
    // The event comes after the next dialog may have been opened.
    const dialog = el('dialog', { 'aria-labelledby': 'question', onclose: () => { dialog.remove(); this.focus(action); } },
      el('h2', { id: 'question' }, question(seen)), el('p', {}, about(seen)),
      el('div', { class: 'acts' }, el('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'),
        el('button', { type: 'button', class: 'strong', onclick: () => { dialog.close(); this.move(action, { action, ...request(seen) }, label); } }, label)));
    document.body.append(dialog);
    dialog.showModal();
    this.dialog = dialog;
  }

  async move(action, body, label) {
    try {
      const seen = await act(`rollouts/rules/${encodeURIComponent(this.rule)}`, body);
      this.result.textContent = `Done: ${label.toLowerCase()}.`;
      await this.show(seen);
    } catch (error) {
      fill(this.result, text(`Failed: ${error.message}`));
      await this.look().catch(() => { /* the connection status shows it */ });
    }
    this.focus(action);
    this.unfocused = null;
  }

  end() { this.dialog?.close(); }
}

function drawn(seen) {
  const top = seen.revisions.at(-1);
  const failures = seen.waves.flatMap((wave, place) => wave.failures.map(one => [el('a', { href: `#/${path('nodes', one.node)}` }, name(one.node)), number(place + 1), message(one)]));
  return [
    el('section', {}, el('h2', {}, 'Waves'),
      el('p', {}, !top ? 'No revision exists yet.' : moving(seen)
        ? ['Revision ', el('b', {}, number(top.number)), ' is open for ', el('b', {}, number(top.open)), ` of ${number(seen.waves.length)} waves.`]
        : ['Revision ', el('b', {}, number(top.number)), ' is the stable one, for all nodes.'],
      seen.paused && [' ', el('b', {}, 'Paused'), seen.paused === 'Command' ? ' by an operator.' : [': ', text(seen.paused), '.']],
      seen.rejected.length > 0 && ` Rejected versions: ${number(seen.rejected.length)}.`),
      !seen.valid && el('p', {}, el('b', {}, 'The field rollout of the rule is invalid.'), ' The last valid one stays in force, and nothing moves.'),
      el('ol', { class: 'waves' }, seen.waves.map((wave, place) => el('li', { class: 'wave' }, bar(seen, wave, place))))),
    failures.length > 0 && el('section', {}, el('h2', {}, 'First failures'), table('First failures of each wave', ['Node', '#Wave', 'Message'], failures)),
    seen.conditions.length > 0 && el('section', {}, el('h2', {}, 'Conditions'), table('Conditions of the roll-out', ['Type', 'Status', 'Reason', 'Message'],
      seen.conditions.map(one => [text(one.type), one.status ? 'True' : 'False', text(one.reason), message(one)]))),
    seen.revisions.length > 0 && el('section', {}, el('h2', {}, 'Revisions'), table('Revisions that nodes have', ['Revision', 'Waves', '#Objects', 'Started', 'Good since'],
      seen.revisions.map((one, place) => [number(one.number), place === 0 ? 'stable' : `${number(one.open)} of ${number(seen.waves.length)}`,
        one.objects === null ? 'lost' : number(one.objects), time(one.startedAt), one.goodSince ? time(one.goodSince) : '']).reverse())),
    seen.history.length > 0 && el('section', {}, el('h2', {}, 'History'), table('Revisions that have ended', ['Revision', 'Waves', 'Outcome', 'Started', 'Ended', 'By'],
      seen.history.map(one => [number(one.number), number(one.open), text(one.outcome), time(one.startedAt), time(one.endedAt), text(one.by)]).reverse())),
    el('h2', {}, 'Nodes with their revision'),
  ];
}

/** Draws a wave: its nodes by state as a bar, with the counts as words. */
function bar(seen, wave, place) {
  const counts = COUNTS.map(([word, key, count]) => [word, key, count(wave)]).filter(([, , count]) => count > 0);
  const head = el('p', { class: 'which' }, el('b', {}, `Wave ${place + 1}`), el('span', {}, describe(wave)),
    el('span', { class: 'none' }, moving(seen) ? wave.open ? `open, ${number(wave.nodes)} ${wave.nodes === 1 ? 'node' : 'nodes'}` : 'not open' : 'stable'));
  if (!wave.open) return head;
  let from = 0;
  const parts = counts.map(([, key, count]) => {
    const part = svg('rect', { x: from, y: 0, width: count, height: 1, class: `layer ${key}` });
    from += count;
    return part;
  });
  return [head, svg('svg', { class: 'bar', viewBox: `0 0 ${Math.max(1, wave.nodes, from)} 1`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, ...parts),
    el('ul', { class: 'badges' }, counts.length === 0 ? el('li', { class: 'none' }, 'no node') : counts.map(([word, key, count]) =>
      el('li', { class: 'badge' }, sign({ key }), `${word} `, el('b', {}, number(count)))))];
}
