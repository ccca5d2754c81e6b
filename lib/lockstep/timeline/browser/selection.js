// The selected slice, what belongs to it, and the way from slice to slice.

import { wordsOf } from "./details.js";
import { make, MOUSE } from "./nodes.js";
import { bisect } from "./rows.js";
import { launchesOf, membersOf, nameOf, rowOf } from "./scene.js";
import { isMatch } from "./search.js";
import { bringIntoView, show, zoomTo } from "./view.js";
import { count, inWords } from "./words.js";

// others: slices of the same collective; waits: what each waited; from, to: launches.
export const nothingJoined = () => ({ others: [], waits: [], from: [], to: [] });

// i: -1 selects nothing.
export function select(timeline, i) {
  const { scene, view } = timeline;
  const { root, said, list } = timeline.nodes;
  Object.assign(view, { selected: i, range: null });
  timeline.joined = i < 0 ? nothingJoined() : { ...membersOf(scene, i), ...launchesOf(scene, i) };
  const { others, waits, from, to } = timeline.joined;
  if (i >= 0) {
    const [first, ...rest] = [...wordsOf(scene, i), ...launchesInWords(scene, i, timeline.joined)];
    said.replaceChildren(
      make("div", { textContent: first }),
      make("div", { textContent: rest.join(" · ") }),
    );
  } else {
    list.replaceChildren();
    sayHelp(timeline);
  }
  root.dataset.selected = i;
  delete root.dataset.range;
  root.dataset.lit = others.length;
  root.dataset.waits = waits.length;
  root.dataset.arrows = from.length + to.length;
  timeline.redraw();
}

function launchesInWords(scene, i, { from, to }) {
  const { start } = scene.columns;
  const words = to.length ? [`launches ${count(to.length, "slice")} on the device`] : [];
  for (const one of from)
    words.push(`launched by ${nameOf(scene, one)}, ${inWords(start[i] - start[one])} before`);
  return words;
}

export function sayHelp({ scene, nodes }) {
  if (scene.head.isOverview) {
    const text = "An overview; the slices are loading…";
    nodes.said.replaceChildren(make("div", { textContent: text }));
    return;
  }
  nodes.said.replaceChildren(
    make("div", { textContent: "" }),
    make("div", { className: "ls-muted", textContent: `${MOUSE} ? shows all keys.` }),
  );
}

// ── From slice to slice ──────────────────────────────────────────────────────────────────────

export function goTo(timeline, i) {
  select(timeline, i);
  bringIntoView(timeline, i);
}

// The next slice of the same row; without a selection, the first that is seen.
export function neighbour({ scene, view, lines }, step) {
  if (view.selected < 0) {
    const line = lines.find((one) => one.row && one.row.lane) ?? lines.find((one) => one.row);
    const place = bisect(line.row.draw.start, view.t0, 0, line.row.draw.n - 1, false);
    return line.row.first + place;
  }
  const row = rowOf(scene, view.selected);
  return Math.min(Math.max(view.selected + step, row.first), row.last - 1);
}

// The slice at the same time in the row above or below.
export function otherRow(timeline, step) {
  const { scene, lines } = timeline;
  const i = neighbour(timeline, 0);
  const shown = lines.filter((one) => one.row);
  const line = shown[shown.findIndex((one) => one.row === rowOf(scene, i)) + step];
  if (!line) return i;
  const { draw: row, first } = line.row;
  const place = bisect(row.start, scene.columns.start[i], 0, row.n, true);
  return first + Math.max(place - 1, 0);
}

export function zoomToSelected(timeline) {
  const { view } = timeline;
  if (view.range) show(timeline, ...view.range);
  else if (view.selected >= 0) zoomTo(timeline, view.selected, 0.02);
}

// With enough around it to see where one is.
export function visit(timeline, i) {
  goTo(timeline, i);
  zoomTo(timeline, i, 1.5);
}

export function goToMatch(timeline, step) {
  const { scene, search, view } = timeline;
  if (!search.isIn) return;
  for (let k = 1; k <= scene.total; k++) {
    const i = (((view.selected + step * k) % scene.total) + scene.total) % scene.total;
    if (isMatch(timeline, i)) return visit(timeline, i);
  }
}
