// Requests to the server, one after the other, so that answers take effect in the order in which they were given.

import { byId } from "./dom.js";

export class Refused extends Error {
  constructor(status, told) {
    super(told.error ?? "The server rejected this.");
    this.status = status;
    this.told = told;
  }
}

async function fetchJson(path, options) {
  const response = await fetch(path, { cache: "no-store", ...options });
  if (response.status === 403) throw new TypeError("another server");
  const told = await response.json();
  if (!response.ok) throw new Refused(response.status, told);
  return told;
}

export async function about() {
  return fetchJson("api/about");
}

export async function ask(question, body = {}) {
  try {
    const told = await fetchJson(`api/${question}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    connected(true);
    return told;
  } catch (error) {
    if (!(error instanceof Refused)) connected(false);
    throw error;
  }
}

function connected(yes) {
  const banner = byId("banner");
  if (banner.hidden === yes) return;
  banner.hidden = yes;
  banner.textContent = yes
    ? ""
    : "The server does not respond. Everything marked as saved is kept. Start semigpc review again and open the address that it prints.";
}

let last = Promise.resolve();
let waiting = 0;

// Run a job after all earlier ones, whether those succeeded or not.
export function inTurn(job) {
  waiting += 1;
  showSaving();
  const done = last.then(job).finally(() => {
    waiting -= 1;
    showSaving();
  });
  last = done.catch(() => {});
  return done;
}

export const idle = () => waiting === 0;

function showSaving() {
  byId("saved").textContent = waiting > 0 ? "Saving" : "Saved";
  byId("saved").classList.toggle("busy", waiting > 0);
}
