// The line in the header that says what the answers have brought: guaranteed labels at each grade, and what is still open.

import { byId, el, number, percent, plural } from "./dom.js";
import { onChange, state } from "./store.js";

const SHADES = ["g99", "g95", "g90", "g80"];

const shade = (i) => SHADES[Math.min(i, SHADES.length - 1)];

const figure = (name, value, colour, title, extra = null) =>
  el("div", { class: "figure", title }, el("dt", {}, el("i", { class: `swatch ${colour}`, "aria-hidden": "true" }), name), el("dd", {}, number(value), extra));

const signed = (value) => `${value < 0 ? "\u2212" : "+"}${number(Math.abs(value))}`;

export function gainInWords({ gain }) {
  if (!gain || gain.labels === 0) return "";
  return `${signed(gain.labels)} with the last ${gain.answers === 1 ? "answer" : plural(gain.answers, "answer")}`;
}

let before = null; // the gain shown last, so that only a new one moves

function gainOf(grade, gain) {
  if (!gain || gain.labels === 0 || gain.precision !== grade.precision) return null;
  const text = signed(gain.labels);
  const fresh = before !== text;
  before = text;
  return el("span", { class: `plus${gain.labels < 0 ? " less" : ""}${fresh ? " pop" : ""}`, title: `${gainInWords({ gain })}, at ${percent(gain.precision)}, among the images that are still open` }, text);
}

function showGrades({ grades, counts, gain }) {
  const labelled = figure("labelled", counts.labelled, "by-you", "labelled by people");
  byId("grades").replaceChildren(labelled, ...grades.map((grade, i) =>
    figure(percent(grade.precision), grade.labels, shade(i), `${plural(grade.labels, "new label")} of which at least ${percent(grade.precision)} are right: guaranteed`, gainOf(grade, gain))));
}

function showBar({ grades, counts }) {
  const total = Math.max(1, state.about.rows);
  const counted = [["by-you", counts.labelled], ...grades.map((grade, i) => [shade(i), grade.labels - (i ? grades[i - 1].labels : 0)])];
  const bar = byId("bar");
  if (bar.children.length !== counted.length) bar.replaceChildren(...counted.map(([colour]) => el("i", { class: colour })));
  counted.forEach(([, count], i) => (bar.children[i].style.width = `${(100 * Math.max(0, count)) / total}%`));
  const words = grades.map((grade) => `${number(grade.labels)} guaranteed at ${percent(grade.precision)}`);
  bar.setAttribute("aria-label", [`Of ${number(total)} rows ${number(counts.labelled)} are labelled`, ...words].join(", "));
}

function outlook({ state: phase, expected, without, classes, counts }) {
  const noun = state.about.images ? "image" : "row";
  const none = `${plural(state.about.rows, noun)}, none labelled yet. Name what you see; from the second class on, the page labels the rest.`;
  if (phase === "cold") return [el("span", { class: "quiet" }, classes.length === 0 ? none : "One more class, and the page labels the rest.")];
  if (expected === null) return [el("span", { class: "quiet" }, `Labelling the other ${plural(state.about.rows - counts.labelled, noun)}. Go on meanwhile.`)];
  const parts = [el("span", { title: "How many of all labels are right, as the model expects; labels by people count as right." }, el("b", {}, percent(expected)), " of all expected right")];
  if (without > 0) parts.push(el("span", { class: "needs", title: "Classes of which no new label is guaranteed at 80 % yet." }, "none guaranteed for ", el("b", {}, plural(without, "class", "classes"))));
  return parts;
}

function show() {
  const { progress } = state;
  const phase = progress.state;
  byId("reward").classList.toggle("cold", phase === "cold");
  byId("reward").classList.toggle("fitting", phase === "fitting");
  byId("reward").setAttribute("aria-busy", String(phase === "fitting"));
  showGrades(progress);
  showBar(progress);
  byId("gain").textContent = phase === "cold" ? "" : gainInWords(progress);
  byId("gain").classList.toggle("less", (progress.gain?.labels ?? 0) < 0);
  byId("outlook").replaceChildren(...outlook(progress));
}

// --- the same in sentences ---------------------------------------------------------------------------------------------------

export function guaranteeInWords() {
  const { grades, expected, without, drawn, nothing, audit, classes } = state.progress;
  if (state.progress.state === "cold") return [el("p", {}, "Nothing is predicted yet. Once two classes are named, every other image gets a label, and this says how many of them are sure to be right.")];
  const rows = grades.map((grade) => el("tr", {}, el("td", {}, number(grade.labels)), el("td", {}, `new labels of which at least ${percent(grade.precision)} are right`)));
  const parts = [el("table", { class: "plain" }, el("tbody", {}, ...rows)), el("p", { class: "quiet" }, "Guaranteed means: in at least 9 of 10 projects, that share of these labels or more is right. Each line holds the labels of the lines above it. Labels by people are not counted. Numbers fall when a class is new, or when answers show that the model was too sure.")];
  if (expected !== null) parts.push(el("p", {}, "Expected: ", el("b", {}, percent(expected)), ` of all ${number(state.about.rows)} labels are right, with those by people. This is the model’s own estimate.`));
  if (drawn?.note) parts.push(el("p", {}, drawn.note));
  if (audit?.checked) parts.push(el("p", {}, ...auditInWords(audit)));
  const needy = classes.filter((entry) => entry.labels > 0 && entry.granted === 0).map((entry) => entry.name);
  if (without > 0) parts.push(el("p", { class: "needs" }, nothing || `No label is guaranteed yet for: ${needy.slice(0, 12).join(", ")}${needy.length > 12 ? ` and ${needy.length - 12} more` : ""}.`));
  return parts;
}

export function auditInWords({ checked, right, low, high }) {
  const range = low === null ? "" : ` (${percent(low)} to ${percent(high)} with 95 % certainty)`;
  return [`Of the images that were drawn at random, ${right} of ${checked} guesses were right before you answered: `, el("b", {}, percent(right / checked)), `${range}.`];
}

onChange((what) => {
  if (what.progress && state.progress) show();
});
