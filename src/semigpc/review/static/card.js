// One card: the image or the values of a row, its predicted label, and the labelled rows that are the reason. Where two
// classes compete for a given label, both stand side by side, each with its probability, its reasons and its key.

import { connection, onConnection } from "./api.js";
import { dot, el, fitted, icon, percent, side, signed } from "./dom.js";
import { cardOf, codeOf, isPending, state, STATUS_NAMES } from "./store.js";

const RETRY = 2000; // milliseconds, after which an image that did not come is requested again

const ANSWERS = {
  accepted: ["check", "accepted"],
  corrected: ["pencil", "corrected"],
  skipped: ["unsure", "cannot tell"],
  none: ["close", "none of these"],
};

// The two classes of a suspected label.
export const SIDES = [
  ["given", "The label in the table, and its probability judged by all other labels.", "Keep"],
  ["predicted", "The class that all other labels predict.", "Change"],
];

export const contested = (card) => Boolean(card.sides) && !card.answer;

export function makeCard({ row }) {
  const card = cardOf(row);
  const cell = el("div", { role: "gridcell", class: "cell", tabindex: "-1" });
  const element = el("div", { role: "row", class: "card", id: `card-${card.row}`, "data-row": card.row }, cell);
  fill(element, card);
  return element;
}

export function fill(element, card) {
  const cell = element.firstChild;
  const shot = cell.querySelector(".shot") ?? makeShot(card); // kept, so that an image does not flicker
  if (contested(card)) cell.replaceChildren(shot, sides(card), foot(card));
  else cell.replaceChildren(shot, becauseOf(card), verdict(card), foot(card));
  element.classList.toggle("contested", contested(card));
  shot.querySelector(".badge")?.remove();
  if (card.answer) shot.append(el("span", { class: "badge" }, icon(ANSWERS[card.answer][0]), ANSWERS[card.answer][1]));
  element.dataset.answer = card.answer ?? "";
  element.dataset.status = card.status;
  element.classList.toggle("pending", isPending(card.row));
  cell.setAttribute("aria-label", spoken(card));
  mark(element, card.row);
  if (card.flash) {
    card.flash = false;
    element.classList.remove("flash");
    void element.offsetWidth; // so that the animation starts again
    element.classList.add("flash");
  }
}

// Whether it is the current one, and whether it is selected.
export function mark(element, row) {
  const selected = state.selected.has(row);
  element.classList.toggle("current", row === state.current);
  element.classList.toggle("selected", selected);
  element.firstChild.tabIndex = row === state.current ? 0 : -1;
  element.firstChild.setAttribute("aria-selected", String(selected));
  element.querySelector(".select")?.setAttribute("aria-pressed", String(selected));
}

function makeShot(card) {
  const shot = el("div", { class: "shot" });
  if (card.values) shot.append(bars(card.values));
  else shot.append(image(card.row, 384), el("button", { type: "button", class: "enlarge", tabindex: "-1", "aria-label": "Open" }, icon("zoom")));
  shot.append(el("button", { type: "button", class: "select", tabindex: "-1", "aria-label": "Mark" }, icon("close")));
  return shot;
}

export function image(row, size, { eager = false } = {}) {
  const shown = el("img", { src: `images/${size}/${row}`, alt: "", loading: eager ? "eager" : "lazy", decoding: "async", draggable: "false" });
  shown.addEventListener("error", () => replaceBroken(shown, row, size, eager));
  return shown;
}

async function replaceBroken(shown, row, size, eager) {
  let reason = "This image cannot be shown.";
  let lost = null;
  try {
    reason = (await (await fetch(shown.src)).json()).error ?? reason;
  } catch {
    lost = `${size}/${row}`; // the server has gone, as the header says
    reason = "This image comes when the server is back.";
  }
  const broken = el("div", { class: "broken", title: reason, "data-lost": lost }, icon("broken"), el("span", {}, reason));
  shown.replaceWith(broken);
  if (lost && connection.up) setTimeout(() => broken.replaceWith(image(row, size, { eager })), RETRY);
}

onConnection((up) => {
  if (!up) return;
  for (const broken of document.querySelectorAll("[data-lost]")) broken.replaceWith(image(...broken.dataset.lost.split("/").reverse().map(Number)));
});

export function bars(values) {
  const most = Math.max(1e-9, ...values.map(Math.abs));
  const wide = 100 / values.length;
  const drawn = values.map((value, i) => {
    const high = (46 * Math.abs(value)) / most;
    return el("rect", { x: i * wide + wide * 0.12, y: value < 0 ? 50 : 50 - high, width: wide * 0.76, height: Math.max(0.4, high), class: value < 0 ? "below" : "above" });
  });
  const title = `First ${values.length} values`;
  return el("svg", { class: "bars", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": title }, el("line", { x1: 0, x2: 100, y1: 50, y2: 50 }), ...drawn);
}

const LEAST_SHARE = 0.2; // of the largest weight, from which a labelled row counts as a reason

const important = (reasons) => reasons.filter((reason, i) => i === 0 || reason.weight >= LEAST_SHARE * reasons[0].weight);

function reasons(card, listed) {
  const list = el("ul", { class: "reasons", "aria-hidden": "true" });
  for (const reason of listed) {
    const thumb = card.values ? null : image(reason.row, 96);
    list.append(
      el("li", { title: `${reason.id}, labelled ${reason.label}, adds ${signed(reason.weight)} to the score of the class`, class: side(reason.weight) }, thumb,
        el("span", { class: "why" }, el("span", { class: "label" }, dot(codeOf(reason.label)), fitted("span", {}, reason.label ?? "?")),
          card.values ? el("span", { class: "id" }, reason.id) : null)),
    );
  }
  if (listed.length === 0) list.append(el("li", { class: "none" }, "no reasons yet"));
  return list;
}

// The labelled rows that a row resembles, in words and in pictures.
function becauseOf(card) {
  const listed = important(card.reasons);
  const list = reasons(card, listed);
  if (listed.length) list.prepend(el("li", { class: "like" }, likeness(listed)));
  return list;
}

// "looks like these 3 labelled glass", or the classes of all of them where they differ.
function likeness(listed) {
  const names = [...new Set(listed.map((reason) => reason.label ?? "?"))];
  const which = listed.length === 1 ? "this" : `these ${listed.length}`;
  return names.length === 1 ? `looks like ${which} labelled ${names[0]}` : `looks like ${which}: ${names.join(", ")}`;
}

// The same beside a large image: for both classes where two compete.
export function because(card) {
  const groups = contested(card) ? card.sides.map((one, i) => [`${SIDES[i][0]}: ${one.label}, ${percent(one.share)}`, one.reasons]) : [[null, important(card.reasons)]];
  return groups.filter(([, listed]) => listed.length).map(([title, listed]) => el("div", { class: "likes" },
    el("p", { class: "like" }, title ?? likeness(listed)), el("ul", {}, ...listed.map((reason) => like(card, reason, title === null && new Set(listed.map((each) => each.label)).size > 1)))));
}

function like(card, reason, named) {
  const words = named && el("span", { class: "label" }, dot(codeOf(reason.label)), el("span", { class: "name" }, reason.label ?? "?"));
  return el("li", { title: `${reason.id}, labelled ${reason.label}, adds ${signed(reason.weight)} to the score of the class` }, card.values ? el("span", { class: "id" }, reason.id) : image(reason.row, 96, { eager: true }), words || null);
}

const KINDS = { random: "dice", spread: "spread", unseen: "spread", need: "plus", teach: "unsure", suspected: "alert", copies: "copies" };

// Why a card is asked, in a few words.
export function whyOf(card) {
  const words = card.why || (card.suspected ? "the other labels contradict this one" : card.answer ? ANSWERS[card.answer][1] : STATUS_NAMES[card.status]);
  return [icon(card.suspected && !card.kind ? "alert" : KINDS[card.kind] ?? "unsure"), el("span", {}, words)];
}

// Both classes of a card: what speaks for each, and one key to choose it.
function sides(card) {
  return el("div", { class: "sides" }, ...card.sides.map((one, i) => {
    const [name, title, verb] = SIDES[i];
    return el("div", { class: "side" },
      el("div", { class: "says", title }, name, el("span", { class: "sure" }, percent(one.share))),
      el("div", { class: "believed" }, dot(codeOf(one.label)), fitted("b", {}, one.label)),
      meter(one.share), reasons(card, one.reasons),
      el("button", { type: "button", class: "pick", tabindex: "-1", "data-label": one.label }, verb, el("kbd", {}, String(i + 1))));
  }));
}

function meter(share) {
  const track = el("div", { class: "meter" }, el("i"));
  track.firstChild.style.width = `${100 * share}%`;
  return track;
}

function verdict(card) {
  const byYou = card.answer === "accepted" || card.answer === "corrected";
  const by = card.label === null ? "" : card.status !== "labelled" ? percent(card.confidence) : byYou ? "by you" : "given";
  return el("div", { class: "verdict" },
    el("div", { class: "believed" }, dot(codeOf(card.label)), fitted("b", {}, card.label ?? "no label"), el("span", { class: "sure" }, by)),
    meter(card.confidence));
}

function foot(card) {
  const line = el("div", { class: "foot" }, el("span", { class: "id", title: card.id }, el("bdi", {}, card.id)));
  if (card.suspected) line.append(el("span", { class: "chip suspected", title: "The other labels contradict this label from the table." }, "suspected"));
  else line.append(el("span", { class: `chip ${card.status}` }, STATUS_NAMES[card.status]));
  if (card.grade && !card.answer) line.append(el("span", { class: "chip grade", title: guarantee(card.grade) }, percent(card.grade)));
  if (card.first !== null && card.first !== card.label) line.append(el("span", { class: "was" }, "was ", el("s", {}, card.first)));
  return line;
}

const guarantee = (grade) => `At least ${percent(grade)} of the labels like this one are right, guaranteed.`;

function spoken(card) {
  if (contested(card)) {
    const both = card.sides.map((one, i) => `${SIDES[i][0]}: ${one.label}, ${Math.round(100 * one.share)} percent, key ${i + 1}`);
    return [...both, card.suspected ? "suspected wrong" : STATUS_NAMES[card.status], card.id].join(", ");
  }
  const parts = [card.label ?? "no label"];
  if (card.answer) parts.push(ANSWERS[card.answer][1]);
  else parts.push(`${Math.round(100 * card.confidence)} percent`, card.suspected ? "suspected wrong" : STATUS_NAMES[card.status]);
  parts.push(card.id);
  if (card.grade && !card.answer) parts.push(`${percent(card.grade)} guaranteed`);
  if (card.reasons.length) parts.push(likeness(important(card.reasons)));
  return parts.join(", ");
}
