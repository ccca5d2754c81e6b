// What is known of a slice, in words; and which slice is under the pointer.

import { make } from "./nodes.js";
import { bisect, bisectOn, busy } from "./rows.js";
import { communicationIn, communicationOf, knownOf, membersOf, nameOf, operationOf, rowOf } from "./scene.js";
import { bytesInWords, inWords, percent, ranksInWords } from "./words.js";

// ── In words ─────────────────────────────────────────────────────────────────────────────────

export function wordsOf(scene, i) {
  const { head, columns } = scene;
  const row = rowOf(scene, i);
  const where = row.lane ? ` · ${row.lane}` : "";
  const part = head.parts[row.part].label;
  const lines = [
    nameOf(scene, i),
    `${part ? `${part} · ` : ""}rank ${row.rank}${where} · ${head.kinds[columns.kind[i]].label}`,
    `starts at ${inWords(columns.start[i])}, lasts ${inWords(columns.duration[i])}`,
  ];
  const inside = communicationIn(scene, i);
  if (inside >= 0) lines.push(`by ${operationOf(scene, inside)} (${rowOf(scene, inside).lane})`);
  const known = knownOf(scene, i);
  if (known) lines.push(...messageInWords(known, columns.duration[i]));
  if (communicationOf(scene, i) >= 0) lines.push(...waitInWords(scene, i));
  return lines;
}

function messageInWords(known, duration) {
  const bytes = Math.max(known.in, known.out);
  const words = [known.operation || "communication"];
  if (bytes >= 0) words.push(`of ${bytesInWords(bytes)}`);
  if (known.dtype) words.push(`(${known.dtype})`);
  if (known.peer >= 0) words.push(`with rank ${known.peer}`);
  const lines = [words.join(" ")];
  if (bytes >= 0 && duration > 0)
    lines[0] += `: ${Number((bytes / duration).toPrecision(3))} GB/s (bytes / duration)`;
  if (known.group || known.ranks.length)
    lines.push(`group ${known.group || "?"}${known.ranks.length ? `: ranks ${ranksInWords(known.ranks)}` : ""}`);
  return lines;
}

function waitInWords(scene, i) {
  const { waits, last, others } = membersOf(scene, i);
  const mine = waits.find((one) => one.i === i);
  if (mine) {
    const late = inWords(mine.until - scene.columns.start[i]);
    return [`waits ${late} for rank ${rowOf(scene, last).rank}, which came last`];
  }
  if (last === i) return [`came last of ${others.length} ranks`];
  if (others.length > 1 && !scene.head.parts[rowOf(scene, i).part].oneClock)
    return ["the ranks' clocks are not aligned: waiting times are unknown (call trace.align())"];
  return [];
}

function crowdInWords({ head }, { crowd, row, t0, t1 }) {
  const shares = Object.entries(busy(row.draw, t0, t1)).filter(([, [time]]) => time > 0);
  const told = shares.map(([kind, [time]]) => `${head.kinds[kind].label} ${percent(time, t1 - t0)}`);
  return [
    `${crowd === 1000 ? "1,000 or more" : crowd} slices around here`,
    `rank ${row.rank}${row.lane ? ` · ${row.lane}` : ""} · zoom in to tell them apart`,
    `busy in this pixel (${inWords(t1 - t0)}): ${told.join(", ") || "nothing"}`,
  ];
}

// ── Under the pointer ────────────────────────────────────────────────────────────────────────

// The slice at a pointer's place; how many share its pixel, and what of it they cover.
export function sliceAt({ scene, view, nodes, lines, width }, event) {
  if (scene.head.isOverview) return null;
  const box = nodes.canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top + nodes.body.scrollTop];
  const line = lines.find((one) => one.row && one.y <= y && y < one.y + one.h);
  if (!line) return null;
  const { draw: row, first } = line.row;
  const per = (view.t1 - view.t0) / width;
  const t = view.t0 + x * per;
  const before = bisect(row.start, t, 0, row.n, true) - 1;
  const isShown = (k) => !view.hidden.has(row.kind[k]);
  if (before >= 0 && isShown(before) && row.start[before] + row.duration[before] > t && row.duration[before] > per)
    return { i: first + before, crowd: 1 };
  const from = Math.max(bisect(row.start, t - per, 0, row.n, false) - 1, 0);
  const to = bisectOn(row.start, t + per, from, row.n);
  const near = [];
  for (let k = from; k < to && near.length < 1000; k++)
    if (isShown(k) && row.start[k] + row.duration[k] >= t - per) near.push(k);
  if (!near.length) return null;
  const distance = (k) => Math.max(row.start[k] - t, t - row.start[k] - row.duration[k], 0);
  const nearest = near.reduce((a, b) => (distance(b) < distance(a) ? b : a));
  if (to - from <= 3) return { i: first + nearest, crowd: 1 };
  const [t0, t1] = [Math.floor(x) * per + view.t0, (Math.floor(x) + 1) * per + view.t0];
  return { i: first + nearest, crowd: to - from, row: line.row, t0, t1 };
}

export function hover(timeline, event) {
  const { scene } = timeline;
  const { tip, root } = timeline.nodes;
  const found = sliceAt(timeline, event);
  tip.hidden = !found;
  if (!found) return;
  const words = found.crowd > 1 ? crowdInWords(scene, found) : wordsOf(scene, found.i);
  tip.replaceChildren(...words.map((text) => make("div", { textContent: text })));
  const outer = root.getBoundingClientRect();
  const left = event.clientX - outer.left + 14;
  tip.style.left = `${Math.max(0, Math.min(left, outer.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${event.clientY - outer.top + 16}px`;
}
