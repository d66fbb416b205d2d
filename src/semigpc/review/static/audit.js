// Rows checked at random: how many of them have been answered, and how many labels were right. Counted are the answers of this
// check alone; the server also knows random rows from the time when the model had seen less.

import { byId, el, percent, plural } from "./dom.js";
import { onUndone } from "./outbox.js";
import { setMode, state } from "./store.js";

const ROWS = 50; // in one check
const KEPT = `semigpc-audit:${location.pathname}`;

let kept = { goal: ROWS, answers: {} }; // by row: whether the label was right (null: cannot tell), and guaranteed

try {
  kept = { ...kept, ...JSON.parse(sessionStorage.getItem(KEPT)) };
} catch {
  // begin anew
}

const keep = () => sessionStorage.setItem(KEPT, JSON.stringify(kept));

const done = () => Object.keys(kept.answers).length;

export const audit = { goal: () => kept.goal, done, over: () => done() >= kept.goal };

// An answer, with the card before and after it. A row that has no label yet says nothing about labels.
export function countAudited(before, after) {
  const told = before.label !== null && before.answer === null && after.answer !== "skipped";
  const earlier = kept.answers[before.row];
  if (earlier) earlier.right = after.answer === "skipped" || earlier.label === null ? null : after.label === earlier.label;
  else kept.answers[before.row] = { label: before.label, right: told ? after.label === before.label : null, guaranteed: before.grade > 0 };
  keep();
}

onUndone((undone, cards) => {
  for (const card of cards) if (card.answer === null) delete kept.answers[card.row];
  keep();
});

export function startAudit() {
  if (audit.over() || state.mode !== "audit") kept = { goal: ROWS, answers: {} };
  keep();
  setMode("audit");
}

// The interval of Wilson for a share, with a certainty of 95 %.
function wilson(right, checked) {
  const z = 1.96;
  const centre = (right + (z * z) / 2) / (checked + z * z);
  const half = (z / (checked + z * z)) * Math.sqrt((right * (checked - right)) / checked + (z * z) / 4);
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}

function result(title, answers, lead) {
  const counted = answers.filter((answer) => answer.right !== null);
  const checked = counted.length;
  const right = counted.filter((answer) => answer.right).length;
  if (checked === 0) return el("div", { class: "result" }, el("h2", {}, title), el("b", { class: "share" }, "\u2013"), el("p", {}, "None of them was among the checked ones."), el("p", { class: "quiet" }, lead));
  const [low, high] = wilson(right, checked);
  return el("div", { class: "result" }, el("h2", {}, title), el("b", { class: "share" }, percent(right / checked)),
    el("p", {}, `${right} of ${checked} right; with 95 % certainty between ${percent(low)} and ${percent(high)}.`), el("p", { class: "quiet" }, lead));
}

export function showAuditEnd() {
  const answers = Object.values(kept.answers);
  byId("end").replaceChildren(
    el("h1", {}, `${plural(answers.length, "image")} checked at random`),
    el("div", { class: "results", role: "status" },
      result(`Guaranteed at ${percent(state.progress.grades.at(-1)?.precision ?? 0.8)} or more`, answers.filter((answer) => answer.guaranteed), "Those that the page guaranteed when it asked."),
      result("All labels", answers, "Also the ones that are left open.")),
    el("p", { class: "quiet" }, "As each label was before your answer. These answers also make the guarantee sharper."),
    el("div", { class: "buttons" },
      el("button", { type: "button", id: "check-more", onclick: () => startAudit() }, `Check ${ROWS} more`),
      el("button", { type: "button", class: "primary", id: "audit-close", onclick: () => setMode("work") }, "Back to labelling")));
  if (!byId("end").contains(document.activeElement)) byId("audit-close").focus({ preventScroll: true });
}
