// The state of this tab: the last reply of the server, and answers that are on their way to it.

export const state = {
  about: null,
  mode: "work", // "work": the next image; "audit": images at random; "grid": many at once; "card": one of the grid, enlarged
  cards: new Map(), // by row number, as the server knows them
  outbox: [], // answers that the server has not confirmed yet, in order
  choices: new Map(), // by row number: [name, probability] in order
  recent: [], // names of classes, the one used last first
  trails: { work: { rows: [], at: 0 }, audit: { rows: [], at: 0 } }, // rows asked so far, and those that come next
  order: [], // rows of the grid, as they are on the screen
  current: null, // row of the grid
  selected: new Set(), // rows of the grid that are marked
  filters: { status: "unreviewed", label: null, text: "", least: 0, most: 1, sort: "most sure" },
  clock: 0,
  steps: 0,
  undo: null,
  progress: null,
  found: 0,
  left: 0,
};

// How the page calls the statuses of the table.
export const STATUS_NAMES = { labelled: "labelled", pseudo: "new label", abstained: "left open", outlier: "outlier" };

const USUAL = { ...state.filters };
const AHEAD = 8; // cards that come next and are kept current
const MOST_VISIBLE = 1000; // rows that the server accepts in one request

const listeners = [];

export const onChange = (listener) => listeners.push(listener);

export const changed = (what) => listeners.forEach((listener) => listener(what));

export const isOpen = (card) => card.answer === null;

export const isLarge = () => state.mode !== "grid";

export const rowsOf = (entry) => entry.body.rows ?? (entry.body.row === undefined ? [] : [entry.body.row]);

export const isPending = (row) => state.outbox.some((entry) => rowsOf(entry).includes(row));

// A card with the answers that are on their way to the server.
export function cardOf(row) {
  let card = state.cards.get(row) ?? null;
  if (card === null) return null;
  for (const entry of state.outbox) if (rowsOf(entry).includes(row)) card = { ...card, ...answered(card, entry) };
  return card;
}

function answered(card, { question, body }) {
  const sure = { status: "labelled", confidence: 1, suspected: false, grade: 0 };
  if (question === "accept") return { ...sure, label: body.labels[body.rows.indexOf(card.row)], answer: card.answer === "corrected" ? "corrected" : "accepted" };
  if (question === "skip") return { answer: "skipped" };
  if (question === "none") return { answer: "none", label: null, confidence: 0, grade: 0 };
  return { ...sure, label: body.label, answer: "corrected" };
}

export function classNamed(name) {
  return state.progress?.classes.find((entry) => entry.name === name);
}

// Without those that were renamed or undone.
export const classesInUse = () => (state.progress?.classes ?? []).filter((entry) => entry.labels + entry.believed > 0);

export const codeOf = (name) => classNamed(name)?.code;

export function setMode(mode) {
  state.mode = mode;
  toAddress();
  changed({ mode: true });
}

// The rows that the large view goes through, and the place in them.
export function trail() {
  if (state.mode === "card") return { rows: state.order, at: Math.max(0, state.order.indexOf(state.current)) };
  return state.trails[state.mode] ?? { rows: [], at: 0 };
}

// Rows that a reply should cover: those on the screen, and classes for the cards that come next.
export function view() {
  const { rows, at } = trail();
  const next = rows.slice(at, at + AHEAD);
  const visible = state.mode === "grid" || state.mode === "card" ? state.order : rows.slice(Math.max(0, at - 1), at + AHEAD);
  return { visible: visible.slice(0, MOST_VISIBLE), since: state.clock, choices: next };
}

// Store a reply of the server, and return how many labels it changed besides the answered rows.
export function merge(told, own = []) {
  const rows = [];
  let relabelled = 0;
  for (const card of told.cards ?? []) {
    const before = state.cards.get(card.row);
    if (before && before.label !== card.label && !own.includes(card.row) && !isPending(card.row)) {
      relabelled += 1;
      card.flash = true;
    }
    if (before && !card.why) Object.assign(card, { why: before.why, kind: before.kind });
    state.cards.set(card.row, card);
    rows.push(card.row);
  }
  const restarted = told.clock < state.clock; // the server counts from the beginning, so ask for everything again
  for (const [row, choices] of Object.entries(told.choices ?? {})) state.choices.set(Number(row), choices);
  state.clock = restarted ? 0 : told.clock;
  state.steps = told.steps;
  state.undo = told.undo;
  state.progress = told.progress;
  changed({ rows, progress: true, choices: true });
  return relabelled;
}

export function modeFromAddress() {
  const mode = new URLSearchParams(location.hash.slice(1)).get("mode");
  return ["work", "audit", "grid"].includes(mode) ? mode : "work";
}

export function filtersFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state.filters, USUAL);
  for (const key of ["status", "label", "text", "sort"]) if (given.has(key)) state.filters[key] = given.get(key);
  for (const key of ["least", "most"]) if (given.has(key)) state.filters[key] = Math.min(1, Math.max(0, Number(given.get(key)) || 0));
}

export function toAddress() {
  const filters = state.mode === "grid" || state.mode === "card" ? Object.entries(state.filters).filter(([key, value]) => value !== USUAL[key]) : [];
  const mode = state.mode === "card" ? "grid" : state.mode;
  history.replaceState(null, "", `#${new URLSearchParams([["mode", mode], ...filters])}`);
}
