// Wheel, pointer and the buttons that zoom.

import { hover, sliceAt } from "./details.js";
import { setHidden } from "./lines.js";
import { markRange, reportRange } from "./report.js";
import { meantBy } from "./scene.js";
import { select } from "./selection.js";
import { pan, show, showAll, timeOf, zoom } from "./view.js";

export function listenToButtons(timeline) {
  const { signal, view } = timeline;
  const { zoomIn, zoomOut, all, report, steps, legend, asks, help } = timeline.nodes;
  zoomIn.addEventListener("click", () => zoom(timeline, 0.5), { signal });
  zoomOut.addEventListener("click", () => zoom(timeline, 2), { signal });
  all.addEventListener("click", () => showAll(timeline), { signal });
  report.addEventListener("click", () => reportRange(timeline, view.t0, view.t1), { signal });
  const showStep = ({ target: { dataset } }) => {
    if (!dataset.at) return;
    const { from, to } = timeline.scene.head.steps[dataset.at];
    show(timeline, from, to);
    reportRange(timeline, from, to);
  };
  steps.addEventListener("click", showStep, { signal });
  const hideKind = (event) => {
    const button = event.target.closest("button");
    if (button) setHidden(timeline, Number(button.dataset.kind), button.ariaPressed === "true");
  };
  legend.addEventListener("click", hideKind, { signal });
  const toggle = () => {
    help.hidden = !help.hidden;
    asks.setAttribute("aria-expanded", String(!help.hidden));
  };
  asks.addEventListener("click", toggle, { signal });
}

export function listenToWheel(timeline) {
  const { canvas, root } = timeline.nodes;
  const act = (event) => {
    const isFocused = root.getRootNode().activeElement === canvas;
    // Without focus the wheel is the page's: one scrolls past a timeline far more often.
    if (!isFocused && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const size = event.deltaMode === 1 ? 30 : 1;
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (isSideways) return pan(timeline, ((event.deltaX || event.deltaY) * size) / timeline.width);
    const factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY * size) / 300)));
    zoom(timeline, factor, timeOf(timeline, event.clientX - canvas.getBoundingClientRect().left));
  };
  canvas.addEventListener("wheel", act, { signal: timeline.signal, passive: false });
}

// A click selects a slice, a drag a range of time; with Shift it pans and scrolls.
export function listenToPointer(timeline) {
  const { view, signal } = timeline;
  const { canvas, body, tip } = timeline.nodes;
  let drag = null; // what it began with
  const listen = (name, act) => canvas.addEventListener(name, act, { signal });
  listen("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    tip.hidden = true;
    const at = timeOf(timeline, event.clientX - canvas.getBoundingClientRect().left);
    drag = { at, pans: event.shiftKey, x: event.clientX, y: event.clientY, t0: view.t0, top: body.scrollTop };
  });
  listen("pointermove", (event) => {
    if (!drag) return hover(timeline, event);
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
    if (!drag.moved) return;
    if (!drag.pans) {
      const at = timeOf(timeline, event.clientX - canvas.getBoundingClientRect().left);
      return markRange(timeline, drag.at, at);
    }
    canvas.style.cursor = "grabbing";
    const span = view.t1 - view.t0;
    const from = drag.t0 - (dx / timeline.width) * span;
    show(timeline, from, from + span);
    body.scrollTop = drag.top - dy;
  });
  listen("pointerup", (event) => {
    canvas.style.cursor = "";
    if (drag?.moved && view.range) reportRange(timeline, ...view.range);
    else if (drag && !drag.moved) select(timeline, meantBy(timeline.scene, sliceAt(timeline, event)?.i ?? -1));
    drag = null;
  });
  listen("pointercancel", () => (drag = null));
  listen("pointerleave", () => (tip.hidden = true));
  listen("dblclick", () => showAll(timeline));
  body.addEventListener("scroll", timeline.redraw, { signal });
}
