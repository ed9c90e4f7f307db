// Requests to the public API of the server.

const KEY = 'edgesync-key';
const OWN = '/edgesync/v1/';

/** Error response of the server. */
export class Refused extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

/** Moves a key from the address, which may be shared, to the storage. Returns whether there was one. */
export function takeKey() {
  const given = /^#key=([A-Za-z0-9_.-]+)$/.exec(location.hash);
  if (!given) return false;
  localStorage.setItem(KEY, given[1]);
  history.replaceState(null, '', '#/');
  return true;
}

function headers(more) {
  const key = localStorage.getItem(KEY);
  return { Accept: 'application/json', ...(key && { Authorization: `Bearer ${key}` }), ...more };
}

async function refused(response) {
  let message = response.statusText;
  try { message = (await response.json()).message || message; } catch { /* no message */ }
  return new Refused(response.status, message);
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers), cache: 'no-store', redirect: 'error' });
  if (!response.ok) throw await refused(response);
  return response;
}

/** Gets a path. */
export const get = async (path, signal) => (await ask(path.startsWith('/') ? path : OWN + path, { signal })).json();

/** Gets a path; null if it does not exist or is forbidden. */
export async function find(path, signal) {
  try { return await get(path, signal); } catch (error) {
    if (error instanceof Refused && [403, 404].includes(error.code)) return null;
    throw error;
  }
}

/** The header cannot be sent by pages of other origins. */
const send = async (path, body) => (await ask(path, { method: 'POST', headers: { 'X-Edgesync-Page': '1', 'Content-Type': 'application/json' }, body })).json();

/** Performs an action. */
export const act = (path, body) => send(OWN + path, body && JSON.stringify(body));

let role = null;

/** Returns the role of a key, from its second part: claims as JSON in base64url. The server verifies keys; this only avoids buttons that it refuses. */
function roleOf(key) {
  try {
    return JSON.parse(atob(key.split('.')[1].replaceAll('-', '+').replaceAll('_', '/'))).role;
  } catch {
    return null;
  }
}

/** Returns whether the user has one of these roles, by the key or by the certificate. An unknown role may try. */
export async function mayAct(...roles) {
  const key = localStorage.getItem(KEY);
  if (key) return roles.includes(roleOf(key));
  try {
    const { status } = await send('/apis/authentication.k8s.io/v1/selfsubjectreviews', '{}');
    role ??= status?.userInfo?.groups?.find(one => one.startsWith('role:')) ?? null;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
  }
  return role === null || roles.some(one => role === `role:${one}`);
}

/** Calls `take` with each line of a stream until it ends. */
export async function lines(path, take, signal) {
  const response = await ask(OWN + path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    let from = 0;
    for (let end = value.indexOf('\n'); end >= 0; end = value.indexOf('\n', from)) {
      parts.push(value.slice(from, end));
      take(JSON.parse(parts.join('')));
      parts = [];
      from = end + 1;
    }
    parts.push(value.slice(from));
  }
}

export const path = (...words) => words.map(encodeURIComponent).join('/');
export const query = fields => new URLSearchParams(Object.entries(fields).filter(([, value]) => value)).toString();
