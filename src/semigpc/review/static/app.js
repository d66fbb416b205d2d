// The page: its state is in store.js; one image is in work and field, many are in grid, side and dock, answers go through actions
// and outbox, and what they bring is in reward.

import { refresh as askRefresh, undo } from "./actions.js";
import { about, connection, idle, onConnection, startListening } from "./api.js";
import { byId, loadIcons } from "./dom.js";
import "./dialogs.js";
import "./dock.js";
import { open } from "./grid.js";
import "./keys.js";
import { onOtherTab, resume } from "./outbox.js";
import "./reward.js";
import { nextClass } from "./side.js";
import { classesInUse, filtersFromAddress, isLarge, merge, modeFromAddress, onChange, setMode, state } from "./store.js";
import { enter } from "./work.js";

const POLL_EVERY = 4000; // milliseconds; for changes made in another tab
const POLL_WHILE_FITTING = 300; // milliseconds; until the counts are up to date

async function keepUp() {
  if (document.visibilityState !== "visible" || !idle() || !connection.up) return;
  await askRefresh().then(merge).catch(() => {});
}

let fitting = null;

// Counts are asked for again soon after an answer, not only when the next poll is due.
function follow() {
  if (state.progress?.state !== "fitting" || fitting !== null) return;
  fitting = setTimeout(async () => {
    fitting = null;
    await keepUp();
    follow();
  }, POLL_WHILE_FITTING);
}

function showMode() {
  const large = isLarge();
  document.body.dataset.mode = state.mode;
  byId("work").hidden = !large;
  byId("grid-mode").hidden = large;
  byId("mode-work").setAttribute("aria-pressed", String(large && state.mode !== "card"));
  byId("mode-grid").setAttribute("aria-pressed", String(!large || state.mode === "card"));
  document.querySelector(".skip").setAttribute("href", large ? "#stage" : "#cards");
}

// A class at a time is what checking is for, so the first visit begins with the largest, unless the address says what to show.
let unasked = !/status=|label=|text=/.test(location.hash);

async function enterGrid() {
  const predicted = classesInUse().some((entry) => entry.believed > 0);
  if (predicted && unasked) nextClass();
  else await open();
  unasked = false;
}

onChange((what) => {
  if (what.mode) {
    showMode();
    if (state.mode === "grid") enterGrid().catch(() => {});
    else enter();
  }
  if (state.progress) byId("verdict").hidden = !state.progress.verdict || state.mode !== "work";
  if (!what.progress || !state.progress) return;
  byId("undo").disabled = state.undo === null && state.outbox.length === 0;
  byId("verdict").firstElementChild.textContent = state.progress.verdict ?? "";
  byId("drawn").textContent = state.progress.state === "cold" ? "" : state.progress.drawn?.note ?? "";
  byId("check-random").hidden = state.mode !== "work" || state.progress.state === "cold";
  byId("manage").hidden = state.mode !== "work" || state.progress.classes.length === 0;
  follow();
});
onConnection((up) => up && keepUp());

new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${byId("top").offsetHeight}px`)).observe(byId("top"));

// Until the server responds; a page that was loaded when it went shows that it has gone.
async function reached() {
  for (;;) {
    const told = await about().catch(() => null);
    if (told) return told;
    startListening();
    await new Promise((resolve) => setTimeout(resolve, POLL_EVERY));
  }
}

await loadIcons().catch(() => {}); // the page does without
state.about = await reached();
byId("folder").textContent = state.about.folder;
document.title = `Label: ${state.about.folder}`;
document.body.classList.toggle("tables", !state.about.images);
byId("use").hidden = byId("use-part").hidden = Object.keys(state.about.commands ?? {}).length === 0;
byId("undo").addEventListener("click", undo);
byId("mode-work").addEventListener("click", () => setMode("work"));
byId("mode-grid").addEventListener("click", () => setMode("grid"));
byId("leave").addEventListener("click", () => setMode(state.mode === "card" ? "grid" : "work"));
window.addEventListener("hashchange", () => {
  filtersFromAddress();
  setMode(modeFromAddress());
});
resume();
filtersFromAddress();
while (!state.progress) await askRefresh().then(merge).catch(() => new Promise((resolve) => setTimeout(resolve, POLL_EVERY / 4)));
setMode(modeFromAddress());
await enter();
byId("stage").focus({ preventScroll: true });
onOtherTab(keepUp);
document.addEventListener("visibilitychange", keepUp);
setInterval(keepUp, POLL_EVERY);
startListening();
document.body.dataset.ready = "yes";
