// One image after the other: the cards that the server chooses, and the images that come next, loaded before they are shown.

import * as actions from "./actions.js";
import { ask, connection, inTurn, onConnection, Refused } from "./api.js";
import { audit, countAudited, showAuditEnd } from "./audit.js";
import { bars, because, image, whyOf } from "./card.js";
import { announce, byId, el, number, percent, say } from "./dom.js";
import { leaveField, onChosen, showField } from "./field.js";
import { more as moreOfGrid, setCurrent } from "./grid.js";
import { onUndone } from "./outbox.js";
import { cardOf, isLarge, isOpen, merge, onChange, rowsOf, state, trail, view } from "./store.js";

const BATCH = 10; // cards requested at once
const LOW = 5; // cards ahead below which more are requested
const EARLY = 30; // answers up to which the cards ahead are chosen anew after each
const PRELOADED = 5; // images
const SIZE = 1600; // pixels of the image

let fetching = false;
let exhausted = { work: false, audit: false };
let chosenAt = -1; // the step after which the cards ahead were chosen
const images = new Map(); // by row, loaded or on their way
let shownRow = null;
let shownReasons = null;
let rankedLast = "";

export const row = () => {
  const { rows, at } = trail();
  return rows[at] ?? null;
};

// --- the cards that come next ------------------------------------------------------------------------------------------------

export async function fill() {
  if (!isLarge() || fetching || !connection.up) return;
  if (state.mode === "card" && trail().rows.length - trail().at <= LOW) moreOfGrid().catch(() => {});
  if (state.mode === "card") return rank();
  const { rows, at } = trail();
  const ahead = rows.length - at - 1;
  const stale = state.mode === "work" && state.progress && state.progress.reviewed < EARLY && chosenAt !== state.steps;
  if (exhausted[state.mode] ? ahead >= 0 || chosenAt === state.steps : ahead >= LOW && !stale) return;
  fetching = true;
  const mode = state.mode;
  const reached = await inTurn(() => fetchNext(mode)).then(() => true, (error) => problem(error));
  fetching = false;
  if (!reached) return show();
  rank();
  return fill();
}

// Ask how the classes rank for the cards that come next, if no reply has said so.
function rank() {
  const late = view().choices.filter((each) => !state.choices.has(each));
  const asked = `${state.clock} ${late}`;
  if (late.length === 0 || asked === rankedLast) return;
  rankedLast = asked;
  actions.refresh().then(merge).catch(() => {});
}

// A server that has gone is reported by the header.
function problem(error) {
  if (error instanceof Refused) announce(error.message);
  return false;
}

async function fetchNext(mode) {
  const own = state.trails[mode];
  if (!own || state.mode !== mode) return;
  const keep = () => own.at + (state.progress && state.progress.reviewed < EARLY ? 2 : LOW + 1);
  const kept = own.rows.slice(0, keep());
  const open = kept.filter((each) => !cardOf(each) || isOpen(state.cards.get(each)));
  const told = await ask("next", { mode, seen: open, count: BATCH, ...view() });
  chosenAt = told.steps;
  const still = own.rows.slice(0, Math.max(kept.length, own.at + 1)); // the user may have moved on
  const fresh = told.cards.map((card) => card.row).filter((each) => !still.includes(each));
  own.rows = [...still, ...fresh];
  exhausted[mode] = fresh.length === 0;
  merge(told);
  preload();
  const late = fresh.filter((each) => !state.choices.has(each));
  if (late.length > 0) merge(await ask("refresh", { ...view(), choices: late })); // how the classes rank for them
}

function preload() {
  const { rows, at } = trail();
  for (const each of rows.slice(at, at + 1 + PRELOADED)) pictureOf(each);
  for (const each of [...images.keys()]) if (!rows.slice(Math.max(0, at - 2), at + 2 * BATCH).includes(each)) images.delete(each);
}

function pictureOf(each) {
  const card = state.cards.get(each);
  if (!card) return null;
  if (!images.has(each)) images.set(each, el("div", { class: "frame" }, card.values ? bars(card.values) : image(each, SIZE, { eager: true })));
  return images.get(each);
}

// --- moving ------------------------------------------------------------------------------------------------------------------

export function go(by) {
  const { rows, at } = trail();
  const to = Math.max(0, Math.min(rows.length - (state.mode === "card" ? 1 : 0), at + by));
  place(to);
}

function place(to) {
  if (state.mode === "card") setCurrent(state.order[to] ?? state.current, { focus: false });
  else state.trails[state.mode].at = to;
  show();
  fill();
}

// To the next card that waits for an answer.
function advance() {
  const { rows, at } = trail();
  let to = at + 1;
  while (to < rows.length && cardOf(rows[to]) && !isOpen(cardOf(rows[to]))) to += 1;
  if (state.mode === "card") to = Math.min(to, rows.length - 1);
  place(to);
  leaveField();
}

export function goTo(target) {
  const { rows, at } = trail();
  if (state.mode === "card") return rows.includes(target) && place(rows.indexOf(target));
  if (!rows.includes(target)) rows.splice(at, 0, target);
  return place(rows.indexOf(target));
}

// Show the large view, from the first card on that waits for an answer.
export async function enter() {
  const current = row();
  if (state.mode !== "card" && current !== null && !isOpen(cardOf(current))) advance();
  byId("stage").focus({ preventScroll: true });
  await fill();
}

// --- answers -------------------------------------------------------------------------------------------------------------------

function answered(give) {
  const current = row();
  if (current === null || !state.cards.has(current) || byId("ask").hidden) return;
  if (!connection.up && byId("picture").querySelector("[data-lost]")) return void announce("This image is not loaded: it comes when the server is back.");
  const before = cardOf(current);
  give(current);
  if (state.mode === "audit") countAudited(before, cardOf(current));
  advance();
}

const choose = (label) => answered((current) => actions.answer(current, label));
export const skip = () => answered(actions.skip);
export const none = () => answered(actions.none);

onChosen(choose);

onUndone((undone, cards) => {
  const back = cards.find((card) => undone?.ids.includes(card.id));
  if (isLarge() && back && undone.count === 1) goTo(back.row);
});

// --- what is shown ---------------------------------------------------------------------------------------------------------------

export function show() {
  if (!isLarge()) return;
  const current = row();
  const card = current === null ? null : cardOf(current);
  const over = state.mode === "audit" && audit.over();
  byId("end").hidden = card !== null && !over;
  byId("stage").hidden = byId("ask").hidden = card === null || over;
  showProgress();
  if (over) return showAuditEnd();
  if (card === null) return showEnd();
  showCard(card);
  showField(card);
  if (shownRow !== current) {
    shownRow = current;
    window.scrollTo(0, 0);
    const first = state.choices.get(current)?.[0];
    say(`${byId("live").textContent.startsWith("Saved") ? `${byId("live").textContent} ` : ""}Next image. ${card.why ? `${card.why}. ` : ""}${first && first[1] !== null ? `Likely ${first[0]}, ${percent(first[1])}.` : ""}`);
  }
  return preload();
}

function showCard(card) {
  const picture = pictureOf(card.row);
  const holder = byId("picture");
  if (holder.firstChild !== picture) holder.replaceChildren(picture);
  holder.dataset.answer = card.answer ?? "";
  byId("why").replaceChildren(...whyOf(card));
  byId("why").dataset.kind = card.kind || (card.suspected ? "suspected" : "");
  byId("stage-id").replaceChildren(el("bdi", {}, card.id));
  byId("stage-id").title = card.id;
  const reasons = JSON.stringify([card.row, card.reasons, card.sides, card.answer]);
  if (reasons !== shownReasons) byId("because").replaceChildren(...because(card));
  shownReasons = reasons;
  byId("back").disabled = trail().at === 0;
}

function showProgress() {
  const inAudit = state.mode === "audit";
  byId("leave").hidden = state.mode === "work";
  byId("leave").querySelector("span").textContent = inAudit ? "End the check" : "Back to all";
  byId("audit-bar").hidden = !inAudit;
  byId("place").textContent = "";
  if (inAudit) {
    const done = audit.done();
    byId("audit-bar").setAttribute("aria-valuenow", String(done));
    byId("audit-bar").setAttribute("aria-valuemax", String(audit.goal()));
    byId("audit-bar").firstElementChild.style.width = `${(100 * done) / audit.goal()}%`;
    byId("place").textContent = `Checked at random: ${done} of ${audit.goal()}`;
  } else if (state.mode === "card") byId("place").textContent = `${number(trail().at + 1)} of ${number(state.found)}`;
}

function showEnd() {
  const waiting = !connection.up || fetching || !exhausted[state.mode];
  const passed = state.progress ? state.progress.counts.unreviewed : 0;
  const lines = waiting
    ? [el("h1", {}, connection.up ? "One moment" : "No further image is loaded"), el("p", {}, connection.up ? "The next image is being chosen." : "Your answers wait here, and the next image comes when the server is back.")]
    : [el("h1", {}, "Every image has been asked"), el("p", {}, passed ? "Go back with the arrow for those that you passed over, or look at the labels under Check." : "Export writes the tables.")];
  byId("end").replaceChildren(...lines);
}

onChange((what) => {
  if (!isLarge()) return;
  if (what.refused?.body.row !== undefined || what.refused?.body.rows?.length === 1) goTo(rowsOf(what.refused)[0]);
  if (what.rows || what.choices || what.outbox || what.mode) show();
  if (what.rows) fill();
});
onConnection((up) => {
  if (!up) return show();
  images.clear();
  return fill();
});
byId("back").addEventListener("click", () => go(-1));
byId("forward").addEventListener("click", () => go(1));
byId("none").addEventListener("click", none);
byId("skip").addEventListener("click", skip);

export function forgetEnds() {
  exhausted = { work: false, audit: false };
  chosenAt = -1;
}
