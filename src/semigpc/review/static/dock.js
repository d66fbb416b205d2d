// The bar below the grid: accept the rest of the page in one step, and move what is marked to another class.

import { acceptMany, answer, assign } from "./actions.js";
import { contested } from "./card.js";
import { byId, number, plural } from "./dom.js";
import { openPicker } from "./dialogs.js";
import { clearMarks, leave, start } from "./grid.js";
import { onUndone } from "./outbox.js";
import { cardOf, isOpen, onChange, state } from "./store.js";

// Open cards that are not marked and have one label to accept.
function rest() {
  const cards = state.order.filter((row) => !state.selected.has(row)).map(cardOf);
  return cards.filter((card) => isOpen(card) && card.label !== null && !contested(card));
}

export function acceptRest() {
  const cards = rest();
  if (cards.length === 0) return;
  acceptMany(cards);
  leave(cards.map((card) => card.row));
}

export function moveMarked() {
  const rows = [...state.selected];
  if (rows.length === 0) return;
  openPicker(`Move ${plural(rows.length, "card")} to which class?`, (label) => {
    assign(rows, label);
    leave(rows);
  });
}

// Keep the label of a card for which two classes compete, or change it.
export function settle(position) {
  const card = state.current === null ? null : cardOf(state.current);
  if (!card || !contested(card) || !card.sides[position]) return;
  answer(card.row, card.sides[position].label);
}

function show() {
  const count = rest().length;
  const marked = state.selected.size;
  const wrong = state.filters.label !== null;
  byId("accept-rest").disabled = count === 0;
  byId("accept-rest").querySelector("span").textContent = count === 0 ? "Nothing to accept here" : marked ? `Accept the other ${number(count)}` : `Accept all ${number(count)} on this page`;
  byId("move").hidden = byId("clear").hidden = marked === 0;
  byId("move").querySelector("span").textContent = `Move ${number(marked)} to a class`;
  byId("marked-text").textContent = marked ? `${number(marked)} marked${wrong ? " as wrong" : ""}` : "";
  byId("how").textContent = state.progress?.state === "cold"
    ? "Nothing is predicted yet. Mark images that are alike, and move them to a class."
    : wrong
      ? "Click what is wrong, then accept the rest of the page. Move the marked ones to their class, or leave them open. Below each: how probable its label is, and what is guaranteed for labels like it."
      : "Choose a class to check it at a glance. Enter opens a card, Space marks it.";
}

onChange((what) => {
  if (state.mode === "grid" && (what.marks || what.rows || what.progress || what.mode || what.outbox)) show();
});
onChange((what) => {
  if (state.mode === "grid" && what.refused) start({ keep: true }).catch(() => {}); // what had left the page is open again
});
onUndone((undone, cards) => {
  const left = cards.some((card) => !state.order.includes(card.row)); // cards that come back to the page
  if (state.mode === "grid" && left) start({ keep: true, focus: true }).catch(() => {});
});

byId("cards").addEventListener("click", (event) => {
  const pick = event.target.closest(".pick"); // its card is the current one by now
  if (pick) answer(state.current, pick.dataset.label);
});
byId("accept-rest").addEventListener("click", acceptRest);
byId("move").addEventListener("click", moveMarked);
byId("clear").addEventListener("click", clearMarks);

// The panel ends where the bar begins.
new ResizeObserver(() => document.documentElement.style.setProperty("--dock", `${byId("dock").offsetHeight}px`)).observe(byId("dock"));
