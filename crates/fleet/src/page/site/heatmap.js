// Map of all nodes on one canvas: a cell for each, in groups. Only changed cells are redrawn.

import { colours, STATES } from './states.js';

const GAP_Y = 10, GAP_X = 12, LABEL = 16, LARGEST = 26, SMALLEST = 6;
/** Minimum size of a cell with a shape. */
const SHAPES = 9;

export class Heatmap {
  /** `groups` are `[label, [name, …]]`; `stateOf` returns the state of a node, `isShown` whether it matches the filter. */
  constructor(canvas, stateOf, isShown) {
    Object.assign(this, { canvas, stateOf, isShown, groups: [], names: [], places: new Map(), chosen: -1, size: 10, frame: 0 });
    this.pending = new Set();
    this.context = canvas.getContext('2d', { alpha: false });
  }

  /** Lays out and draws all nodes, after a change of nodes, groups or size. */
  lay(groups, width, height) {
    const chosen = this.names[this.chosen];
    this.groups = groups;
    this.names = groups.flatMap(([, names]) => names);
    this.places = new Map(this.names.map((name, place) => [name, place]));
    this.width = Math.max(120, Math.floor(width));
    const total = this.names.length;
    const labelled = groups.length > 1 || (groups[0] && groups[0][0]);
    let size = Math.min(LARGEST, Math.max(SMALLEST, Math.floor(Math.sqrt(this.width * height / Math.max(1, total)))));
    while (size > SMALLEST && this.arrange(size, labelled) > height) size -= 1;
    this.height = this.arrange(size, labelled);
    this.chosen = chosen === undefined ? -1 : this.places.get(chosen) ?? -1;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    Object.assign(this.canvas, { width: this.width * ratio, height: this.height * ratio });
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  /** Positions all cells for a size. Returns the total height. */
  arrange(size, labelled) {
    const total = this.names.length;
    this.size = size;
    this.x = new Float32Array(total);
    this.y = new Float32Array(total);
    this.labels = [];
    let place = 0, left = 0, top = 0, tallest = 0;
    // All groups have the same number of rows, so that they align.
    const deep = Math.max(1, Math.round(Math.sqrt(total / Math.max(1, this.groups.length) / 2)));
    for (const [label, names] of this.groups) {
      const most = Math.max(1, Math.floor(this.width / size));
      const columns = labelled ? Math.min(most, Math.max(Math.ceil(80 / size), Math.ceil(names.length / deep))) : most;
      const rows = Math.ceil(names.length / columns);
      const wide = columns * size, head = labelled ? LABEL : 0;
      if (left && left + wide > this.width) {
        left = 0;
        top += tallest + GAP_Y;
        tallest = 0;
      }
      if (labelled) this.labels.push([label, left, top, wide, names.length]);
      for (let number = 0; number < names.length; number += 1, place += 1) {
        this.x[place] = left + (number % columns) * size;
        this.y[place] = top + head + Math.floor(number / columns) * size;
      }
      tallest = Math.max(tallest, head + rows * size);
      left += wide + GAP_X;
    }
    return Math.max(size, top + tallest);
  }

  /** Redraws changed nodes with the next frame. */
  change(names) {
    for (const name of names) {
      const place = this.places.get(name);
      if (place !== undefined) this.pending.add(place);
    }
    if (!this.frame && this.pending.size) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        for (const place of this.pending) this.cell(place);
        this.pending.clear();
      });
    }
  }

  /** Draws all nodes. */
  draw() {
    const style = getComputedStyle(document.documentElement);
    this.colours = colours();
    [this.paper, this.ink, this.accent, this.faint] = ['--paper', '--ink-2', '--accent', '--line'].map(name => style.getPropertyValue(name).trim());
    const { context } = this;
    context.fillStyle = this.paper;
    context.fillRect(0, 0, this.width, this.height);
    context.fillStyle = this.ink;
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'top';
    for (const [label, x, y, wide, count] of this.labels) {
      context.save();
      context.beginPath();
      context.rect(x, y, wide, LABEL);
      context.clip();
      context.fillText(`${label} \u00b7 ${count}`, x, y + 1);
      context.restore();
    }
    for (let place = 0; place < this.names.length; place += 1) this.cell(place);
  }

  cell(place) {
    const { context, size } = this;
    const name = this.names[place], state = this.stateOf(name);
    const x = this.x[place], y = this.y[place], gap = size > 7 ? 2 : 1, inner = size - gap;
    context.fillStyle = this.paper;
    context.fillRect(x, y, size, size);
    const shown = this.isShown(name, state);
    context.globalAlpha = shown ? 1 : 0.12;
    context.fillStyle = this.colours[state];
    context.strokeStyle = this.colours[state];
    shape(context, STATES[state].key, x, y, inner, size >= SHAPES, this.paper);
    context.globalAlpha = 1;
    if (place === this.chosen) {
      context.strokeStyle = this.accent;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
    }
  }

  /** Returns the index of the node at a point, or -1. */
  at(x, y) {
    for (let place = 0; place < this.names.length; place += 1) {
      if (x >= this.x[place] && x < this.x[place] + this.size && y >= this.y[place] && y < this.y[place] + this.size) return place;
    }
    return -1;
  }

  /** Returns the index of the node that a key moves to. */
  next(key) {
    const last = this.names.length - 1, from = this.chosen;
    if (last < 0) return -1;
    if (key === 'Home' || from < 0) return 0;
    if (key === 'End') return last;
    if (key === 'ArrowRight') return Math.min(last, from + 1);
    if (key === 'ArrowLeft') return Math.max(0, from - 1);
    const down = key === 'ArrowDown';
    let best = from, least = Infinity;
    for (let place = 0; place <= last; place += 1) {
      const away = (this.y[place] - this.y[from]) * (down ? 1 : -1);
      const far = away * 4 + Math.abs(this.x[place] - this.x[from]);
      if (away > 0 && far < least) [best, least] = [place, far];
    }
    return best;
  }

  choose(place) {
    const before = this.chosen;
    this.chosen = place;
    if (before >= 0 && before < this.names.length) this.cell(before);
    if (place >= 0) this.cell(place);
  }
}

/** Draws the shape of a state in a cell, which repeats the colour's meaning. */
function shape(context, key, x, y, size, detailed, paper) {
  const edge = Math.max(1, Math.round(size / 8));
  if (key === 'offline' || key === 'away') {
    context.setLineDash(key === 'away' ? [edge, edge] : []);
    context.lineWidth = edge;
    context.strokeRect(x + edge / 2, y + edge / 2, size - edge, size - edge);
    return context.setLineDash([]);
  }
  if (key === 'removed') return context.fillRect(x, y + size - edge, size, edge);
  context.fillRect(x, y, size, size);
  if (!detailed || key === 'sync') return;
  context.fillStyle = paper;
  const third = size / 3;
  if (key === 'syncing') {
    context.beginPath();
    context.moveTo(x + size, y);
    context.lineTo(x + size, y + size);
    context.lineTo(x, y);
    return context.fill();
  }
  if (key === 'connecting') return context.fillRect(x + third, y + third, third, third);
  if (key === 'effect') return context.fillRect(x, y + size / 2 - edge / 2, size, edge);
  if (key === 'held') {
    context.fillRect(x + size * 0.28, y + size * 0.25, size * 0.14, size / 2);
    return context.fillRect(x + size * 0.58, y + size * 0.25, size * 0.14, size / 2);
  }
  context.strokeStyle = paper;
  context.lineWidth = edge;
  context.beginPath();
  context.moveTo(x + size * 0.25, y + size * 0.25);
  context.lineTo(x + size * 0.75, y + size * 0.75);
  context.moveTo(x + size * 0.75, y + size * 0.25);
  context.lineTo(x + size * 0.25, y + size * 0.75);
  context.stroke();
}
