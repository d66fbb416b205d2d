// The page: what is known is in store.js, what is shown in grid, side and dock, what is done in actions and keys.

import { exportAll, onOtherTab, undo } from "./actions.js";
import { about, idle } from "./api.js";
import { byId } from "./dom.js";
import "./dock.js";
import "./keys.js";
import "./side.js";
import { refresh, start } from "./grid.js";
import { filtersFromAddress, state } from "./store.js";

const PATIENCE = 4000; // milliseconds between two questions whether another tab has changed anything

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
setInterval(keepUp, PATIENCE);
document.body.dataset.ready = "yes";
