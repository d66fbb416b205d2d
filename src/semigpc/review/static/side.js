// The panel beside the cards: filters, and how good the labels of each class are.

import { openRename } from "./dialogs.js";
import { byId, dot, el, icon, number, percent, short } from "./dom.js";
import { start } from "./grid.js";
import { classesInUse, onChange, state } from "./store.js";

const STATUSES = [
  ["unreviewed", "To check"],
  ["abstained", "Left open"],
  ["outlier", "Outliers"],
  ["suspected", "Suspected"],
  ["pseudo", "New labels"],
  ["changed", "Changed"],
  ["reviewed", "Reviewed"],
  ["skipped", "Can’t tell"],
  ["labelled", "Labelled"],
  ["all", "All"],
];
// What each of them means, in a sentence. `sure` is the precision from which labels are given out.
const MEANINGS = {
  abstained: (sure) => `Guessed, but not ${sure}: exports have the guess and no label.`,
  outlier: () => "Unlike everything that is labelled, and no class is probable.",
  suspected: () => "Labels that you brought, and that the other labels contradict.",
  pseudo: (sure) => `Guessed, and ${sure}: exports have the label.`,
  changed: () => "Other labels than at the start.",
  reviewed: () => "Answered on this page.",
  skipped: () => "Answered with “can’t tell” or “none of these”.",
  labelled: () => "Labelled by people, here or before.",
};
const MANY = 12; // classes, from which on they can be searched, and those used last come first
const RECENT = 5; // of these

function set(key, value, focus = false) {
  state.filters[key] = value;
  show();
  return start({ focus }).catch(() => {}); // the header says if the server has gone
}

// --- statuses: radio buttons, of which the arrow keys choose ---------------------------------------------------------------

const radios = STATUSES.map(([status, title]) => {
  const count = el("span", { class: "count" });
  const input = el("input", { type: "radio", name: "status", value: status, onchange: () => set("status", status) });
  return { status, input, count, label: el("label", { class: `status ${status}` }, input, el("span", {}, title), count) };
});
byId("statuses").append(...radios.map((radio) => radio.label));

function meaning(status) {
  const target = state.progress?.target ?? null;
  return MEANINGS[status]?.(target === null ? "sure enough" : `guaranteed at ${percent(target)}`) ?? "";
}

function showStatuses() {
  byId("status-note").textContent = meaning(state.filters.status);
  for (const { status, input, count, label } of radios) {
    const many = state.progress?.counts[status] ?? 0;
    input.checked = state.filters.status === status;
    label.classList.toggle("chosen", input.checked);
    label.classList.toggle("zero", many === 0);
    count.textContent = short(many);
    label.title = `${number(many)}. ${meaning(status)}`;
  }
}

// --- confidence ------------------------------------------------------------------------------------------------------------

function showHistogram() {
  const counts = state.progress?.histogram ?? [];
  const most = Math.max(1, ...counts);
  const { least, most: upper } = state.filters;
  byId("histogram").replaceChildren(...counts.map((count, i) => {
    const bar = el("i", { class: i / counts.length >= least - 1e-9 && (i + 1) / counts.length <= upper + 1e-9 ? "in" : "" });
    bar.style.height = count ? `${Math.max(6, (100 * Math.sqrt(count)) / Math.sqrt(most))}%` : "0";
    return bar;
  }));
  byId("least").value = String(Math.round(100 * least));
  byId("most").value = String(Math.round(100 * upper));
  byId("range-text").textContent = least === 0 && upper === 1 ? "" : `${percent(least)} to ${percent(upper)}`;
}

function onRange(event) {
  let [least, most] = [Number(byId("least").value), Number(byId("most").value)];
  if (least > most) [least, most] = event.target.id === "least" ? [most, most] : [least, least];
  state.filters.least = least / 100;
  state.filters.most = most / 100;
  showHistogram();
}

for (const id of ["least", "most"]) {
  byId(id).addEventListener("input", onRange);
  byId(id).addEventListener("change", () => start().catch(() => {}));
}

// --- classes ---------------------------------------------------------------------------------------------------------------

function precision(entry) {
  const track = el("span", { class: "track", "aria-hidden": "true" });
  if (entry.checked > 0) {
    const band = el("i", { class: "band" });
    band.style.left = `${100 * entry.low}%`;
    band.style.width = `${100 * (entry.high - entry.low)}%`;
    track.append(band, tick(entry.right / entry.checked, "human"));
    const text = `${percent(entry.right / entry.checked)}`;
    const title = `${entry.right} of ${entry.checked} checked were right: 95 % interval ${percent(entry.low)} to ${percent(entry.high)}`;
    return [track, el("span", { class: "precision by-human", title }, text)];
  }
  if (entry.confidence === null) return [track, el("span", { class: "precision" }, "–")];
  track.append(tick(entry.confidence, "model"));
  return [track, el("span", { class: "precision by-model", title: "mean confidence of the model; none has been checked" }, percent(entry.confidence))];
}

function tick(share, by) {
  const mark = el("i", { class: `tick ${by}` });
  mark.style.left = `${100 * share}%`;
  return mark;
}

// By size; where there are many, those used last come first.
function sorted(classes) {
  const recent = classes.length < MANY ? [] : state.recent.slice(0, RECENT);
  const place = (entry) => (recent.includes(entry.name) ? recent.indexOf(entry.name) : RECENT);
  return [...classes].sort((a, b) => place(a) - place(b) || b.labels + b.believed - a.labels - a.believed || a.name.localeCompare(b.name));
}

let drawn = null; // what the list was made of, so that it is not made again under a finger

function showClasses() {
  const text = byId("class-text").value.trim().toLowerCase();
  const classes = classesInUse();
  const made = JSON.stringify([classes, text, state.filters.label, state.recent.slice(0, RECENT)]);
  if (made === drawn) return;
  drawn = made;
  byId("class-text").hidden = classes.length < MANY;
  byId("class-count").textContent = number(classes.length);
  const listed = sorted(classes.filter((entry) => entry.name.toLowerCase().includes(text)));
  byId("classes").replaceChildren(...listed.map(classItem));
  showClassChoice(classes);
}

function classItem(entry) {
  const chosen = state.filters.label === entry.name;
  const title = `${entry.name}: ${entry.labels} labelled, ${entry.believed} predicted, ${entry.granted} of these guaranteed at 80 % or more`;
  const granted = entry.granted > 0 ? short(entry.granted) : "none";
  return el("li", { "data-name": entry.name },
    el("button", { type: "button", class: "class", "aria-pressed": String(chosen), title, onclick: (event) => event.detail < 2 && chooseClass(chosen ? null : entry.name) },
      dot(entry.code), el("span", { class: "name" }, entry.name),
      el("span", { class: "sizes" }, `${short(entry.labels)} + `, el("span", { class: entry.granted > 0 ? "" : "needs" }, granted)), ...precision(entry)),
    el("button", { type: "button", class: "edit", "aria-label": `Rename ${entry.name}`, title: "Rename or merge", onclick: () => openRename(entry.name) }, icon("pencil")));
}

function showClassChoice(classes) {
  const names = classes.map((entry) => entry.name).sort((a, b) => a.localeCompare(b));
  byId("class-choice").replaceChildren(el("option", { value: "" }, "all classes"), ...names.map((name) => el("option", { value: `=${name}` }, name)));
  byId("class-choice").value = state.filters.label === null ? "" : `=${state.filters.label}`;
  byId("next-class").disabled = names.length === 0;
}

const chooseClass = (name, focus) => set("label", name, focus);

// The class with most rows to check, and from there on the next in the list.
export function nextClass() {
  const listed = sorted(classesInUse()).filter((entry) => entry.believed > 0);
  if (listed.length === 0) return;
  const at = listed.findIndex((entry) => entry.name === state.filters.label);
  chooseClass(listed[(at + 1) % listed.length].name, true);
}

byId("class-text").addEventListener("input", showClasses);
byId("class-choice").addEventListener("change", () => chooseClass(byId("class-choice").value.slice(1) || null));
byId("next-class").addEventListener("click", nextClass);
byId("classes").addEventListener("dblclick", (event) => {
  const item = event.target.closest("li");
  if (item) openRename(item.dataset.name);
});

// --- the rest --------------------------------------------------------------------------------------------------------------

export function show() {
  showStatuses();
  showHistogram();
  showClasses();
  byId("nothing").hidden = !state.progress?.nothing;
  byId("nothing").textContent = state.progress?.nothing ?? "";
  byId("sort").value = state.filters.sort;
  if (document.activeElement !== byId("text")) byId("text").value = state.filters.text;
}

let typing = null;
byId("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => set("text", byId("text").value), 250);
});
byId("sort").addEventListener("change", () => set("sort", byId("sort").value));
byId("filters").addEventListener("click", () => {
  const open = document.body.classList.toggle("side-open");
  byId("filters").setAttribute("aria-expanded", String(open));
});

onChange((what) => {
  if (state.mode !== "grid" || !state.progress || !(what.progress || what.mode)) return;
  const typing = document.activeElement === byId("class-choice") || byId("classes").contains(document.activeElement);
  if (what.mode || !typing) show();
  else showStatuses();
});
