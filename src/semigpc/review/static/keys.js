// The keyboard. Keys do nothing while text is typed or a window is open. Those of one character can be switched off.

import { undo } from "./actions.js";
import { openKeys } from "./dialogs.js";
import { acceptRest, moveMarked, settle } from "./dock.js";
import { byId } from "./dom.js";
import { clearField, fieldInUse, moveMark, startTyping, takeOption } from "./field.js";
import { clearMarks, columns, move, openLarge, toggleMarked } from "./grid.js";
import { nextClass } from "./side.js";
import { isLarge, setMode, state } from "./store.js";
import { go, none, skip } from "./work.js";

const KEPT = "semigpc-review-keys";

const LARGE = {
  ArrowRight: () => go(1),
  ArrowLeft: () => go(-1),
  ArrowDown: () => moveMark(1),
  ArrowUp: () => moveMark(-1),
  Enter: () => takeOption(),
  Escape: () => (fieldInUse() ? clearField() : state.mode === "card" && setMode("grid")),
};

const GRID = {
  ArrowRight: () => move(1),
  ArrowLeft: () => move(-1),
  ArrowDown: () => move(columns()),
  ArrowUp: () => move(-columns()),
  Home: () => move(-Infinity),
  End: () => move(Infinity),
  Enter: openLarge,
  Escape: clearMarks,
};

const mark = () => state.current !== null && toggleMarked(state.current);

const GRID_LETTERS = {
  j: () => move(1),
  k: () => move(-1),
  u: undo,
  a: acceptRest,
  m: moveMarked,
  n: nextClass,
  z: openLarge,
  x: mark,
  " ": mark,
  1: () => settle(0),
  2: () => settle(1),
  f: () => byId("text").focus(),
  "/": () => byId("text").focus(),
};

// Where a key means something else already.
function taken(event) {
  const target = event.target;
  if (document.querySelector("dialog[open]") || target.closest("select, textarea")) return true;
  if (target === byId("name")) return !largeKeyInField(event);
  if (target.closest("input:not([type='radio'], [type='range'])")) return true;
  if (target.closest("input") && (event.key in LARGE || event.key in GRID)) return true;
  return target.closest("input, button, a") !== null && ["Enter", " "].includes(event.key);
}

// Keys that keep their meaning while the field has the focus but is empty.
function largeKeyInField(event) {
  if (fieldInUse()) return false;
  return ["ArrowLeft", "ArrowRight"].includes(event.key) || ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z");
}

function large(event) {
  if (event.key in LARGE) return LARGE[event.key];
  if (byId("ask").hidden) return null;
  if (["Process", "Unidentified"].includes(event.key)) return startTyping; // a name composed of several keys
  if ([...event.key].length !== 1 || !byId("single-keys").checked) return null;
  if (event.key === "0") return none;
  if (event.key === " ") return skip;
  if (/^[1-9]$/.test(event.key)) return byId("options").children[Number(event.key) - 1] ? () => takeOption(Number(event.key) - 1) : startTyping;
  return event.key === "?" ? openKeys : startTyping;
}

function grid(event) {
  if (event.key in GRID) return GRID[event.key];
  if (event.key === "?") return openKeys;
  return byId("single-keys").checked ? GRID_LETTERS[event.key.toLowerCase()] ?? null : null;
}

function action(event) {
  if (event.ctrlKey || event.metaKey) return event.key.toLowerCase() === "z" && !event.shiftKey ? undo : null;
  if (event.altKey) return null;
  return isLarge() ? large(event) : grid(event);
}

document.addEventListener("keydown", (event) => {
  if (taken(event) || (event.repeat && event.key === "Enter")) return;
  const act = action(event);
  if (!act) return;
  if (act !== startTyping) event.preventDefault();
  act();
});

byId("single-keys").checked = localStorage.getItem(KEPT) !== "off";
byId("single-keys").addEventListener("change", () => localStorage.setItem(KEPT, byId("single-keys").checked ? "on" : "off"));
