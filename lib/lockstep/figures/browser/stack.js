// Memory over time: which allocations lie on each other in a state, and what is where on the x axis.

const BYTES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const TIMES = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];

export const count = (number) => number.toLocaleString("en-US");

// As base/formatting.py says it.
export function binary(bytes) {
  const [name, size] = BYTES.find(([, one]) => bytes >= one) ?? ["bytes", 1];
  if (size === 1) return `${bytes} bytes`;
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return `${(bytes / size).toLocaleString("en-US", digits)} ${name}`;
}

export function duration(ns) {
  const [name, size] = TIMES.find(([, one]) => ns >= one) ?? ["ns", 1];
  return `${(ns / size).toLocaleString("en-US", { maximumFractionDigits: 3 })} ${name}`;
}

const summed = (deltas) => {
  let at = 0;
  return Float64Array.from(deltas, (delta) => (at += delta));
};

// What Python says of some states, with columns as arrays; groups of states are counted from 0.
export function openStack(said) {
  const [begin, end, size, kind, line] = said.allocations;
  const full = summed(said.full);
  const totals = new Float64Array(full.length + 1);
  for (let i = 0; i < size.length; i++) {
    totals[begin[i]] += size[i];
    totals[end[i]] -= size[i];
  }
  for (let group = 1; group < full.length; group++) totals[group] += totals[group - 1];
  for (const band of said.rest) band.forEach((bytes, group) => (totals[group] += bytes));
  // Allocations come by kind, so that a kind's are these, and its rest lies on them.
  const first = said.kinds.map((_, at) => kind.findIndex((one) => one >= at));
  const from = [...first.map((one) => (one < 0 ? kind.length : one)), kind.length];
  const reserved = new Float64Array(full.length);
  const [steps, levels] = said.reserved;
  steps.forEach((step, at) => reserved.fill(levels[at], step));
  const [since, until] = said.began;
  const stays = new Set(said.open);
  return {
    ...{ ...said, full, totals, reserved, begin, end, size, kind, line, from, since, until, stays },
    edges: { events: summed(said.edges), time: summed(said.times) },
  };
}

// The group at a place on the x axis.
export function groupAt({ edges, full }, axis, x) {
  const places = edges[axis];
  let [low, high] = [0, full.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (places[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The group with the most bytes of those between two places: what is narrower than a pixel stays.
export function fullestBetween(stack, axis, x0, x1) {
  const places = stack.edges[axis];
  let best = groupAt(stack, axis, x0);
  while (best > 0 && places[best] >= x0 && places[best - 1] >= x0) best--;
  for (let group = best + 1; group < stack.full.length && places[group] < x1; group++)
    if (stack.totals[group] > stack.totals[best]) best = group;
  return best;
}

// Calls see(i, kind, from, to) of each allocation of a group from the bottom up; i is −1 for what is
// too small to be drawn by itself. Stops where see returns true.
export function climb({ begin, end, size, from, kinds, rest }, group, see) {
  let height = 0;
  for (let kind = 0; kind < kinds.length; kind++) {
    for (let i = from[kind]; i < from[kind + 1]; i++) {
      if (group < begin[i] || group >= end[i]) continue;
      if (see(i, kind, height, height + size[i])) return;
      height += size[i];
    }
    const others = rest[kind][group] ?? 0;
    if (others && see(-1, kind, height, height + others)) return;
    height += others;
  }
}

// By kind and line, the most bytes first; line −1 is of those too small. [{kind, bytes, lines: [{line, count, bytes}]}].
export function holders(stack, group) {
  const kinds = new Map();
  climb(stack, group, (i, kind, low, high) => {
    if (!kinds.has(kind)) kinds.set(kind, { kind, bytes: 0, lines: new Map() });
    const held = kinds.get(kind);
    const line = i < 0 ? -1 : stack.line[i];
    const row = held.lines.get(line) ?? { line, count: 0, bytes: 0 };
    row.count++;
    row.bytes += high - low;
    held.bytes += high - low;
    held.lines.set(line, row);
  });
  const most = (a, b) => (a.line < 0) - (b.line < 0) || b.bytes - a.bytes; // smaller ones last
  return [...kinds.values()].sort(most).map((held) => ({ ...held, lines: [...held.lines.values()].sort(most) }));
}
