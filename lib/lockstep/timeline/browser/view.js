// What is looked at: the time from view.t0 to view.t1, and the way from times to places.

import { lineOf, unfold } from "./lines.js";
import { endOf, rowOf } from "./scene.js";

export const xOf = ({ view, width }, t) => ((t - view.t0) / (view.t1 - view.t0)) * width;
export const timeOf = ({ view, width }, x) => view.t0 + (x / width) * (view.t1 - view.t0);

// Where a slice is, also one in a folded lane: {x0, x1, y, h}, or null if its rank is not there.
export function placeOf(timeline, i, scroll = timeline.nodes.body.scrollTop) {
  const { scene } = timeline;
  const line = lineOf(timeline, rowOf(scene, i));
  if (!line) return null;
  const [x0, x1] = [scene.columns.start[i], endOf(scene, i)].map((t) => xOf(timeline, t));
  return { x0, x1, y: line.y - scroll, h: line.h };
}

export function show(timeline, t0, t1) {
  const { view, nodes } = timeline;
  const whole = timeline.scene.head.span;
  const span = Math.min(Math.max(t1 - t0, Math.min(20, whole)), whole);
  const from = Math.min(Math.max(t0, 0), whole - span);
  Object.assign(view, { t0: from, t1: from + span });
  nodes.tip.hidden = true;
  timeline.redraw();
}

// at: the time that stays where it is.
export function zoom(timeline, factor, at = (timeline.view.t0 + timeline.view.t1) / 2) {
  const { t0, t1 } = timeline.view;
  const span = Math.min((t1 - t0) * factor, timeline.scene.head.span);
  const share = (at - t0) / (t1 - t0);
  show(timeline, at - span * share, at - span * share + span);
}

export function pan(timeline, share) {
  const { t0, t1 } = timeline.view;
  const by = (t1 - t0) * share;
  show(timeline, t0 + by, t1 + by);
}

export const showAll = (timeline) => show(timeline, 0, timeline.scene.head.span);

// room: on either side of the slice, in its own length.
export function zoomTo(timeline, i, room) {
  const [start, end] = [timeline.scene.columns.start[i], endOf(timeline.scene, i)];
  const by = (end - start) * room;
  show(timeline, start - by, end + by);
}

export function bringIntoView(timeline, i) {
  const { scene, view, width } = timeline;
  const { body } = timeline.nodes;
  const line = unfold(timeline, i);
  const { shown } = timeline;
  if (line.y < body.scrollTop || line.y + line.h > body.scrollTop + shown)
    body.scrollTop = line.y - shown / 2;
  const [start, end] = [scene.columns.start[i], endOf(scene, i)];
  const span = view.t1 - view.t0;
  const isNarrow = (end - start) / span < 3 / width;
  if (start < view.t0 || end > view.t1 || isNarrow) {
    const wanted = isNarrow ? Math.max((end - start) * 12, 20) : Math.max(span, (end - start) * 1.5);
    show(timeline, (start + end) / 2 - wanted / 2, (start + end) / 2 + wanted / 2);
  }
}
