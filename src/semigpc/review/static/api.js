// Requests to the server, one after the other, so that answers take effect in the order in which they were given.

export class Refused extends Error {
  constructor(status, told) {
    super(told.error ?? "The server rejected this.");
    this.status = status;
    this.told = told;
  }
}

const HEARTBEAT = 1000; // milliseconds
const PATIENCE = 10_000; // milliseconds, after which a server that does not respond counts as gone

export const connection = { up: true };
const listeners = [];

export const onConnection = (listener) => listeners.push(listener);

function connected(up) {
  if (connection.up === up) return;
  connection.up = up;
  listeners.forEach((listener) => listener(up));
}

async function fetchJson(path, options) {
  const response = await fetch(path, { cache: "no-store", ...options });
  if (response.status === 403) throw new TypeError("another server");
  const told = await response.json();
  if (!response.ok) throw new Refused(response.status, told);
  return told;
}

export const about = () => fetchJson("api/about", { signal: AbortSignal.timeout(PATIENCE) });

export async function ask(question, body = {}) {
  if (!connection.up) throw new TypeError("not connected");
  try {
    return await fetchJson(`api/${question}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch (error) {
    if (!(error instanceof Refused)) connected(false);
    throw error;
  }
}

// Notice at once that the server has gone or is back.
async function listen() {
  const up = await about().then(() => true, () => false);
  connected(up);
  setTimeout(listen, HEARTBEAT);
}

let listening = false;

export function startListening() {
  if (!listening) setTimeout(listen, HEARTBEAT);
  listening = true;
}

let last = Promise.resolve();
let waiting = 0;

// Run a job after all earlier ones, whether those succeeded or not.
export function inTurn(job) {
  waiting += 1;
  const done = last.then(job).finally(() => {
    waiting -= 1;
  });
  last = done.catch(() => {});
  return done;
}

export const idle = () => waiting === 0;
