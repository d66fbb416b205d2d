// Elements, words and numbers. Text from the data only ever becomes text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "use", "rect", "line", "path"].includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const icon = (name) => el("svg", { class: "icon", "aria-hidden": "true" }, el("use", { href: `#icon-${name}` }));

// The symbols become part of the page, so that they are there while the server is not.
export async function loadIcons() {
  const text = await (await fetch("static/icons.svg")).text();
  const sheet = document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
  for (const symbol of sheet.querySelectorAll("symbol")) symbol.id = `icon-${symbol.id}`;
  sheet.setAttribute("class", "unseen");
  sheet.setAttribute("aria-hidden", "true");
  document.body.append(sheet);
}

export function percent(share) {
  const rounded = Math.round(100 * share);
  return rounded === 100 && share < 1 ? ">99 %" : `${rounded} %`;
}

export const number = (value) => value.toLocaleString("en").replaceAll(",", "\u202f");

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// 12 345 in little room: 12k.
export const short = (value) => (value < 10000 ? number(value) : new Intl.NumberFormat("en", { notation: "compact" }).format(value));

export function signed(weight) {
  return Math.abs(weight) < 0.005 ? "0.00" : `${weight < 0 ? "\u2212" : "+"}${Math.abs(weight).toFixed(2)}`;
}

export const side = (weight) => (Math.abs(weight) < 0.005 ? "neither" : weight < 0 ? "against" : "for");

// A dot in the colour of a class: codes far apart on the colour wheel, so that neighbours in the list differ.
export function dot(code) {
  const element = el("i", { class: "dot", "aria-hidden": "true" });
  if (code === undefined || code === null) element.classList.add("none");
  else element.style.setProperty("--hue", String(Math.round((code * 137.508 + 210) % 360)));
  return element;
}

const tight = new Set(); // names whose words may be wider than their place

const SMALLEST = 7; // pixels of letters

// A name that wraps at spaces alone; where a word does not fit its line, or a line its place, the letters shrink.
export function fitted(tag, attributes, name) {
  const element = el(tag, { title: name, ...attributes, class: "fit" }, name);
  if (tight.size === 0) requestAnimationFrame(fit);
  tight.add(element);
  return element;
}

function fit() {
  const shown = [...tight].filter((element) => element.isConnected);
  tight.clear();
  for (const element of shown) element.style.fontSize = "";
  let tried = shown;
  for (let pass = 0; pass < 5 && tried.length > 0; pass += 1) {
    const measured = tried.map((element) => [element, room(element), parseFloat(getComputedStyle(element).fontSize)]);
    const large = measured.filter(([, ratio]) => ratio < 1);
    for (const [element, ratio, size] of large) element.style.fontSize = `${Math.max(SMALLEST, ratio * size)}px`;
    tried = large.map(([element]) => element);
  }
  for (const element of shown) element.classList.toggle("cut", element.scrollWidth > element.clientWidth);
}

// By how much the letters of a name must shrink; 1 if it fits.
function room(element) {
  const high = element.scrollHeight > element.clientHeight + 1 ? 0.9 : 1;
  return element.scrollWidth > element.clientWidth ? element.clientWidth / (element.scrollWidth + 1) : high;
}

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (width === window.innerWidth) return; // a phone hides its address bar
  width = window.innerWidth;
  if (tight.size === 0) requestAnimationFrame(fit);
  for (const element of document.querySelectorAll(".fit")) tight.add(element);
});

let quiet = null;

// Have a screen reader read a message out.
export const say = (text) => {
  byId("live").textContent = text;
};

// Show a message on the screen too.
export function announce(text) {
  say(text);
  const toast = byId("toast");
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(quiet);
  quiet = setTimeout(() => toast.classList.remove("shown"), 3500);
}
