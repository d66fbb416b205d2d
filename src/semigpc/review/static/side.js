// The panel beside the cards: filters, and how good the labels of each class are.

import { byId, dot, el, number, percent, plural, short } from "./dom.js";
import { start } from "./grid.js";
import { onChange, state } from "./store.js";

const STATUSES = [
  ["unreviewed", "To review"],
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
const MANY = 12; // classes, from which on they can be searched

function set(key, value) {
  state.filters[key] = value;
  show();
  return start();
}

// --- statuses: radio buttons, of which the arrow keys choose ---------------------------------------------------------------

const radios = STATUSES.map(([status, title]) => {
  const count = el("span", { class: "count" });
  const input = el("input", { type: "radio", name: "status", value: status, onchange: () => set("status", status) });
  return { status, input, count, label: el("label", { class: `status ${status}` }, input, el("span", {}, title), count) };
});
byId("statuses").append(...radios.map((radio) => radio.label));

function showStatuses() {
  for (const { status, input, count, label } of radios) {
    const many = state.progress?.counts[status] ?? 0;
    input.checked = state.filters.status === status;
    label.classList.toggle("chosen", input.checked);
    label.classList.toggle("zero", many === 0);
    count.textContent = short(many);
    label.title = number(many);
  }
}

// --- how many labels are guaranteed at each precision ------------------------------------------------------------------------

function showGrades() {
  const { grades, counts } = state.progress;
  byId("guarantees").hidden = grades.length === 0;
  const rows = grades.map((grade) => [`${percent(grade.precision)}`, grade.labels]);
  rows.push(["open", grades.length ? grades.at(-1).open : 0], ["unlike everything", counts.outlier]);
  byId("grades").replaceChildren(...rows.flatMap(([name, labels]) => [el("dt", {}, name), el("dd", {}, number(labels))]));
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
  byId(id).addEventListener("change", () => start());
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

function showClasses() {
  const text = byId("class-text").value.trim().toLowerCase();
  const classes = state.progress?.classes ?? [];
  byId("class-text").hidden = classes.length < MANY;
  byId("class-count").textContent = number(classes.length);
  const sorted = classes.filter((entry) => entry.name.toLowerCase().includes(text));
  sorted.sort((a, b) => b.labels + b.believed - a.labels - a.believed || a.name.localeCompare(b.name));
  byId("classes").replaceChildren(...sorted.map((entry) => {
    const chosen = state.filters.label === entry.name;
    const title = `${entry.name}: ${entry.labels} labelled, ${entry.believed} predicted`;
    return el("li", {}, el("button", { type: "button", "aria-pressed": String(chosen), title, onclick: () => set("label", chosen ? null : entry.name) },
      dot(entry.code), el("span", { class: "name" }, entry.name),
      el("span", { class: "sizes" }, `${short(entry.labels)} + ${short(entry.believed)}`), ...precision(entry)));
  }));
}

byId("class-text").addEventListener("input", showClasses);

// --- the rest --------------------------------------------------------------------------------------------------------------

function showProgress() {
  const { reviewed, total, stale, nothing } = state.progress;
  byId("bar").setAttribute("aria-valuenow", String(reviewed));
  byId("bar").setAttribute("aria-valuemax", String(total));
  byId("bar").firstChild.style.width = `${(100 * reviewed) / Math.max(1, total)}%`;
  byId("progress-text").textContent = `${number(reviewed)} of ${number(total)} reviewed`;
  byId("stale").hidden = stale === 0;
  byId("stale").textContent = `${plural(stale, "row is", "rows are")} being scored again; counts may change.`;
  byId("nothing").hidden = !nothing;
  byId("nothing").textContent = nothing;
  byId("undo").disabled = state.undo === null;
}

function show() {
  showStatuses();
  showHistogram();
  showClasses();
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
  if (!what.progress || !state.progress) return;
  showProgress();
  showGrades();
  if (!byId("classes").contains(document.activeElement)) show();
  else showStatuses();
});
