// The lines below each other, a row of slices or a heading each: {what, y, h, row?, …}.

import { make } from "./nodes.js";
import { rowOf } from "./scene.js";
import { percent } from "./words.js";

const HIGHEST = 560; // of the lanes before they scroll, however large letters are

const rankKey = (row) => `${row.part} ${row.rank}`;
const quietKey = (row) => `${rankKey(row)} quiet`;
const threadsKey = (row) => `${rankKey(row)} threads`;
const laneKey = (row) => `${rankKey(row)} ${row.lane}`;

// Of a row, what the critical path's line has below the names.
export const pathHeight = ({ head }) => (head.path.length ? 4 : 0);
export const rowHeight = (scene) =>
  pathHeight(scene) + (scene.rows.length <= 14 ? 26 : scene.rows.length <= 40 ? 17 : 14);

// So that all ranks are seen at once: deep call stacks are folded first, then lanes of threads in
// which next to nothing happens, then all of threads, then all but each rank's first line.
function foldedAtFirst(scene, enlarged, hidden) {
  const { rows } = scene;
  const choices = [
    [],
    rows.filter((row) => row.level > 2).map(laneKey),
    rows.filter((row) => row.isQuiet).map(quietKey),
    rows.filter((row) => row.level > 0).map(laneKey),
    rows.filter((row) => !row.onDevice && row.lane).map(threadsKey),
    rows.map(rankKey),
  ];
  const folded = new Set();
  const isPair = scene.head.parts.length > 1; // what is compared is seen at once
  for (const [at, keys] of choices.entries()) {
    for (const key of keys) folded.add(key);
    if (isPair && at < 4) continue;
    if (linesOf(scene, folded, enlarged, hidden).height <= HIGHEST) break;
  }
  return folded;
}

// ── Which lines there are ────────────────────────────────────────────────────────────────────

export function layOut(timeline) {
  const { scene, view, nodes, enlarged } = timeline;
  if (!view.hasChosen) view.folded = foldedAtFirst(scene, enlarged, view.hidden);
  const { lines, height } = linesOf(scene, view.folded, enlarged, view.hidden);
  const shown = Math.min(height, HIGHEST);
  Object.assign(timeline, { lines, shown });
  nodes.body.style.height = `${shown + 2}px`;
  nodes.labels.style.height = `${height}px`;
  nodes.canvas.style.height = `${shown}px`;
  nodes.labels.replaceChildren(...lines.map((line) => labelOf(timeline, line)).filter(Boolean));
  timeline.redraw();
}

// hidden: rows with nothing but these kinds have no line.
function linesOf(scene, folded, enlarged, hidden) {
  const isShown = ({ lane, draw }) => lane && draw.kinds.some((kind) => !hidden.has(kind));
  const { head, rows } = scene;
  const high = rowHeight(scene);
  const lines = [];
  let y = 0;
  const add = (line, usual) => {
    const h = usual * enlarged;
    lines.push({ ...line, y, h });
    y += h;
  };
  // Before and after of a rank stand below each other.
  const pieces = [...grouped(rows, rankKey)];
  pieces.sort(([, [a]], [, [b]]) => a.rank - b.rank || a.part - b.part);
  for (const [key, mine] of pieces) {
    const [first] = mine;
    const { part, rank } = first;
    const named = `${head.parts[part].label} rank ${rank}`.trim();
    const lanes = grouped(mine.filter(isShown), (row) => row.lane);
    const band = mine.find((row) => !row.lane);
    const alone = !band && lanes.size === 1; // then rank and lane share a line
    if (!alone) add({ what: "rank", key, row: band, rank, part, label: named }, Math.max(high, 18));
    if (!alone && folded.has(key)) continue;
    // Where nothing else is known of a rank, its first lane is never hidden.
    const shownAnyway = !band && !mine.some((row) => row.onDevice) ? first.lane : null;
    const hidden = new Map();
    for (const [lane, levels] of lanes) {
      const [{ onDevice, isQuiet }] = levels;
      const keys = [threadsKey(first), ...(isQuiet ? [quietKey(first)] : [])];
      const more = keys.find((key) => folded.has(key));
      if (more && !onDevice && lane !== shownAnyway && !alone) {
        hidden.set(more, [...(hidden.get(more) ?? []), lane]);
        continue;
      }
      const label = alone ? `${named} · ${lane}` : lane;
      levels.forEach((row, level) => {
        if (level && folded.has(laneKey(row))) return;
        const fold = !level && levels.length > 1 ? laneKey(row) : null;
        add({ what: "row", row, key: fold, label: level ? "" : label, alone, levels }, high);
      });
    }
    for (const [more, names] of hidden) {
      const which = more.endsWith("quiet") ? "idle thread" : "thread";
      const label = `${names.length} ${which}${names.length === 1 ? "" : "s"}`;
      add({ what: "more", key: more, label, names }, 16);
    }
    y += 4 * enlarged;
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
  const text = line.label ?? "";
  if (folds) {
    const isFolded = view.folded.has(line.key);
    node.type = "button";
    node.setAttribute("aria-expanded", String(!isFolded));
    node.dataset.key = line.key;
    node.append(make("span", { textContent: isFolded ? "▸" : "▾", ariaHidden: "true" }));
  }
  node.append(make("span", { textContent: text }));
  node.title = line.names?.join(", ") ?? text;
  if (line.what === "rank") {
    const times = scene.head.times.find((one) => one.part === line.part && one.rank === line.rank);
    if (times?.hasCompute && times.communication) {
      const share = percent(times.exposed, times.span);
      // "before rank 0" needs the room.
      const isPair = scene.head.parts.length > 1;
      node.append(make("small", { textContent: isPair ? share : `${share} exposed` }));
      node.title = `${text}: ${share} exposed communication`;
    }
  } else if (line.levels && line.key && view.folded.has(line.key)) {
    node.append(make("small", { textContent: `+${line.levels.length - 1} levels` }));
  }
  node.style.top = `${line.y}px`;
  node.style.height = `${line.h}px`;
  return node;
}

const classOf = ({ what, alone }) => ({ row: alone ? "rank" : "lane", more: "lane" })[what] ?? what;

export function listenToLabels(timeline) {
  const { nodes, view, signal } = timeline;
  const act = (event) => {
    const key = event.target.closest("button")?.dataset.key;
    if (key === undefined) return;
    view.hasChosen = true;
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

export function setHidden(timeline, kind, isHidden) {
  const { view, nodes } = timeline;
  if (isHidden) view.hidden.add(kind);
  else view.hidden.delete(kind);
  nodes.legend.querySelector(`[data-kind="${kind}"]`)?.setAttribute("aria-pressed", String(!isHidden));
  layOut(timeline);
}

// Shows and unfolds what a slice is in, and returns its line.
export function unfold(timeline, i) {
  const { folded, hidden } = timeline.view;
  const kind = timeline.scene.columns.kind[i];
  if (hidden.has(kind)) setHidden(timeline, kind, false);
  const row = rowOf(timeline.scene, i);
  const keys = [rankKey(row), threadsKey(row), quietKey(row), ...(row.level ? [laneKey(row)] : [])];
  if (keys.filter((key) => folded.delete(key)).length) {
    timeline.view.hasChosen = true;
    layOut(timeline);
  }
  return timeline.lines.find((one) => one.row === row);
}
