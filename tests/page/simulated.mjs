// A simulated fleet of ten thousand nodes: a small server with the part of the API that the overview
// uses, which can change nodes every second.

import { createServer } from 'node:http';

const WORDS = ['in sync', 'syncing', 'connecting', 'not in effect', 'rejecting', 'held back', 'offline', 'removed'];

const SITES = ['hamburg', 'lyon', 'osaka', 'porto', 'tallinn', 'toronto', 'utrecht', 'vienna'];

/** Serves `count` nodes; the files of the page come from a cloud side. A compromised server may send any names and labels. */
export async function simulate(files, { count = 10_000, nameOf = number => `edge-${String(number).padStart(5, '0')}`, key = 'site', sites = SITES } = {}) {
  const since = Math.floor(Date.now() / 1000) - 4000;
  const rows = Array.from({ length: count }, (_, number) => {
    const state = number % 97 === 0 ? 6 : number % 401 === 0 ? 4 : number % 613 === 0 ? 5 : number % 307 === 0 ? 3 : number % 53 === 0 ? 1 : 0;
    return [nameOf(number), state, since + number % 3600, 300, 300, state === 1 ? 12 : 0, state > 2 && state < 6 ? 1 : 0];
  });
  const counts = () => WORDS.map((_, place) => rows.reduce((sum, row) => sum + (row[1] === place), 0));
  const line = (type, revision, nodes) => `${JSON.stringify({ type, start: 's', revision, at: Date.now(), states: WORDS, counts: counts(), held: 300 * count, desired: 300 * count, gone: [], nodes })}\n`;
  const at = Array.from({ length: 360 }, (_, place) => since + place * 10);
  const wave = (place, state) => Math.round((WORDS.length - state) * 9 * (1.2 + Math.sin(place / 40 + state)) * (state === 0 ? 0 : 1));
  const columns = WORDS.map((_, state) => at.map((_, place) => state === 7 ? 0 : wave(place, state)));
  columns[0] = at.map((_, place) => count - columns.slice(1).reduce((sum, column) => sum + column[place], 0));
  const answers = {
    '/edgesync/v1/labels': { keys: [{ key, nodes: count, values: sites.length }] },
    [`/edgesync/v1/labels?key=${encodeURIComponent(key)}`]: { key, values: Object.fromEntries(sites.map((site, place) => [site, rows.filter((_, number) => number * number % 31 % sites.length === place).map(row => row[0])])) },
    '/edgesync/v1/summary/history': { states: WORDS, at, counts: columns, held: at, desired: at, bytesSent: at, bytesReceived: at },
  };
  let revision = 1, next = 0;
  const streams = new Set();
  const server = createServer(async (asked, answer) => {
    if (asked.url.startsWith('/page/')) {
      const file = await fetch(new URL(asked.url, files));
      const headers = Object.fromEntries([...file.headers].filter(([name]) => !['connection', 'transfer-encoding', 'content-length'].includes(name)));
      return answer.writeHead(file.status, headers).end(Buffer.from(await file.arrayBuffer()));
    }
    answer.setHeader('content-type', 'application/json');
    if (asked.url.startsWith('/edgesync/v1/summary?watch')) {
      answer.write(line('SNAPSHOT', revision, rows));
      streams.add(answer);
      return answer.on('close', () => streams.delete(answer));
    }
    const found = answers[asked.url];
    return found ? answer.end(JSON.stringify(found)) : answer.writeHead(404).end('{}');
  });
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  let timer;
  return {
    address: `http://127.0.0.1:${server.address().port}/page/`,
    rows,
    /** Changes this many nodes every second from now on. */
    change(many) {
      timer = setInterval(() => {
        revision += 1;
        const changed = Array.from({ length: many }, () => {
          const row = rows[next = (next + 7919) % count];
          row[1] = row[1] === 0 ? 1 : row[1] === 1 ? 0 : row[1];
          row[2] = Math.floor(Date.now() / 1000);
          return row;
        });
        const text = line('CHANGED', revision, changed);
        for (const stream of streams) stream.write(text);
      }, 1000);
    },
    async close() {
      clearInterval(timer);
      for (const stream of streams) stream.destroy();
      server.closeAllConnections();
      await new Promise(done => server.close(done));
    },
  };
}
