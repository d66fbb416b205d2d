// Windows on top: choose among all classes, accept many, the keys, and an image enlarged.

import { acceptMany, correctCurrent } from "./actions.js";
import { contested, image, SIDES } from "./card.js";
import { byId, dot, el, icon, number, percent, plural, side, signed } from "./dom.js";
import { focusCurrent } from "./grid.js";
import { codeOf, currentCard, isOpen, state } from "./store.js";

const KEYS = [
  ["Enter", "accept the label"],
  ["1 to 9", "choose a class listed below the cards, most probable first; 1 accepts or keeps, 2 changes a suspected label"],
  ["C or /", "choose among all classes, or add a new one"],
  ["S", "skip: you cannot tell"],
  ["U or Ctrl Z", "undo the last answer"],
  ["Arrows, J, K", "move"],
  ["X or Space", "select"],
  ["A", "accept the selected cards, or all above a confidence"],
  ["Z", "enlarge, with the reasons"],
  ["F", "go to the search box"],
  ["Esc", "clear the selection, close"],
  ["?", "this list"],
];

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("close", () => focusCurrent());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

// --- choose a class -------------------------------------------------------------------------------------------------------

let listed = []; // what can be chosen, in order
let marked = 0;

export function openPicker() {
  if (!currentCard()) return;
  byId("picker-text").value = "";
  filterPicker();
  byId("picker").showModal();
  byId("picker-text").focus();
}

// Without text: by probability, then by name. With text: names that begin with it, then those that hold it.
function candidates(text) {
  const names = state.progress.classes.map((entry) => entry.name).sort((a, b) => a.localeCompare(b));
  if (!text) {
    const first = (state.choices.get(state.current) ?? []).map(([name]) => name);
    return [...first, ...names.filter((name) => !first.includes(name))];
  }
  const low = text.toLowerCase();
  const holds = names.filter((name) => name.toLowerCase().includes(low));
  const starts = holds.filter((name) => name.toLowerCase().startsWith(low));
  return [...starts, ...holds.filter((name) => !starts.includes(name))];
}

function filterPicker() {
  const text = byId("picker-text").value.trim().replace(/\s+/g, " ");
  const found = candidates(text);
  const known = state.progress.classes.some((entry) => entry.name.toLowerCase() === text.toLowerCase());
  listed = found.map((name) => ({ name, fresh: false }));
  if (text && !known) listed.push({ name: text, fresh: true });
  byId("picker-list").replaceChildren(...listed.map((entry, i) =>
    el("li", { role: "option", id: `option-${i}`, "aria-selected": "false", onclick: () => pick(i) },
      entry.fresh ? icon("plus") : dot(codeOf(entry.name)),
      el("span", { class: "name" }, entry.fresh ? `Add the class “${entry.name}”` : entry.name))));
  markOption(0);
}

function markOption(position) {
  marked = Math.max(0, Math.min(listed.length - 1, position));
  [...byId("picker-list").children].forEach((option, i) => option.setAttribute("aria-selected", String(i === marked)));
  const option = byId(`option-${marked}`);
  option?.scrollIntoView({ block: "nearest" });
  byId("picker-text").setAttribute("aria-activedescendant", option ? option.id : "");
}

function pick(position) {
  const entry = listed[position];
  byId("picker").close();
  if (entry) correctCurrent(entry.name);
}

byId("picker-text").addEventListener("input", filterPicker);
byId("picker-text").addEventListener("keydown", (event) => {
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
  if (event.key in moves) markOption(marked + moves[event.key]);
  else if (event.key === "Enter") pick(marked);
  else return;
  event.preventDefault();
});

// --- accept many ----------------------------------------------------------------------------------------------------------

function bulkCards() {
  const open = state.order.map((row) => state.cards.get(row)).filter((card) => isOpen(card) && card.label !== null);
  if (state.selected.size > 0) return open.filter((card) => state.selected.has(card.row));
  const least = Number(byId("bulk-least").value) / 100;
  return open.filter((card) => card.confidence >= least && card.status !== "outlier" && !card.suspected);
}

export function openBulk() {
  const chosen = state.selected.size > 0;
  byId("bulk-field").hidden = chosen;
  byId("bulk-lead").textContent = chosen
    ? "The labels of the selected cards are accepted as shown."
    : "All open cards on this page with at least this confidence are accepted as shown, except outliers and suspected labels.";
  showBulk();
  byId("bulk").showModal();
  (chosen ? byId("bulk-ok") : byId("bulk-least")).focus();
}

function showBulk() {
  const cards = bulkCards();
  const tally = new Map();
  for (const card of cards) tally.set(card.label, (tally.get(card.label) ?? 0) + 1);
  const sorted = [...tally].sort((a, b) => b[1] - a[1]);
  byId("bulk-classes").replaceChildren(...sorted.map(([name, count]) => el("li", {}, dot(codeOf(name)), el("span", { class: "name" }, name), el("b", {}, number(count)))));
  byId("bulk-ok").textContent = cards.length ? `Accept ${plural(cards.length, "card")}` : "Nothing to accept";
  byId("bulk-ok").disabled = cards.length === 0;
}

byId("bulk-least").addEventListener("input", showBulk);
byId("bulk-cancel").addEventListener("click", () => byId("bulk").close());
byId("bulk").addEventListener("close", () => {
  if (byId("bulk").returnValue === "ok") acceptMany(bulkCards());
  byId("bulk").returnValue = "";
});

// --- keys, and an image enlarged ------------------------------------------------------------------------------------------

byId("keys-list").append(...KEYS.flatMap(([key, does]) => [el("dt", {}, ...key.split(/(, | or | to )/).map((part, i) => (i % 2 ? part : el("kbd", {}, part)))), el("dd", {}, does)]));

export const openKeys = () => byId("keys").showModal();

export function openZoom() {
  const card = currentCard();
  if (!card || card.values) return;
  byId("zoom-title").textContent = card.id;
  const figures = (reasons) => reasons.map((reason) =>
    el("figure", {}, image(reason.row, 384), el("figcaption", {}, el("span", { class: "name" }, dot(codeOf(reason.label)), reason.label ?? "?"), el("b", { class: side(reason.weight) }, signed(reason.weight)))));
  const because = contested(card)
    ? card.sides.flatMap((one, i) => [el("h3", {}, `${one.label}, ${SIDES[i][0]}: ${percent(one.share)}`), ...figures(one.reasons)])
    : [el("h3", {}, "Because of these labels"), ...figures(card.reasons)];
  byId("zoom-body").replaceChildren(
    el("figure", { class: "whole" }, image(card.row, 1600), el("figcaption", {}, el("span", { class: "name" }, dot(codeOf(card.label)), card.label ?? "no label"), el("b", {}, card.answer ?? percent(card.confidence)), el("span", { class: "quiet", title: "0 % next to a labelled row, 100 % far from all of them" }, `variance ${percent(card.variance)}`))),
    el("div", { class: "because" }, ...because));
  byId("zoom").showModal();
}

byId("cards").addEventListener("click", (event) => {
  if (event.target.closest(".enlarge")) openZoom();
});
byId("help").addEventListener("click", openKeys);
byId("many").addEventListener("click", openBulk);
