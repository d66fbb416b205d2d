// Answers of the reviewer: shown at once, sent in turn, and taken back on the screen if the server rejects them.

import { ask, inTurn, Refused } from "./api.js";
import { announce, byId, el, plural } from "./dom.js";
import { advance, clearSelected, setCurrent, show } from "./grid.js";
import { currentCard, isOpen, merge, state, view } from "./store.js";

const others = "BroadcastChannel" in window ? new BroadcastChannel("semigpc-review") : null; // tabs of the same browser

export const onOtherTab = (listener) => others?.addEventListener("message", listener);

const shortId = (id) => id.split("/").pop();

const soFar = () => `${state.progress.reviewed} of ${state.progress.total} reviewed.`;

const alsoChanged = (count) => (count ? ` ${plural(count, "other label")} changed.` : "");

// Show the answer, send it, and store the reply.
async function answer(cards, question, body, believe, told) {
  const rows = cards.map((card) => card.row);
  const before = new Map(cards.map((card) => [card.row, card]));
  for (const card of cards) {
    state.pending.set(card.row, (state.pending.get(card.row) ?? 0) + 1);
    state.cards.set(card.row, believe(card));
  }
  show(rows);
  return inTurn(async () => {
    try {
      const reply = await ask(question, { ...body(), ...view() });
      settle(rows);
      const relabelled = merge(reply, rows);
      show(rows);
      announce(`${told} ${soFar()}${alsoChanged(relabelled)}`);
      others?.postMessage("moved");
    } catch (error) {
      settle(rows);
      for (const [row, card] of before) if (!state.pending.has(row) && state.cards.has(row)) state.cards.set(row, card);
      show(rows);
      refused(error, rows);
    }
  });
}

function settle(rows) {
  for (const row of rows) {
    const count = state.pending.get(row) - 1;
    if (count > 0) state.pending.set(row, count);
    else state.pending.delete(row);
  }
}

function refused(error, rows = []) {
  if (!(error instanceof Refused)) return announce("Not saved: the server does not respond.");
  if (error.status === 409) {
    merge(error.told, rows);
    if (rows.length === 1 && state.cards.has(rows[0])) setCurrent(rows[0]);
  }
  return announce(error.message);
}

// The labels of cards are right, as they are shown.
export function accept(cards) {
  const known = cards.filter((card) => card.label !== null);
  if (known.length === 0) return Promise.resolve(announce("There is no label to accept. Choose a class."));
  const labels = known.map((card) => card.label);
  const rows = known.map((card) => card.row);
  const body = () => ({ rows, labels, versions: rows.map((row) => state.cards.get(row).version) });
  const told = known.length === 1 ? `Accepted ${labels[0]} for ${shortId(known[0].id)}.` : `Accepted ${plural(known.length, "card")}.`;
  const believe = (card) => ({ ...card, answer: card.answer === "corrected" ? "corrected" : "accepted", status: "labelled", confidence: 1 });
  return answer(known, "accept", body, believe, told);
}

export function acceptCurrent() {
  const card = currentCard();
  if (!card) return;
  if (isOpen(card)) accept([card]);
  advance();
}

export function correctCurrent(label) {
  const card = currentCard();
  if (!card) return;
  if (label === card.label && isOpen(card)) return acceptCurrent();
  const body = () => ({ row: card.row, label, version: state.cards.get(card.row).version });
  const believe = (old) => ({ ...old, label, answer: "corrected", status: "labelled", confidence: 1 });
  answer([card], "correct", body, believe, `${shortId(card.id)} is ${label}.`);
  advance();
}

export function skipCurrent() {
  const card = currentCard();
  if (!card) return;
  const body = () => ({ row: card.row, version: state.cards.get(card.row).version });
  answer([card], "skip", body, (old) => ({ ...old, answer: "skipped" }), `Skipped ${shortId(card.id)}.`);
  advance();
}

// Digit keys: the classes as the dock shows them.
export function choose(position) {
  const label = byId("choices").children[position]?.dataset.label;
  if (label !== undefined) correctCurrent(label);
}

export function undo() {
  return inTurn(async () => {
    if (!state.undo) return announce("There is nothing to undo.");
    const { step, ids, count } = state.undo;
    try {
      const reply = await ask("undo", { step, ...view() });
      const rows = reply.cards.map((card) => card.row);
      merge(reply, rows);
      const back = [...state.cards.values()].find((card) => card.id === ids[0]);
      announce(`Undone: ${count === 1 ? shortId(ids[0]) : plural(count, "card")}. ${soFar()}`);
      if (back) setCurrent(back.row);
      others?.postMessage("moved");
    } catch (error) {
      refused(error);
    }
  });
}

export async function acceptMany(cards) {
  clearSelected();
  await accept(cards);
  if (currentCard() && !isOpen(currentCard())) advance();
}

export function exportAll() {
  announce("Writing the tables.");
  return inTurn(async () => {
    try {
      const written = await ask("export");
      byId("exported-lead").textContent = `${plural(written.rows, "row")}, of which people labelled ${written.labels}. Pass the last file to semigpc label --labels for the next round.`;
      byId("exported-files").replaceChildren(...written.files.map((file) => el("li", {}, el("code", {}, file))));
      byId("exported").showModal();
      byId("live").textContent = "Exported.";
    } catch (error) {
      refused(error);
    }
  });
}
