// States of nodes: name, colour and shape. A state is never shown by its colour alone.

import { el } from './dom.js';

/** By index in the server's responses: name, CSS class, whether it needs attention, and meaning. */
export const STATES = [
  ['in sync', 'sync', false, 'holds all desired objects'],
  ['syncing', 'syncing', false, 'is being sent objects or removals'],
  ['connecting', 'connecting', false, 'is connected; its reports are processed'],
  ['not in effect', 'effect', true, 'holds all desired objects, but not all are in effect'],
  ['rejecting', 'reject', true, 'rejects an object'],
  ['held back', 'held', true, 'has removals that wait for confirmation'],
  ['offline', 'offline', true, 'is not connected'],
  ['removed', 'removed', false, 'was removed from the fleet'],
  ['away', 'away', false, 'is not connected as planned'],
  ['overdue', 'overdue', true, 'has missed its planned check-in'],
  ['waiting', 'waiting', false, 'holds all objects that may come over its metered link'],
].map(([word, key, problem, about], place) => ({ word, key, problem, about, place }));

export const OFFLINE = 6;
export const REMOVED = 7;
/** Indexes of the states, most urgent first. */
export const URGENCY = [9, 4, 5, 3, 6, 2, 1, 10, 0, 8, 7];

export const byWord = word => STATES.find(state => state.word === word) ?? STATES[OFFLINE];

/** Returns the colours of the style sheet for the current colour scheme. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return STATES.map(state => style.getPropertyValue(`--${state.key}`).trim());
}

/** Returns the icon of a state. */
export const sign = state => el('span', { class: `sign ${state.key}`, 'aria-hidden': 'true' });

export const badge = state => el('span', { class: `badge ${state.key}` }, sign(state), state.word);
