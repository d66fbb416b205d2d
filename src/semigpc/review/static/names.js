// Names of classes: which are known, in what order they are offered, and the list below a text field that chooses one.

import { dot, el, icon, percent } from "./dom.js";
import { classesInUse, codeOf, state } from "./store.js";

const OFFERED = 9; // one for each digit key
const RECENT = 30; // names kept
const INSIDE = 3; // how well names fit typed text that they hold in the middle of a word
const NO_FIT = 4;

export const clean = (text) => text.trim().replace(/\s+/g, " ");

export const same = (a, b) => a.toLowerCase() === b.toLowerCase();

// Also those that are on their way to the server.
export function knownNames() {
  const names = classesInUse().map((entry) => entry.name);
  const fresh = state.outbox.flatMap(({ body }) => body.labels ?? body.label ?? []);
  return [...new Set([...names, ...fresh])];
}

export function used(name) {
  state.recent = [name, ...state.recent.filter((other) => other !== name)].slice(0, RECENT);
}

// How well a name fits typed text: it is the text, begins with it, has a word that does, holds it, or does not.
function fit(name, text) {
  const at = name.toLowerCase().indexOf(text.toLowerCase());
  if (at < 0) return NO_FIT;
  if (same(name, text)) return 0;
  if (at === 0) return 1;
  return ` ${name}`.toLowerCase().includes(` ${text.toLowerCase()}`) ? 2 : INSIDE;
}

// What can be chosen while text is typed: what fits best, the probable first, then recent ones, then by name. The text itself is
// the last, as a new class, unless it is one; but it comes before names that only hold it in the middle of a word.
export function offers(text, choices = []) {
  const shares = new Map(choices);
  const place = (name) => (state.recent.includes(name) ? state.recent.indexOf(name) : RECENT);
  const found = knownNames().map((name) => ({ name, share: shares.get(name) ?? null, fresh: false, fit: text ? fit(name, text) : 0 })).filter((entry) => entry.fit < NO_FIT);
  const isNew = text !== "" && !found.some((entry) => entry.fit === 0);
  if (isNew) found.push({ name: text, share: null, fresh: true, fit: found.some((entry) => entry.fit < INSIDE) ? NO_FIT : INSIDE - 0.5 });
  return found.sort((a, b) => a.fit - b.fit || (b.share ?? 0) - (a.share ?? 0) || place(a.name) - place(b.name) || a.name.localeCompare(b.name));
}

// The classes of a card in the order of their keys: as the server ranks them, and where it knows none of them yet, as last used.
export function ranked(choices) {
  const listed = [...choices].sort((a, b) => (b[1] ?? 0) - (a[1] ?? 0)); // two classes that compete may come first otherwise
  const has = new Set(listed.map(([name]) => name));
  const predicted = listed.some(([, share]) => share !== null);
  const others = predicted && listed.length >= OFFERED ? [] : [...state.recent, ...knownNames()];
  for (const name of others) {
    if (has.has(name) || !knownNames().includes(name)) continue;
    has.add(name);
    listed.push([name, null]);
  }
  return listed.slice(0, OFFERED);
}

// A list of options in an element; the marked one is taken by Enter.
export class Options {
  constructor(list, field, choose) {
    Object.assign(this, { list, field, choose, entries: [], marked: -1 });
  }

  // Options that stay are changed in place, so that a click is not lost when a reply comes between its two halves.
  show(entries, marked, digits) {
    this.entries = entries;
    entries.forEach((entry, i) => {
      const made = JSON.stringify([entry.name, entry.fresh, digits]);
      let option = this.list.children[i];
      if (option?.dataset.made !== made) {
        const fresh = this.option(entry, i, digits);
        fresh.dataset.made = made;
        if (option) option.replaceWith(fresh);
        else this.list.append(fresh);
        option = fresh;
      }
      refine(option, entry);
    });
    while (this.list.children.length > entries.length) this.list.lastChild.remove();
    this.mark(marked);
  }

  option({ name, fresh }, i, digits) {
    const key = digits && i < OFFERED ? String(i + 1) : null;
    return el("div", { role: "option", id: `${this.list.id}-${i}`, class: fresh ? "option fresh" : "option", "data-label": name, title: name, "aria-selected": "false",
      "aria-keyshortcuts": key, onclick: () => this.take(i) },
      key && el("kbd", {}, key), fresh ? icon("plus") : dot(codeOf(name)),
      el("span", { class: "name" }, fresh ? `Add the class \u201c${name}\u201d` : name),
      fresh && i > 0 ? el("kbd", {}, "Shift Enter") : null, el("span", { class: "share" }), el("span", { class: "meter" }, el("i")));
  }

  mark(position) {
    this.marked = Math.min(this.entries.length - 1, position);
    [...this.list.children].forEach((option, i) => option.setAttribute("aria-selected", String(i === this.marked)));
    const option = this.list.children[this.marked];
    option?.scrollIntoView({ block: "nearest" });
    if (option) this.field.setAttribute("aria-activedescendant", option.id);
    else this.field.removeAttribute("aria-activedescendant");
  }

  move(by) {
    if (this.entries.length) this.mark(Math.max(0, this.marked + by));
  }

  take(position = this.marked) {
    const entry = this.entries[position];
    if (entry) this.choose(entry.name);
    return Boolean(entry);
  }

  takeTyped() {
    const text = clean(this.field.value);
    if (!text) return false;
    this.choose(knownNames().find((name) => same(name, text)) ?? text);
    return true;
  }
}

// What may change about an option while it is shown.
function refine(option, { name, share, fresh, chosen }) {
  option.classList.toggle("chosen", Boolean(chosen));
  if (!fresh) option.querySelector(".dot").replaceWith(dot(codeOf(name)));
  const words = option.querySelector(".share");
  words.hidden = option.querySelector(".meter").hidden = share === null;
  if (share === null) return;
  words.textContent = percent(share);
  option.querySelector(".meter i").style.width = `${100 * share}%`;
}
