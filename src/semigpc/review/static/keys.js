// The keyboard. Keys do nothing while text is typed or a window is open, and can be switched off.

import { acceptCurrent, choose, skipCurrent, undo } from "./actions.js";
import { openBulk, openKeys, openPicker, openZoom } from "./dialogs.js";
import { byId } from "./dom.js";
import { clearSelected, columns, move, toggleSelected } from "./grid.js";
import { state } from "./store.js";

const KEPT = "semigpc-review-keys";

const ACTIONS = {
  ArrowRight: () => move(1),
  ArrowLeft: () => move(-1),
  ArrowDown: () => move(columns()),
  ArrowUp: () => move(-columns()),
  Home: () => move(-Infinity),
  End: () => move(Infinity),
  Enter: acceptCurrent,
  Escape: clearSelected,
};

const SINGLE = {
  j: () => move(1),
  k: () => move(-1),
  c: openPicker,
  "/": openPicker,
  s: skipCurrent,
  u: undo,
  a: openBulk,
  z: openZoom,
  x: select,
  " ": select,
  f: () => byId("text").focus(),
  "?": openKeys,
};

function select() {
  if (state.current !== null) toggleSelected(state.current);
}

// Where a key means something else already.
function taken(event) {
  const target = event.target;
  if (document.querySelector("dialog[open]") || target.closest("select, textarea, input:not([type='radio'], [type='range'])")) return true;
  if (target.closest("input") && event.key in ACTIONS) return true;
  return target.closest("input, button, a") !== null && ["Enter", " "].includes(event.key);
}

function action(event) {
  if (event.ctrlKey || event.metaKey) return event.key.toLowerCase() === "z" && !event.shiftKey ? undo : null;
  if (event.altKey) return null;
  if (event.key in ACTIONS) return ACTIONS[event.key];
  if (!byId("single-keys").checked) return null;
  if (/^[1-9]$/.test(event.key)) return () => choose(Number(event.key) - 1);
  return SINGLE[event.key.toLowerCase()] ?? null;
}

document.addEventListener("keydown", (event) => {
  if (taken(event) || event.repeat && event.key === "Enter") return;
  const act = action(event);
  if (!act) return;
  event.preventDefault();
  act();
});

byId("single-keys").checked = localStorage.getItem(KEPT) !== "off";
byId("single-keys").addEventListener("change", () => localStorage.setItem(KEPT, byId("single-keys").checked ? "on" : "off"));
