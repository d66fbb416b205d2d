// Many cards on the screen: pages of them, the current one, and those that are marked.

import { refresh as askRefresh } from "./actions.js";
import { ask, inTurn } from "./api.js";
import { fill, makeCard, mark } from "./card.js";
import { announce, byId, number, plural, say } from "./dom.js";
import { cardOf, changed, isOpen, merge, onChange, setMode, state, toAddress, view } from "./store.js";

const PAGE = 60;
const MOST = 960; // cards at once: the server scores up to 1000 of them again after each answer
const AHEAD = 12; // cards before the end at which the next page is requested
const KEEPING = ["all", "labelled", "reviewed", "changed", "skipped"]; // statuses that a card still has after an answer
const grid = byId("cards");
let loading = null;
let loaded = null; // the filters that the cards are of, and the step

const elementOf = (row) => byId(`card-${row}`);

// Begin at the top of what the filters show. Cards that were marked stay marked if they are among them.
export async function start({ focus = false, keep = false } = {}) {
  toAddress();
  const asked = JSON.stringify(state.filters);
  const told = await inTurn(() => ask("cards", { ...state.filters, count: PAGE, ...view() }));
  if (asked !== JSON.stringify(state.filters)) return; // the filters changed in the meantime
  sort(told.cards);
  const marked = keep ? [...state.selected] : [];
  state.order = told.cards.map((card) => card.row);
  state.selected = new Set(marked.filter((row) => state.order.includes(row)));
  state.current = keep && state.order.includes(state.current) ? state.current : state.order[0] ?? null;
  take(told);
  grid.replaceChildren(...told.cards.map(makeCard));
  for (const row of state.order) mark(elementOf(row), row);
  loaded = { asked, steps: told.steps };
  showCounts();
  if (!keep) window.scrollTo(0, 0);
  if (focus) focusCurrent();
}

// The server orders rows by what it knew of them before it scored these again.
function sort(cards) {
  const direction = { "most sure": -1, "least sure": 1 }[state.filters.sort];
  return direction ? cards.sort((a, b) => direction * (a.confidence - b.confidence)) : cards;
}

// Show the grid again; its cards are requested anew if answers were given elsewhere since.
export function open() {
  const fresh = loaded !== null && loaded.asked === JSON.stringify(state.filters) && loaded.steps === state.steps;
  if (!fresh) return start({ focus: true, keep: true });
  toAddress();
  show(state.order);
  return focusCurrent();
}

// Load the next page; many calls at once are one.
export function more() {
  if (!loading && state.left > 0) loading = inTurn(nextPage).finally(() => (loading = null));
  return loading ?? Promise.resolve();
}

async function nextPage() {
  tidy();
  if (state.order.length >= MOST) return announce("This page has too many open cards. Answer some of them first.");
  const told = await ask("cards", { ...state.filters, seen: state.order, count: PAGE });
  const fresh = sort(told.cards.filter((card) => !state.order.includes(card.row)));
  state.order.push(...fresh.map((card) => card.row));
  state.current ??= state.order[0] ?? null;
  take(told);
  grid.append(...fresh.map(makeCard));
  changed({ marks: true });
  return showCounts();
}

// Remove the earliest answered cards when there are many.
function tidy() {
  for (const row of [...state.order]) {
    if (state.order.length <= MOST - PAGE) break;
    if (!isOpen(cardOf(row)) && row !== state.current) remove([row]);
  }
}

function remove(rows) {
  const gone = new Set(rows);
  state.order = state.order.filter((row) => !gone.has(row));
  for (const row of rows) elementOf(row)?.remove();
  if (gone.has(state.current)) state.current = state.order[0] ?? null;
  if (state.current !== null && elementOf(state.current)) mark(elementOf(state.current), state.current);
}

// Cards that have just been answered leave a page that shows open ones, and the next page follows.
export function leave(rows) {
  for (const row of rows) state.selected.delete(row);
  loaded = null;
  if (!KEEPING.includes(state.filters.status)) {
    remove(rows);
    state.found = Math.max(0, state.found - rows.length);
    window.scrollTo(0, 0);
    if (state.order.every((row) => state.selected.has(row) || !isOpen(cardOf(row)))) more().catch(() => {});
  } else show(rows);
  showCounts();
  changed({ marks: true });
  focusCurrent();
}

function take(told) {
  state.found = told.found;
  state.left = told.left;
  merge(told);
}

// Request what has changed on the screen.
export async function refresh() {
  const relabelled = merge(await askRefresh());
  if (relabelled && state.mode === "grid") announce(`${plural(relabelled, "label")} on this page changed.`);
}

export function setCurrent(row, { focus = true } = {}) {
  const before = state.current;
  state.current = row;
  for (const each of [before, row]) if (each !== null && elementOf(each)) mark(elementOf(each), each);
  if (focus) focusCurrent();
  if (state.filters.label === null && state.order.indexOf(row) >= state.order.length - AHEAD) more().catch(() => {});
}

export function focusCurrent() {
  if (state.mode !== "grid") return;
  const element = state.current === null ? null : elementOf(state.current);
  if (!element) return byId("found").focus();
  element.firstChild.focus({ preventScroll: true });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
}

export function move(by) {
  if (state.order.length === 0) return;
  const at = state.order.indexOf(state.current);
  setCurrent(state.order[Math.min(state.order.length - 1, Math.max(0, at + by))]);
}

// Cards in one line of the grid, as it is laid out now.
export const columns = () => getComputedStyle(grid).gridTemplateColumns.split(" ").length;

export function toggleMarked(row) {
  if (!state.selected.delete(row)) state.selected.add(row);
  mark(elementOf(row), row);
  changed({ marks: true });
  say(`${state.selected.has(row) ? "Marked" : "Not marked"}, ${plural(state.selected.size, "card")} in all`);
}

export function clearMarks() {
  const rows = [...state.selected];
  state.selected.clear();
  for (const row of rows) if (elementOf(row)) mark(elementOf(row), row);
  changed({ marks: true });
}

export const openLarge = () => state.current !== null && setMode("card");

export function show(rows) {
  for (const row of rows) if (elementOf(row)) fill(elementOf(row), cardOf(row));
}

const WHAT = { unreviewed: "to check", all: "in all", suspected: "suspected to be wrong", pseudo: "with a new label", abstained: "left open", outlier: "outliers" };

function showCounts() {
  const { status, label, text, least, most } = state.filters;
  const whole = label === null && !text && least === 0 && most === 1;
  byId("found").textContent = `${number(state.found)} ${WHAT[status] ?? status}${label === null ? "" : `: ${label}`}`;
  grid.classList.toggle("tiles", label !== null && state.about.images);
  grid.setAttribute("aria-rowcount", String(state.found));
  byId("more").hidden = state.left === 0;
  byId("more").textContent = `Show ${Math.min(PAGE, state.left)} of ${number(state.left)} more`;
  byId("empty").hidden = state.order.length > 0;
  byId("empty").textContent = state.left > 0
    ? "The next page is loading."
    : status === "unreviewed" && whole
      ? "Nothing is left to check. Export writes the tables."
      : status === "unreviewed" && label !== null ? `Nothing of ${label} is left to check.` : "Nothing matches these filters.";
}

onChange((what) => {
  if (what.rows) show(what.rows);
  if (what.progress && state.mode === "grid" && loaded) showCounts();
});

grid.addEventListener("click", (event) => {
  const element = event.target.closest(".card");
  if (!element) return;
  const row = Number(element.dataset.row);
  if (row !== state.current) setCurrent(row);
  if (event.target.closest(".enlarge")) openLarge();
  else if (event.target.closest(".select, .tiles .cell")) toggleMarked(row);
});
grid.addEventListener("focusin", (event) => {
  const element = event.target.closest(".card");
  if (element && Number(element.dataset.row) !== state.current) setCurrent(Number(element.dataset.row), { focus: false });
});
byId("more").addEventListener("click", () => more().catch(() => {}));
