// A scene shown in a node of a page: its state in one object, which every function is given.

import { draw } from "./draw.js";
import { listenToExports } from "./export.js";
import { listenToField, listenToKeys } from "./keyboard.js";
import { layOut, listenToLabels } from "./lines.js";
import { enlargedOf, isNarrow, leftOf, makeNodes } from "./nodes.js";
import { listenToButtons, listenToPointer, listenToWheel } from "./pointer.js";
import { busy } from "./rows.js";
import { noSearch } from "./search.js";
import { nothingJoined, sayHelp } from "./selection.js";
import { dress, watchTheme } from "./theme.js";
import { placeOf } from "./view.js";

// earlier: what was looked at in the overview of the same scene. Returns what is looked at, and
// what ends it all.
export function mount(el, scene, earlier) {
  const controller = new AbortController();
  const nodes = makeNodes(scene.head);
  el.replaceChildren(nodes.root);
  const { t0, t1 } = earlier ?? { t0: 0, t1: scene.head.span };
  const timeline = {
    el,
    nodes,
    scene,
    // What the user has changed; until one has chosen what is folded, that is what has no room.
    // hidden: kinds.
    view: { t0, t1, folded: new Set(), hidden: new Set(), hasChosen: false, selected: -1, range: null },
    search: noSearch(),
    sortedBy: "exposed", // the list of names
    waits: null, // of each communication, once a range was reported
    joined: nothingJoined(), // with what is selected
    lines: [],
    shown: 0, // the height of the lines that are seen at once
    width: 0, // of the canvas
    left: 0, // of it, the labels' width
    enlarged: 1, // letters, against their usual size
    ratio: 1, // device pixels in a CSS pixel
    colours: {},
    tiles: {},
    redraw: null, // asks for a frame
    signal: controller.signal, // ends what listens
  };
  timeline.redraw = onceAFrame(timeline);
  listenToButtons(timeline);
  listenToExports(timeline);
  listenToField(timeline);
  listenToLabels(timeline);
  listenToKeys(timeline);
  listenToWheel(timeline);
  listenToPointer(timeline);
  watchSize(timeline);
  watchTheme(timeline);
  sayHelp(timeline);
  layOut(timeline);
  dress(timeline);
  offerToTests(timeline);
  return { view: timeline.view, unmount: () => controller.abort() };
}

// However much changes before the next frame, it is drawn once.
function onceAFrame(timeline) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      if (timeline.signal.aborted) return;
      measure(timeline);
      if (timeline.width) draw(timeline);
    });
  };
}

// What the page gives: the size of letters, which it may change at any time, and the width.
function measure(timeline) {
  const { root, body, canvas } = timeline.nodes;
  if (!root.clientWidth) return; // not on a page, or not seen
  const enlarged = enlargedOf(root);
  if (enlarged !== timeline.enlarged) {
    timeline.enlarged = enlarged;
    layOut(timeline);
  }
  timeline.left = leftOf(root, enlarged);
  root.classList.toggle("ls-narrow", isNarrow(root, enlarged));
  root.style.setProperty("--left", `${timeline.left}px`);
  const scrollbar = body.offsetWidth - body.clientWidth;
  timeline.width = Math.max(root.clientWidth - 8 - timeline.left - scrollbar, 100);
  canvas.style.width = `${timeline.width}px`;
}

// Letters of another size make it higher or lower, so that this is told of them, too.
function watchSize(timeline) {
  const resized = new ResizeObserver(timeline.redraw);
  resized.observe(timeline.nodes.root);
  timeline.signal.addEventListener("abort", () => resized.disconnect());
}

function offerToTests(timeline) {
  const { scene, view, nodes } = timeline;
  nodes.root.lockstep = {
    head: scene.head,
    columns: scene.columns,
    rows: scene.rows,
    view,
    busy: (row, ...piece) => busy(row.draw, ...piece),
    placeOf: (i) => placeOf(timeline, i),
  };
}
