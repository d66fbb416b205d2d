// All cards on the screen: pages of them, the current one, and the selection.

import { ask } from "./api.js";
import { fill, makeCard, mark } from "./card.js";
import { announce, byId, number, plural } from "./dom.js";
import { changed, filtersToAddress, isOpen, merge, onChange, state, view } from "./store.js";

const PAGE = 60;
const MOST = 960; // cards at once: the server scores up to 1000 of them again after each answer
const AHEAD = 12; // cards before the end at which the next page is requested
const grid = byId("cards");
let loading = null;

const elementOf = (row) => byId(`card-${row}`);

// Begin at the top of what the filters show.
export async function start({ focus = false } = {}) {
  filtersToAddress();
  const asked = JSON.stringify(state.filters);
  const told = await ask("cards", { ...state.filters, count: PAGE });
  if (asked !== JSON.stringify(state.filters)) return; // the filters changed in the meantime
  state.order = told.cards.map((card) => card.row);
  state.cards = new Map(told.cards.map((card) => [card.row, card]));
  state.selected.clear();
  state.choices.clear();
  state.current = state.order[0] ?? null;
  state.progress = told.progress;
  grid.replaceChildren(...told.cards.map(makeCard));
  take(told);
  window.scrollTo(0, 0);
  if (focus) focusCurrent();
}

// Load the next page; many calls at once are one.
export function more() {
  if (!loading && state.left > 0) loading = nextPage().finally(() => (loading = null));
  return loading ?? Promise.resolve();
}

async function nextPage() {
  tidy();
  if (state.order.length >= MOST) return announce("This page has too many open cards. Answer some of them first.");
  const told = await ask("cards", { ...state.filters, seen: state.order, count: PAGE });
  const fresh = told.cards.filter((card) => !state.cards.has(card.row));
  state.order.push(...fresh.map((card) => card.row));
  for (const card of fresh) state.cards.set(card.row, card);
  grid.append(...fresh.map(makeCard));
  take(told);
}

// Remove the earliest answered cards when there are many.
function tidy() {
  for (const row of [...state.order]) {
    if (state.order.length <= MOST - PAGE) break;
    if (isOpen(state.cards.get(row)) || row === state.current) continue;
    state.order.splice(state.order.indexOf(row), 1);
    state.cards.delete(row);
    elementOf(row).remove();
  }
}

function take(told) {
  state.found = told.found;
  state.left = told.left;
  merge({ ...told, cards: [] });
  refresh();
}

// Request what has changed; also how the classes rank for the current card and those after it.
export async function refresh() {
  const told = await ask("refresh", view());
  if (told.clock === state.clock && told.steps === state.steps) {
    for (const [row, choices] of Object.entries(told.choices ?? {})) state.choices.set(Number(row), choices);
    return changed({ choices: true });
  }
  const relabelled = merge(told);
  if (relabelled) announce(`${plural(relabelled, "label")} on this page changed.`);
}

export function setCurrent(row, { focus = true } = {}) {
  const before = state.current;
  state.current = row;
  for (const each of [before, row]) if (each !== null && elementOf(each)) mark(elementOf(each), each);
  changed({ choices: true });
  if (focus) focusCurrent();
  const at = state.order.indexOf(row);
  if (at >= state.order.length - AHEAD) more();
  if (!state.choices.has(row)) refresh().catch(() => {});
}

export function focusCurrent() {
  const element = state.current === null ? null : elementOf(state.current);
  if (!element) return byId("found").focus();
  element.firstChild.focus({ preventScroll: true });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
}

export function move(by) {
  if (state.order.length === 0) return;
  const at = state.order.indexOf(state.current);
  const to = Math.min(state.order.length - 1, Math.max(0, at + by));
  setCurrent(state.order[to]);
}

// Cards in one line of the grid, as it is laid out now.
export function columns() {
  return getComputedStyle(grid).gridTemplateColumns.split(" ").length;
}

// To the next card that waits for an answer; when there is none on the screen, to the next page.
export async function advance() {
  const at = state.order.indexOf(state.current);
  const next = state.order.slice(at + 1).find((row) => isOpen(state.cards.get(row)));
  if (next !== undefined) return setCurrent(next);
  const length = state.order.length;
  await more();
  if (state.order.length > length) return setCurrent(state.order[length]);
  return setCurrent(state.current);
}

export function toggleSelected(row) {
  if (!state.selected.delete(row)) state.selected.add(row);
  mark(elementOf(row), row);
  changed({ choices: true });
  byId("live").textContent = `${state.selected.has(row) ? "Selected" : "Not selected"}, ${plural(state.selected.size, "card")} in all`;
}

export function clearSelected() {
  const rows = [...state.selected];
  state.selected.clear();
  for (const row of rows) if (elementOf(row)) mark(elementOf(row), row);
  changed({ choices: true });
}

export function show(rows) {
  for (const row of rows) if (elementOf(row)) fill(elementOf(row), state.cards.get(row));
}

function showCounts() {
  const { status, label, text, least, most } = state.filters;
  const whole = label === null && !text && least === 0 && most === 1;
  const what = { unreviewed: "to review", all: "in all", suspected: "suspected to be wrong", pseudo: "with a new label", abstained: "left open", outlier: "outliers" };
  const found = whole ? state.progress.counts[status] : state.found;
  byId("found").textContent = `${number(found)} ${what[status] ?? status}${label === null ? "" : `: ${label}`}`;
  grid.setAttribute("aria-rowcount", String(found));
  byId("more").hidden = state.left === 0;
  byId("more").textContent = `Show ${Math.min(PAGE, state.left)} of ${number(state.left)} more`;
  const empty = byId("empty");
  empty.hidden = state.order.length > 0;
  empty.textContent = status === "unreviewed" && whole
    ? "Nothing is left to review. Export writes the tables."
    : "Nothing matches these filters.";
}

onChange((what) => {
  if (what.rows) show(what.rows);
  if (what.progress) showCounts();
});

grid.addEventListener("click", (event) => {
  const element = event.target.closest(".card");
  if (!element) return;
  const row = Number(element.dataset.row);
  if (row !== state.current) setCurrent(row);
  if (event.target.closest(".select")) toggleSelected(row);
});
grid.addEventListener("focusin", (event) => {
  const element = event.target.closest(".card");
  if (element && Number(element.dataset.row) !== state.current) setCurrent(Number(element.dataset.row), { focus: false });
});
byId("more").addEventListener("click", () => more());
