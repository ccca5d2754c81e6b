// Keys of the picture and of the search field.

import { reportRange } from "./report.js";
import { goTo, goToMatch, neighbour, otherRow, select, zoomToSelected } from "./selection.js";
import { searchFor } from "./search.js";
import { pan, showAll, zoom } from "./view.js";

function keysOf(timeline) {
  const { body, tip, field, asks } = timeline.nodes;
  return {
    ArrowLeft: () => pan(timeline, -0.15),
    ArrowRight: () => pan(timeline, 0.15),
    ArrowUp: () => (body.scrollTop -= 40),
    ArrowDown: () => (body.scrollTop += 40),
    "+": () => zoom(timeline, 0.6),
    "=": () => zoom(timeline, 0.6),
    "-": () => zoom(timeline, 1 / 0.6),
    w: () => zoom(timeline, 0.6),
    s: () => zoom(timeline, 1 / 0.6),
    a: () => pan(timeline, -0.15),
    d: () => pan(timeline, 0.15),
    r: () => reportRange(timeline, timeline.view.t0, timeline.view.t1),
    f: () => zoomToSelected(timeline),
    Home: () => showAll(timeline),
    Escape: () => {
      tip.hidden = true;
      select(timeline, -1);
    },
    "?": () => asks.click(),
    "/": () => field.select(), // what is typed replaces the old query
    Enter: () => goToMatch(timeline, 1),
  };
}

const shiftedKeysOf = (timeline) => ({
  ArrowLeft: () => goTo(timeline, neighbour(timeline, -1)),
  ArrowRight: () => goTo(timeline, neighbour(timeline, 1)),
  ArrowUp: () => goTo(timeline, otherRow(timeline, -1)),
  ArrowDown: () => goTo(timeline, otherRow(timeline, 1)),
  Enter: () => goToMatch(timeline, -1),
});

export function listenToKeys(timeline) {
  const [keys, shifted] = [keysOf(timeline), shiftedKeysOf(timeline)];
  const { nodes, signal } = timeline;
  const act = (event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const key = isPlain && ((event.shiftKey && shifted[event.key]) || keys[event.key]);
    if (!key) return;
    event.preventDefault();
    event.stopPropagation();
    key();
  };
  nodes.canvas.addEventListener("keydown", act, { signal });
}

export function listenToField(timeline) {
  const { signal } = timeline;
  const { field, canvas } = timeline.nodes;
  const act = (event) => {
    event.stopPropagation();
    if (event.key === "Enter") goToMatch(timeline, event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      field.value = "";
      searchFor(timeline, "");
      canvas.focus();
    }
  };
  field.addEventListener("keydown", act, { signal });
  field.addEventListener("input", () => searchFor(timeline, field.value), { signal });
}
