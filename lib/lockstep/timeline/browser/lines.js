// The lines below each other, a row of slices or a heading each: {what, y, h, row?, …}.

import { make } from "./nodes.js";
import { rowOf } from "./scene.js";
import { percent } from "./words.js";

const HIGHEST = 560; // of the lanes before they scroll

const rankKey = (row) => `${row.part} ${row.rank}`;
const laneKey = (row) => `${rankKey(row)} ${row.lane}`;

export const rowHeight = ({ rows }) => (rows.length <= 14 ? 26 : rows.length <= 40 ? 17 : 14);

// So that many ranks are seen at once, deep call stacks are folded.
export const foldedAtFirst = ({ rows }) =>
  new Set(rows.length > 40 ? rows.filter((row) => row.level > 2).map(laneKey) : []);

// ── Which lines there are ────────────────────────────────────────────────────────────────────

export function layOut(timeline) {
  const { scene, view, nodes } = timeline;
  const { lines, height } = linesOf(scene, view.folded);
  const shown = Math.min(height, HIGHEST);
  Object.assign(timeline, { lines, shown });
  nodes.body.style.height = `${shown + 2}px`;
  nodes.labels.style.height = `${height}px`;
  nodes.canvas.style.height = `${shown}px`;
  nodes.labels.replaceChildren(...lines.map((line) => labelOf(timeline, line)).filter(Boolean));
  timeline.redraw();
}

function linesOf(scene, folded) {
  const { head, rows } = scene;
  const high = rowHeight(scene);
  const lines = [];
  let y = 0;
  const add = (line, h) => {
    lines.push({ ...line, y, h });
    y += h;
  };
  let part = -1;
  for (const [key, mine] of grouped(rows, rankKey)) {
    const [first] = mine;
    const { label } = head.parts[first.part];
    if (first.part !== part && label) add({ what: "part", label }, 20);
    part = first.part;
    const lanes = grouped(mine.filter((row) => row.lane), (row) => row.lane);
    const band = mine.find((row) => !row.lane);
    const alone = !band && lanes.size === 1; // then rank and lane share a line
    if (!alone) add({ what: "rank", key, row: band, rank: first.rank, part }, Math.max(high, 18));
    if (!alone && folded.has(key)) continue;
    for (const [lane, levels] of lanes) {
      const label = alone ? `rank ${first.rank} · ${lane}` : lane;
      levels.forEach((row, level) => {
        if (level && folded.has(laneKey(row))) return;
        const fold = !level && levels.length > 1 ? laneKey(row) : null;
        add({ what: "row", row, key: fold, label: level ? "" : label, alone, levels }, high);
      });
    }
    y += 4;
  }
  return { lines, height: y };
}

function grouped(values, keyOf) {
  const groups = new Map();
  for (const value of values) {
    const key = keyOf(value);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(value);
  }
  return groups;
}

// ── Their labels ─────────────────────────────────────────────────────────────────────────────

function labelOf({ scene, view }, line) {
  if (line.what === "row" && !line.label) return null;
  const folds = line.what === "rank" || line.key;
  const node = make(folds ? "button" : "div", { className: `ls-label ls-${classOf(line)}` });
  let text = line.label ?? "";
  if (line.what === "rank") text = `rank ${line.rank}`;
  if (folds) {
    const isFolded = view.folded.has(line.key);
    node.type = "button";
    node.setAttribute("aria-expanded", String(!isFolded));
    node.dataset.key = line.key;
    node.append(make("span", { textContent: isFolded ? "▸" : "▾", ariaHidden: "true" }));
  }
  node.append(make("span", { textContent: text }));
  node.title = text;
  if (line.what === "rank") {
    const times = scene.head.times.find((one) => one.part === line.part && one.rank === line.rank);
    if (times?.hasCompute && times.communication) {
      const share = `${percent(times.exposed, times.span)} exposed`;
      node.append(make("small", { textContent: share }));
    }
  } else if (line.key && view.folded.has(line.key)) {
    node.append(make("small", { textContent: `+${line.levels.length - 1} levels` }));
  }
  node.style.top = `${line.y}px`;
  node.style.height = `${line.h}px`;
  return node;
}

const classOf = (line) => (line.what === "row" ? (line.alone ? "rank" : "lane") : line.what);

export function listenToLabels(timeline) {
  const { nodes, view, signal } = timeline;
  const act = (event) => {
    const key = event.target.closest("button")?.dataset.key;
    if (key === undefined) return;
    if (!view.folded.delete(key)) view.folded.add(key);
    layOut(timeline);
    [...nodes.labels.querySelectorAll("button")].find((one) => one.dataset.key === key)?.focus();
  };
  nodes.labels.addEventListener("click", act, { signal });
}

// ── Where a row is ───────────────────────────────────────────────────────────────────────────

// The line of a row; if the row is folded, of its lane or its rank; or undefined.
export const lineOf = ({ lines }, row) =>
  lines.find((one) => one.row === row) ??
  lines.find((one) => one.levels?.includes(row)) ??
  lines.find((one) => one.what === "rank" && one.key === rankKey(row));

// Unfolds what a slice is in, and returns its line.
export function unfold(timeline, i) {
  const { folded } = timeline.view;
  const row = rowOf(timeline.scene, i);
  if (folded.delete(rankKey(row)) || (row.level && folded.delete(laneKey(row)))) layOut(timeline);
  return timeline.lines.find((one) => one.row === row);
}
