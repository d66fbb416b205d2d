// The question beside an image: a field in which a name is typed, and below it the likely classes with their digits.

import { byId } from "./dom.js";
import { clean, offers, Options, ranked } from "./names.js";
import { cardOf, state } from "./store.js";

const MOST_KEYS = 9;
const TYPED = 30; // names listed while text is typed

const field = byId("name");
const listeners = [];
let shown = { row: null, choices: [] };

export const onChosen = (listener) => listeners.push(listener);

const options = new Options(byId("options"), field, (name) => listeners.forEach((listener) => listener(name)));

const predicted = (choices) => choices.some(([, share]) => share !== null);

// While a card is shown its classes keep their places, so that no digit changes its meaning under a finger: later replies only
// add to them, or bring new probabilities in the same order, or the first probabilities of all.
function keep(row, fresh) {
  const before = shown.row === row ? shown.choices : [];
  const same = before.every(([name], i) => fresh[i]?.[0] === name);
  const shares = new Map(predicted(before) ? before : fresh);
  const added = fresh.filter(([name]) => !before.some(([other]) => other === name));
  const kept = [...before, ...added].map(([name]) => [name, shares.get(name) ?? null]);
  shown = { row, choices: same ? fresh : kept.slice(0, MOST_KEYS) };
  return shown.choices;
}

// The first of the classes, or the most probable one where they had their places before there were probabilities.
const likeliest = (entries) => entries.reduce((best, entry, i) => ((entry.share ?? 0) > (entries[best].share ?? 0) ? i : best), 0);

export function showField(card) {
  const fresh = shown.row !== card.row;
  const told = state.choices.get(card.row);
  const early = !told && card.label !== null; // its other classes are on their way
  const choices = keep(card.row, early ? [[card.label, null]] : ranked(told ?? []));
  if (fresh) field.value = "";
  showOptions(card, choices, fresh);
  showWords(card, choices);
}

function showOptions(card, choices, fresh) {
  const text = clean(field.value);
  const entries = text
    ? offers(text, choices).slice(0, TYPED)
    : choices.map(([name, share]) => ({ name, share, fresh: false, chosen: card.answer !== null && name === card.label }));
  const marked = fresh ? -1 : options.marked;
  const before = text ? Math.max(0, marked) : marked < 0 ? likeliest(entries) : marked;
  const first = text || predicted(choices) ? Math.min(before, entries.length - 1) : fresh ? -1 : Math.min(options.marked, entries.length - 1);
  options.show(entries, first, !text);
}

const ANSWERS = { skipped: "You could not tell", none: "None of these, you said" };
const TEACH = "Digits choose, letters type a name, Enter takes the first, arrows go back and forward.";
const narrow = matchMedia("(max-width: 900px)");

function showWords(card, choices) {
  const count = choices.length;
  const named = card.answer === "accepted" || card.answer === "corrected";
  byId("question").textContent = card.answer === null ? "What is this?" : named ? `You said: ${card.label}` : ANSWERS[card.answer];
  const press = count === 1 ? ", or press 1" : `, or press 1 to ${count}`;
  field.placeholder = count === 0 ? "Type a name and press Enter" : `Type a name${narrow.matches ? "" : press}`;
  byId("teach").textContent = teach(card, choices);
  byId("none").hidden = count === 0;
}

function teach(card, choices) {
  if (card.answer !== null) return "Another answer replaces it; the right arrow goes on.";
  if (state.progress?.state !== "cold") return narrow.matches ? "" : TEACH;
  if (choices.length === 0) return "Type a name and press Enter: it becomes a class, and gets a key.";
  return `${narrow.matches ? "Tap" : "Press 1 for"} ${choices[0][0]}, or type another name and press Enter. From the second class on, the page labels the rest.`;
}

export function leaveField() {
  field.value = "";
  field.blur();
  byId("stage").focus({ preventScroll: true });
}

// --- keys: those that reach the field, and those that are pressed while it is not in use --------------------------------------

export const fieldInUse = () => clean(field.value) !== "";

export const takeOption = (position) => options.take(position);
export const moveMark = (by) => options.move(by);

export function clearField() {
  field.value = "";
  field.dispatchEvent(new Event("input"));
  leaveField();
}

export const startTyping = () => field.focus(); // the key itself goes into the field, which has the focus by then

field.addEventListener("input", () => {
  options.marked = 0;
  const card = shown.row === null ? null : cardOf(shown.row);
  if (card) showOptions(card, shown.choices, false);
});

field.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in moves) moveMark(moves[event.key]);
  else if (event.key === "Enter" && event.shiftKey) options.takeTyped();
  else if (event.key === "Enter") {
    if (!event.repeat) takeOption();
  } else if (event.key === "Escape") clearField();
  else return;
  event.preventDefault();
  event.stopPropagation();
});
