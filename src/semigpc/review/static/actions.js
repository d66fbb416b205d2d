// Answers of people, as they are put on their way to the server, and what a page can ask of it besides.

import { ask, connection, inTurn, Refused } from "./api.js";
import { announce, plural } from "./dom.js";
import { used } from "./names.js";
import { put, withdraw } from "./outbox.js";
import { cardOf, isOpen, rowsOf, state, view } from "./store.js";

const shortId = (id) => id.split("/").pop();

const versionsOf = (rows) => rows.map((row) => state.cards.get(row).version);

// A card is of a class: its label is accepted if it is the one that is shown, otherwise corrected.
export function answer(row, label) {
  const card = cardOf(row);
  used(label);
  const version = state.cards.get(row).version;
  if (label === card.label && isOpen(card)) put("accept", { rows: [row], labels: [label], versions: [version] }, `Saved: ${label}.`);
  else if (label !== card.label || card.answer === "skipped" || card.answer === "none") put("correct", { row, label, version }, `Saved: ${label}.`);
}

export function skip(row) {
  if (cardOf(row).answer !== "skipped") put("skip", { row, version: state.cards.get(row).version }, `Skipped ${shortId(state.cards.get(row).id)}.`);
}

export function none(row) {
  if (cardOf(row).answer !== "none") put("none", { row, version: state.cards.get(row).version }, "Saved: none of these.");
}

// The labels of cards are right, as they are shown.
export function acceptMany(cards) {
  const rows = cards.map((card) => card.row);
  put("accept", { rows, labels: cards.map((card) => card.label), versions: versionsOf(rows) }, `Accepted ${plural(rows.length, "card")}.`, { shown: true });
}

export function assign(rows, label) {
  used(label);
  put("assign", { rows, label, versions: versionsOf(rows) }, `Moved ${plural(rows.length, "card")} to ${label}.`, { shown: true });
}

export function rename(name, to, merge) {
  state.recent = state.recent.map((other) => (other === name ? to : other)).filter((other, i, all) => all.indexOf(other) === i);
  put("rename", { name, to, merge }, merge ? `${name} is part of ${to} now.` : `${name} is called ${to} now.`, { shown: true });
}

// The last step; an answer that still waits for the server is simply not sent.
export function undo() {
  if (!connection.up) {
    const entry = withdraw();
    if (!entry) return announce("Not connected: what is saved can be undone when the server is back.");
    return announce(`Undone: ${plural(Math.max(1, rowsOf(entry).length), "answer")} that had not been sent.`);
  }
  const last = state.undo;
  if (!last && state.outbox.length === 0) return announce("There is nothing to undo.");
  return put("undo", { step: null }, "Undone.", { shown: true });
}

// Ask for what has changed.
export const refresh = () => inTurn(async () => ask("refresh", view()));

// What was answered before is sent first; later answers need not wait for the file.
export async function exportTo(format) {
  await inTurn(() => {});
  try {
    return await ask("export", { format, ...view() });
  } catch (error) {
    return { error: error instanceof Refused ? error.message : "Not connected: nothing was written." };
  }
}
