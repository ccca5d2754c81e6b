// What a range of time holds: shares of each rank's time, waiting times, slices by name.

import { make } from "./nodes.js";
import { bisect, busy } from "./rows.js";
import { communicationOf, endOf, nameOf, rowOf } from "./scene.js";
import { select, visit } from "./selection.js";
import { inWords, percent } from "./words.js";

const MOST_NAMES = 100; // in the list

export function markRange(timeline, from, to) {
  const { scene, view, nodes } = timeline;
  const [t0, t1] = [Math.max(Math.min(from, to), 0), Math.min(Math.max(from, to), scene.head.span)];
  if (!(t1 > t0)) return;
  select(timeline, -1);
  view.range = [t0, t1];
  nodes.said.replaceChildren(make("div", { textContent: `${inWords(t1 - t0)} from ${inWords(t0)} on` }));
  nodes.root.dataset.range = `${t0} ${t1}`;
}

export function reportRange(timeline, from, to) {
  markRange(timeline, from, to);
  const { scene, view, nodes } = timeline;
  if (!view.range || scene.head.isOverview) return;
  nodes.list.replaceChildren(ranksTable(timeline), namesList(timeline, namesIn(scene, ...view.range)));
}

const rankOf = ({ head }, row) => `${head.parts[row.part].label} rank ${row.rank}`.trim();
const line = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, {}, cell)));
const scrolling = (table) => make("div", { className: "ls-range", tabIndex: 0 }, table);

// ── By rank ──────────────────────────────────────────────────────────────────────────────────

// Of the range, the share of each kind in a rank's first line; how long it waits, and others for it.
function ranksTable(timeline) {
  const { scene, view } = timeline;
  const { kinds } = scene.head;
  const [t0, t1] = view.range;
  const firsts = new Map();
  for (const row of scene.rows)
    if (!firsts.has(rankOf(scene, row))) firsts.set(rankOf(scene, row), row);
  const shares = [...firsts].map(([name, row]) => [name, busy(row.draw, t0, t1)]);
  const shown = Object.keys(kinds).filter((kind) => shares.some(([, one]) => one[kind]?.[0] > 0));
  const waits = waitsIn(timeline, t0, t1);
  const more = waits.size ? ["waits for others", "others wait for it"] : [];
  const table = make("table", {}, line("th", ["rank", ...shown.map((kind) => kinds[kind].label), ...more]));
  for (const [name, one] of shares) {
    const { own = 0, caused = 0 } = waits.get(name) ?? {};
    const times = more.length ? [own, caused].map(inWords) : [];
    table.append(line("td", [name, ...shown.map((kind) => percent(one[kind]?.[0] ?? 0, t1 - t0)), ...times]));
  }
  return scrolling(table);
}

// By rank: how long its slices in the range wait for the last rank, and how long others wait for its.
function waitsIn(timeline, t0, t1) {
  const { scene } = timeline;
  const { start, communications } = scene.columns;
  const { until, last } = (timeline.waits ??= waitsOf(scene));
  const found = new Map();
  const of = (i) => {
    const name = rankOf(scene, rowOf(scene, i));
    if (!found.has(name)) found.set(name, { own: 0, caused: 0 });
    return found.get(name);
  };
  communications.forEach((i, k) => {
    const time = Math.min(until[k], t1) - Math.max(start[i], t0);
    if (!(time > 0)) return;
    of(i).own += time;
    of(last[k]).caused += time;
  });
  return found;
}

// For each communication, which slice of the same one came last, and until when it waits for that.
function waitsOf(scene) {
  const { start, communications, instance } = scene.columns;
  const lasts = new Map();
  communications.forEach((i, k) => {
    const other = lasts.get(instance[k]);
    if (other === undefined || start[i] > start[other]) lasts.set(instance[k], i);
  });
  const [until, last] = [new Float64Array(instance.length), new Uint32Array(instance.length)];
  communications.forEach((i, k) => {
    const { oneClock, resolution } = scene.head.parts[rowOf(scene, i).part];
    last[k] = lasts.get(instance[k]);
    const end = Math.min(start[last[k]], endOf(scene, i));
    if (instance[k] >= 0 && oneClock && end - start[i] > (resolution ?? 0)) until[k] = end;
  });
  return { until, last };
}

// ── By name ──────────────────────────────────────────────────────────────────────────────────

// exposed: null where nothing is known to be. at: the slice that is exposed, or else lasts, longest.
const newName = (name) => ({ name, slices: 0, time: 0, exposed: null, longest: null, lasts: -1, at: -1 });

function namesIn(scene, t0, t1) {
  const found = new Map();
  for (const row of scene.rows.filter((one) => one.lane)) {
    const band = scene.rows.find((one) => !one.lane && one.part === row.part && one.rank === row.rank);
    const { start, duration, n } = row.draw;
    let k = bisect(start, t0, 0, n, false);
    if (k > 0 && start[k - 1] + duration[k - 1] > t0) k--;
    for (; k < n && start[k] < t1; k++) {
      const [i, name] = [row.first + k, scene.columns.name[row.first + k]];
      if (!found.has(name)) found.set(name, newName(nameOf(scene, i)));
      const [from, to] = [Math.max(start[k], t0), Math.min(start[k] + duration[k], t1)];
      const isKnown = band && row.communicates && communicationOf(scene, i) >= 0;
      tally(found.get(name), i, to - from, isKnown ? exposedIn(scene, band, from, to) : null);
    }
  }
  return [...found.values()];
}

const exposedIn = ({ head }, band, from, to) =>
  to > from ? (busy(band.draw, from, to)[head.exposed]?.[0] ?? 0) : 0;

function tally(one, i, time, exposed) {
  one.slices++;
  one.time += time;
  if (exposed !== null) one.exposed += exposed;
  if (exposed > one.longest || (exposed === one.longest && time > one.lasts))
    Object.assign(one, { longest: exposed, lasts: time, at: i });
}

const COLUMNS = {
  name: (one) => one.name,
  slices: (one) => one.slices.toLocaleString("en-GB"),
  time: (one) => inWords(one.time),
  exposed: (one) => (one.exposed === null ? "–" : inWords(one.exposed)),
  longest: (one) => (one.exposed === null ? "–" : inWords(one.longest)),
};
const LABELS = { exposed: "exposed time", longest: "longest exposed" };

function namesList(timeline, names) {
  const list = scrolling(namesTable(timeline, names));
  const act = ({ target: { dataset } }) => {
    if (dataset.at) visit(timeline, Number(dataset.at));
    if (!dataset.by) return;
    timeline.sortedBy = dataset.by;
    list.replaceChildren(namesTable(timeline, names));
    list.querySelector("[aria-sort] button").focus();
  };
  list.addEventListener("click", act, { signal: timeline.signal });
  return list;
}

function namesTable({ sortedBy }, names) {
  const value = (one) => one[sortedBy] ?? -1;
  const byName = (a, b) => a.name.localeCompare(b.name);
  const byNumber = (a, b) => value(b) - value(a) || b.time - a.time;
  const sorted = [...names].sort(sortedBy === "name" ? byName : byNumber);
  const heads = Object.keys(COLUMNS).map((key) => sorter(LABELS[key] ?? key, key));
  const table = make("table", {}, line("th", heads));
  const how = sortedBy === "name" ? "ascending" : "descending";
  table.querySelector(`[data-by="${sortedBy}"]`).parentElement.setAttribute("aria-sort", how);
  for (const one of sorted.slice(0, MOST_NAMES)) {
    const [name, ...cells] = Object.values(COLUMNS).map((text) => text(one));
    const link = make("button", { type: "button", className: "ls-name", textContent: name, title: name });
    link.dataset.at = one.at;
    table.append(line("td", [link, ...cells]));
  }
  const more = names.length - MOST_NAMES;
  if (more > 0) table.append(line("td", [`${more} more names: sort otherwise, or take a shorter range`]));
  return table;
}

function sorter(textContent, by) {
  const node = make("button", { type: "button", textContent, title: `sort by ${textContent}` });
  node.dataset.by = by;
  return node;
}
