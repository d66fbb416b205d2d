// Rows checked at random: how many of them have been answered, and what that says about all labels.

import { byId, el, percent, plural } from "./dom.js";
import { onUndone } from "./outbox.js";
import { setMode, state } from "./store.js";

const ROWS = 50; // in one check
const KEPT = `semigpc-audit:${location.pathname}`;

let kept = { goal: ROWS, rows: [] }; // rows answered in this check

try {
  kept = JSON.parse(sessionStorage.getItem(KEPT)) ?? kept;
} catch {
  // begin anew
}

const keep = () => sessionStorage.setItem(KEPT, JSON.stringify(kept));

export const audit = {
  goal: () => kept.goal,
  done: () => kept.rows.length,
  over: () => kept.rows.length >= kept.goal,
};

export function countAudited(row) {
  if (!kept.rows.includes(row)) kept.rows.push(row);
  keep();
}

onUndone((undone, cards) => {
  const back = cards.filter((card) => card.answer === null).map((card) => card.row);
  kept.rows = kept.rows.filter((row) => !back.includes(row));
  keep();
});

export function startAudit() {
  if (audit.over() || state.mode !== "audit") kept = { goal: ROWS, rows: [] };
  keep();
  setMode("audit");
}

function result(title, right, checked, low, high, lead) {
  const words = checked
    ? [el("b", { class: "share" }, percent(right / checked)), el("p", {}, `${right} of ${checked} right${low === null ? "" : `; with 95 % certainty between ${percent(low)} and ${percent(high)}`}.`)]
    : [el("b", { class: "share" }, "–"), el("p", {}, "None of them was among the checked ones.")];
  return el("div", { class: "result" }, el("h2", {}, title), ...words, el("p", { class: "quiet" }, lead));
}

export function showAuditEnd() {
  const told = state.progress.audit;
  const pending = state.outbox.length > 0;
  byId("end").replaceChildren(
    el("h1", {}, `${plural(kept.rows.length, "image")} checked at random`),
    el("div", { class: "results", role: "status" },
      result("Guaranteed labels", told.guaranteed_right, told.guaranteed_checked, told.guaranteed_low, told.guaranteed_high, "Those that the page guarantees at 80 % or more."),
      result("All labels", told.right, told.checked, told.low, told.high, "Also the ones that are left open.")),
    el("p", { class: "quiet" }, pending ? "Some answers are still on their way." : "This counts every random answer so far. They also make the guarantee sharper."),
    el("div", { class: "buttons" },
      el("button", { type: "button", id: "check-more", onclick: () => startAudit() }, `Check ${ROWS} more`),
      el("button", { type: "button", class: "primary", id: "audit-close", onclick: () => setMode("work") }, "Back to labelling")));
  if (!byId("end").contains(document.activeElement)) byId("audit-close").focus({ preventScroll: true });
}
