// The states of nodes: words, colours and shapes. A state is never told by its colour alone.

import { el } from './dom.js';

/** By the place in what the server sends: the word, the class, whether somebody has to look, and what it means. */
export const STATES = [
  ['in sync', 'sync', false, 'holds what it is to hold'],
  ['syncing', 'syncing', false, 'is being sent something'],
  ['connecting', 'connecting', false, 'is connected, and says what it holds'],
  ['not in effect', 'effect', true, 'holds everything; programs there do not work with all of it'],
  ['rejecting', 'reject', true, 'rejects an object'],
  ['held back', 'held', true, 'would lose much: somebody is to confirm that'],
  ['offline', 'offline', true, 'is not connected'],
  ['removed', 'removed', false, 'was removed from the fleet'],
].map(([word, key, trouble, about], place) => ({ word, key, trouble, about, place }));

export const OFFLINE = 6;
/** Those first that need somebody. */
export const URGENCY = [4, 5, 3, 6, 2, 1, 0, 7];

export const byWord = word => STATES.find(state => state.word === word) ?? STATES[OFFLINE];

/** The colours of now, as the style sheet has them. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return STATES.map(state => style.getPropertyValue(`--${state.key}`).trim());
}

/** The sign of a state: its colour and its shape. */
export const sign = state => el('span', { class: `sign ${state.key}`, 'aria-hidden': 'true' });

export const badge = state => el('span', { class: `badge ${state.key}` }, sign(state), state.word);
