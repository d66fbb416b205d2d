// The bar below: the classes of the current card with their digits, and buttons for use without a keyboard.

import { acceptCurrent, choose, correctCurrent, skipCurrent } from "./actions.js";
import { byId, dot, el, fitted, number, percent, plural } from "./dom.js";
import { clearSelected } from "./grid.js";
import { openBulk, openPicker } from "./dialogs.js";
import { codeOf, currentCard, onChange, state } from "./store.js";

let shown = { row: null, label: null, names: [] };

// Classes in the order of their probability. While a card is current they keep their places, so that no digit changes its
// meaning under a finger, unless the label itself has changed.
function ranked(card) {
  const choices = state.choices.get(card.row);
  const fresh = choices ?? (card.label === null ? [] : [[card.label, card.confidence]]);
  const same = shown.row === card.row && shown.label === card.label && shown.names.length > 1;
  if (!same) return fresh;
  const byName = new Map(fresh);
  return shown.names.map(([name, before]) => [name, byName.get(name) ?? before]);
}

function show() {
  const card = currentCard();
  const many = state.selected.size > 0;
  byId("answers").hidden = many;
  byId("selection").hidden = !many;
  byId("selected-text").textContent = `${plural(state.selected.size, "card")} selected`;
  byId("accept-selected").replaceChildren(`Accept ${number(state.selected.size)}`, el("kbd", {}, "A"));
  for (const id of ["accept", "other", "skip"]) byId(id).disabled = card === null;
  const names = card ? ranked(card) : [];
  shown = { row: card?.row ?? null, label: card?.label ?? null, names };
  byId("choices").style.setProperty("--columns", String(names.length <= 5 ? 5 : Math.ceil(names.length / 2)));
  byId("choices").replaceChildren(...names.map(([name, share], i) =>
    el("button", { type: "button", class: name === card.label ? "choice first" : "choice", "data-label": name, "aria-keyshortcuts": String(i + 1), title: name, onclick: () => choose(i) },
      el("kbd", {}, String(i + 1)), dot(codeOf(name)), el("span", { class: "name" }, fitted("span", {}, name)), el("span", { class: "share" }, card.answer && name === card.label ? "" : percent(share)))));
}

onChange((what) => {
  if (what.choices || what.rows || what.progress) show();
});

byId("cards").addEventListener("click", (event) => {
  const pick = event.target.closest(".pick"); // its card is the current one by now
  if (pick) correctCurrent(pick.dataset.label);
});
byId("accept").addEventListener("click", acceptCurrent);
byId("other").addEventListener("click", openPicker);
byId("skip").addEventListener("click", skipCurrent);
byId("accept-selected").addEventListener("click", openBulk);
byId("clear").addEventListener("click", clearSelected);

// The panel ends where the bar begins, however many lines of classes there are.
new ResizeObserver(() => document.documentElement.style.setProperty("--dock", `${byId("dock").offsetHeight}px`)).observe(byId("dock"));
