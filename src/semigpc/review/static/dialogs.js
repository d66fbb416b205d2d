// Windows on top: choose among all classes, rename one, what is guaranteed, the keys, and leaving with the labels.

import { exportTo, rename } from "./actions.js";
import { startAudit } from "./audit.js";
import { announce, byId, el, icon, number, percent, plural, say } from "./dom.js";
import { focusCurrent } from "./grid.js";
import { clean, knownNames, offers, Options, same } from "./names.js";
import { guaranteeInWords } from "./reward.js";
import { classNamed, isLarge, onChange, setMode, state } from "./store.js";

const KEYS = {
  "One image": [
    ["1 to 9", "the class with this key, most probable first"],
    ["letters", "type a name; Enter takes the first of the list"],
    ["Shift Enter", "add the name as it is typed as a new class"],
    ["Enter", "take the first class"],
    ["0", "none of these"],
    ["Space", "you cannot tell"],
    ["Left or Right", "back and forward"],
    ["Up or Down", "mark another class for Enter"],
    ["Esc", "clear the text; leave an image that was opened from the grid"],
  ],
  "Many images": [
    ["Arrows", "move"],
    ["Space or X", "mark, or take the mark off"],
    ["A", "accept the rest of the page"],
    ["M", "move the marked ones to a class"],
    ["Enter or Z", "open the card"],
    ["1 or 2", "keep or change a suspected label"],
    ["N", "next class"],
    ["F", "search"],
    ["Esc", "clear the marks"],
  ],
  Everywhere: [
    ["Ctrl Z", "undo the last answer"],
    ["?", "this list"],
  ],
};

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("close", () => (isLarge() ? byId("stage").focus({ preventScroll: true }) : focusCurrent()));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

// --- choose a class -------------------------------------------------------------------------------------------------------

let onPicked = null;

const picker = new Options(byId("picker-list"), byId("picker-text"), (name) => {
  byId("picker").close();
  onPicked(name);
});

export function openPicker(title, listener) {
  onPicked = listener;
  byId("picker-title").textContent = title;
  byId("picker-text").value = "";
  filterPicker();
  byId("picker").showModal();
  byId("picker-text").focus();
}

function filterPicker() {
  picker.show(offers(clean(byId("picker-text").value)), 0, false);
}

byId("picker-text").addEventListener("input", filterPicker);
byId("picker-text").addEventListener("keydown", (event) => {
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
  if (event.key in moves) picker.move(moves[event.key]);
  else if (event.key === "Enter" && event.shiftKey) picker.takeTyped();
  else if (event.key === "Enter") picker.take();
  else return;
  event.preventDefault();
});

// --- rename or merge ----------------------------------------------------------------------------------------------------------

let renamed = null;

export function openRename(name) {
  renamed = name;
  byId("rename-title").textContent = `Rename “${name}”`;
  byId("rename-text").value = name;
  showRename();
  byId("rename").showModal();
  byId("rename-text").select();
}

// The class that the text names, if it is another one.
function target() {
  const text = clean(byId("rename-text").value);
  return knownNames().find((name) => same(name, text) && name !== renamed) ?? null;
}

function showRename() {
  const text = clean(byId("rename-text").value);
  const other = target();
  const labels = classNamed(renamed)?.labels ?? 0;
  byId("rename-ok").textContent = other ? `Merge into ${other}` : "Rename";
  byId("rename-ok").disabled = text === "" || text === renamed;
  byId("rename-note").textContent = other
    ? `“${other}” exists, with ${plural(classNamed(other)?.labels ?? 0, "label")}. The ${plural(labels, "label")} of “${renamed}” would be added to it, and “${renamed}” would be gone. This can be undone.`
    : `Changes ${plural(labels, "label")} given by people. The name of another class merges the two.`;
  byId("rename-note").classList.toggle("needs", other !== null);
}

byId("rename-text").addEventListener("input", showRename);
byId("rename-cancel").addEventListener("click", () => byId("rename").close("cancel"));
byId("rename").addEventListener("close", () => {
  const text = clean(byId("rename-text").value);
  if (byId("rename").returnValue === "ok" && text && text !== renamed) rename(renamed, target() ?? text, target() !== null);
  byId("rename").returnValue = "";
});

// --- what is guaranteed ---------------------------------------------------------------------------------------------------------

function showGuarantee() {
  byId("guarantee-body").replaceChildren(...guaranteeInWords());
  byId("guarantee-check").hidden = state.progress.state === "cold";
}

export function openGuarantee() {
  showGuarantee();
  byId("guarantee").showModal();
}

onChange((what) => {
  if (what.progress && byId("guarantee").open) showGuarantee();
});

export function checkAtRandom() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  startAudit();
}

// --- keys -----------------------------------------------------------------------------------------------------------------------

const key = (text) => text.split(/( or | to )/).map((part, i) => (i % 2 || part === "letters" ? part : el("kbd", {}, part)));

byId("keys-list").append(...Object.entries(KEYS).flatMap(([title, keys]) =>
  [el("h3", {}, title), el("dl", { class: "keys" }, ...keys.flatMap(([name, does]) => [el("dt", {}, ...key(name)), el("dd", {}, does)]))]));

export const openKeys = () => byId("keys").showModal();

// --- leaving: exports, and the commands that use the labels -----------------------------------------------------------------------

function formatItem(format) {
  const blocked = format.needs_images && !state.about.images;
  const files = el("div", { class: "files", role: "status" });
  const button = el("button", { type: "button", "data-format": format.name, disabled: blocked, onclick: () => write(format, button, files) }, icon("export"), el("span", {}, "Write"));
  return el("li", {}, el("div", { class: "format" }, el("b", {}, format.title), el("code", { class: "quiet" }, format.ends ?? "")), button,
    blocked ? el("p", { class: "quiet files" }, "Needs images.") : files);
}

async function write(format, button, files) {
  button.disabled = true;
  files.replaceChildren("Writing. After new answers a model is fitted first, which takes some seconds.");
  const told = await exportTo(format.name);
  button.disabled = false;
  if (told.error) return files.replaceChildren(el("p", { class: "needs" }, told.error));
  say(`${format.title} is written.`);
  return files.replaceChildren(el("p", {}, `${plural(told.rows, state.about.images ? "image" : "row")}, ${number(told.labels)} with a label:`), ...told.files.map((file) => el("code", {}, file)), ...(told.notes ?? []).map((note) => el("p", { class: "quiet" }, note)));
}

const COMMANDS = { predict: "Label new images", export: "Write one ONNX file that runs without this program" };

function commandItem([name, command]) {
  const button = el("button", { type: "button", class: "copy", onclick: () => copy(command, button) }, icon("copies"), el("span", {}, "Copy"));
  return [el("dt", {}, COMMANDS[name] ?? name), el("dd", {}, el("code", {}, command), button)];
}

async function copy(command, button) {
  const done = await navigator.clipboard.writeText(command).then(() => true, () => false);
  button.querySelector("span").textContent = done ? "Copied" : "Select and copy it";
  say(done ? "Copied." : "The browser does not allow copying.");
}

const labelsAt = (precision) => state.progress.grades.find((grade) => grade.precision === precision)?.labels ?? 0;

export function openLeaving(part) {
  byId("formats").replaceChildren(...(state.about.formats ?? []).map(formatItem));
  byId("commands").replaceChildren(...Object.entries(state.about.commands ?? {}).flatMap(commandItem));
  const target = state.progress.target ?? null;
  const sure = target === null ? "the predicted ones that are sure enough" : `the ${number(labelsAt(target))} others that are guaranteed at ${percent(target)}`;
  const lower = target === null || target < 0.9 ? "" : " For those of 80 %, take the guess where grade is 0.8 or more.";
  byId("export-words").textContent = `Labels are yours and ${sure}. In CSV and Parquet every other ${state.about.images ? "image" : "row"} has a guess, and all have a confidence and the precision (grade) that is guaranteed.${lower}`;
  byId("leaving").showModal();
  byId(part).scrollIntoView({ block: "start" });
  byId(part).querySelector("button:not(:disabled)")?.focus();
}

byId("help").addEventListener("click", openKeys);
byId("explain").addEventListener("click", openGuarantee);
byId("guarantee-check").addEventListener("click", checkAtRandom);
byId("check-random").addEventListener("click", checkAtRandom);
byId("verdict-check").addEventListener("click", checkAtRandom);
byId("export").addEventListener("click", () => openLeaving("export-part"));
byId("verdict-use").addEventListener("click", () => openLeaving("export-part"));
byId("use").addEventListener("click", () => openLeaving("use-part"));
byId("manage").addEventListener("click", () => {
  document.body.classList.add("side-open");
  setMode("grid");
  announce("The pencil beside a class renames it, or merges it with another.");
});
