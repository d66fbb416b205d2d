// The page: its state is in store.js, what is shown in grid, side and dock, what can be done in actions and keys.

import { exportAll, onOtherTab, undo } from "./actions.js";
import { about, idle } from "./api.js";
import { byId } from "./dom.js";
import "./dock.js";
import "./keys.js";
import "./side.js";
import { refresh, start } from "./grid.js";
import { filtersFromAddress, state } from "./store.js";

const POLL_EVERY = 4000; // milliseconds; for changes made in another tab

async function keepUp() {
  if (document.visibilityState === "visible" && idle()) await refresh().catch(() => {});
}

state.about = await about();
byId("folder").textContent = state.about.folder;
document.title = `Review: ${state.about.folder}`;
document.body.classList.toggle("tables", !state.about.images);
byId("undo").addEventListener("click", undo);
byId("export").addEventListener("click", exportAll);
filtersFromAddress();
window.addEventListener("hashchange", () => {
  filtersFromAddress();
  start();
});
await start({ focus: true });
onOtherTab(keepUp);
document.addEventListener("visibilitychange", keepUp);
setInterval(keepUp, POLL_EVERY);
document.body.dataset.ready = "yes";
