// Answers on their way to the server. They are kept in the tab until the server has confirmed them, also over a reload of the
// page, and sent in order. While the server is gone they wait.

import { ask, connection, inTurn, onConnection, Refused } from "./api.js";
import { announce, byId, el, plural, say } from "./dom.js";
import { changed, merge, onChange, rowsOf, state, view } from "./store.js";

const KEPT = `semigpc-outbox:${location.pathname}`;
const others = "BroadcastChannel" in window ? new BroadcastChannel("semigpc-review") : null; // tabs of the same browser

export const onOtherTab = (listener) => others?.addEventListener("message", listener);

const keep = () => sessionStorage.setItem(KEPT, JSON.stringify(state.outbox));

const afterUndo = [];

export const onUndone = (listener) => afterUndo.push(listener);

// Queue an answer; `said` is what a screen reader hears once it is saved, `shown` whether everybody should read it.
export function put(question, body, said, { shown = false } = {}) {
  const entry = { question, body, said, shown, tried: false };
  state.outbox.push(entry);
  keep();
  changed({ rows: rowsOf(entry), outbox: true });
  if (connection.up) inTurn(sendFirst);
}

// Take back the last answer that has not been sent, and return it if there was one.
export function withdraw() {
  const entry = state.outbox.at(-1);
  if (!entry || entry.tried) return null;
  remove(entry);
  const cards = rowsOf(entry).map((row) => state.cards.get(row)).filter(Boolean);
  const undone = { ids: cards.map((card) => card.id), count: cards.length };
  afterUndo.forEach((listener) => listener(undone, cards));
  return entry;
}

function remove(entry) {
  state.outbox.splice(state.outbox.indexOf(entry), 1);
  keep();
  changed({ rows: rowsOf(entry), outbox: true });
}

async function sendFirst() {
  const entry = state.outbox[0];
  if (!entry || !connection.up) return;
  if (entry.question === "undo" && entry.body.step === null) {
    if (!state.undo) return refuse(entry, "There is nothing to undo.");
    entry.body.step = state.undo.step;
    entry.undone = state.undo;
  }
  const again = entry.tried;
  entry.tried = true;
  keep();
  try {
    saved(entry, await ask(entry.question, { ...entry.body, ...view() }));
  } catch (error) {
    if (error instanceof Refused) await rejected(entry, error, again);
  }
}

function saved(entry, told) {
  const rows = entry.question === "undo" ? told.cards.map((card) => card.row) : rowsOf(entry);
  const versions = new Map(told.cards.map((card) => [card.row, card.version]));
  for (const later of state.outbox.slice(1)) {
    if (later.body.versions) later.body.versions = later.body.versions.map((version, i) => (rows.includes(later.body.rows[i]) ? versions.get(later.body.rows[i]) ?? version : version));
    if (rows.includes(later.body.row)) later.body.version = versions.get(later.body.row) ?? later.body.version;
  }
  remove(entry);
  const relabelled = merge(told, rows);
  const more = relabelled && state.mode === "grid" && entry.question !== "rename" ? ` ${plural(relabelled, "other label")} changed.` : "";
  (entry.shown ? announce : say)(`${entry.said}${more}`);
  if (entry.question === "undo") afterUndo.forEach((listener) => listener(entry.undone, told.cards));
  others?.postMessage("moved");
}

// An answer whose reply was lost comes back as rejected, although it was recorded.
async function rejected(entry, error, again) {
  const known = error.told.cards ?? [];
  if (error.status === 409 && entry.question === "undo" && again) return saved(entry, await cardsOf(entry.undone.ids));
  if (error.status === 409 && known.length > 0 && rowsOf(entry).every((row) => holds(entry, known.find((card) => card.row === row)))) return saved(entry, error.told);
  if (again && entry.question === "rename") {
    const told = await ask("refresh", view());
    const names = told.progress.classes.map((each) => each.name);
    if (names.includes(entry.body.to) && !names.includes(entry.body.name)) return saved(entry, told);
  }
  remove(entry);
  if (error.status === 409) merge(error.told, rowsOf(entry));
  return refuse(entry, error.message, false);
}

function cardsOf(ids) {
  const visible = [...state.cards.values()].filter((card) => ids.includes(card.id)).map((card) => card.row);
  return ask("refresh", { ...view(), visible, since: 0 });
}

function holds(entry, card) {
  if (!card) return false;
  if (entry.question === "skip") return card.answer === "skipped";
  if (entry.question === "none") return card.answer === "none";
  const label = entry.body.labels ? entry.body.labels[entry.body.rows.indexOf(card.row)] : entry.body.label;
  return card.label === label && card.answer !== null;
}

function refuse(entry, message, still = true) {
  if (still) remove(entry);
  if (entry.question !== "undo") changed({ refused: entry });
  announce(message);
}

// --- what the header says --------------------------------------------------------------------------------------------------

function show() {
  const count = state.outbox.length;
  const answers = plural(count, "answer is", "answers are");
  const saved = byId("saved");
  saved.className = connection.up ? (count ? "saved busy" : "saved") : "saved gone";
  const text = connection.up ? (count ? `Saving ${count}` : "Saved") : "Not connected";
  if (saved.textContent !== text) saved.textContent = text;
  const banner = byId("banner");
  banner.hidden = connection.up;
  if (connection.up) return banner.replaceChildren();
  const first = count ? `Not connected: ${answers} waiting.` : "Not connected.";
  const second = count ? " Keep this page open: they are sent when the server is back." : " Everything so far is saved.";
  if (banner.textContent.startsWith(first + second)) return undefined;
  return banner.replaceChildren(el("b", {}, first), second, " To start it again, run semigpc open as before.");
}

onConnection((up) => {
  show();
  if (!up) return;
  state.clock = 0; // it may be another process, with its own clock
  for (let i = 0; i < state.outbox.length; i += 1) inTurn(sendFirst);
});
onChange((what) => {
  if (what.outbox) show();
});

window.addEventListener("beforeunload", (event) => {
  if (!connection.up && state.outbox.length > 0) event.preventDefault();
});

// Begin with what a reload of the page has left.
export function resume() {
  try {
    state.outbox = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  } catch {
    state.outbox = [];
  }
  show();
  for (let i = 0; i < state.outbox.length; i += 1) inTurn(sendFirst);
}
