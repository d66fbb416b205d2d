// The state of this tab: the last reply of the server, and answers that are on their way to it.

export const state = {
  about: null,
  cards: new Map(), // by row number
  order: [], // rows, as they are on the screen
  current: null,
  selected: new Set(),
  choices: new Map(), // by row number: [name, probability] in order
  pending: new Map(), // answers on their way, by row number
  filters: { status: "unreviewed", label: null, text: "", least: 0, most: 1, sort: "need" },
  clock: 0,
  steps: 0,
  undo: null,
  progress: null,
  found: 0,
  left: 0,
};

// How the page calls the statuses of the table.
export const STATUS_NAMES = { labelled: "labelled", pseudo: "new label", abstained: "left open", outlier: "outlier" };

const listeners = [];

export const onChange = (listener) => listeners.push(listener);

export const changed = (what) => listeners.forEach((listener) => listener(what));

export const currentCard = () => state.cards.get(state.current) ?? null;

export const isOpen = (card) => card.answer === null;

export function codeOf(name) {
  const found = state.progress?.classes.find((entry) => entry.name === name);
  return found ? found.code : undefined;
}

// Rows that a reply should cover: those on the screen, and classes for the cards that come next.
export function view() {
  const at = Math.max(0, state.order.indexOf(state.current));
  return { visible: state.order.slice(0, 1000), since: state.clock, choices: state.order.slice(at, at + 8) };
}

// Store a reply of the server. Cards with an answer on its way stay as they are until the reply to that answer.
export function merge(told, answered = []) {
  const rows = [];
  let relabelled = 0;
  for (const card of told.cards ?? []) {
    const before = state.cards.get(card.row);
    if (state.pending.has(card.row) && !answered.includes(card.row)) continue;
    if (before && before.label !== card.label && !answered.includes(card.row)) {
      relabelled += 1;
      card.flash = true;
    }
    state.cards.set(card.row, card);
    rows.push(card.row);
  }
  if (told.clock !== state.clock) state.choices.clear();
  for (const [row, choices] of Object.entries(told.choices ?? {})) state.choices.set(Number(row), choices);
  state.clock = told.clock;
  state.steps = told.steps;
  state.undo = told.undo;
  state.progress = told.progress;
  changed({ rows, progress: true, choices: true });
  return relabelled;
}

export function filtersFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const key of ["status", "label", "text", "sort"]) if (given.has(key)) state.filters[key] = given.get(key);
  for (const key of ["least", "most"]) if (given.has(key)) state.filters[key] = Math.min(1, Math.max(0, Number(given.get(key)) || 0));
}

export function filtersToAddress() {
  const kept = { status: "unreviewed", label: null, text: "", least: 0, most: 1, sort: "need" };
  const entries = Object.entries(state.filters).filter(([key, value]) => value !== kept[key]);
  history.replaceState(null, "", entries.length ? `#${new URLSearchParams(entries)}` : location.pathname);
}
