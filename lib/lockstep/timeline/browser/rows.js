// The slices of one row, sorted by start, and what they show in each pixel: found by binary search
// and by sums of blocks, so that it costs the same however many slices there are.

const BLOCK = 32; // slices that are summed up together
const WIDE = 1.5; // device pixels from which a slice is drawn on its own

// The first index in [from, to) whose value is not below (or, with `after`, is above) `wanted`.
export function bisect(values, wanted, from, to, after) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] < wanted || (after && values[middle] === wanted)) from = middle + 1;
    else to = middle;
  }
  return from;
}

// The same as bisect, from a place that is probably near.
export function bisectOn(values, wanted, from, to) {
  let step = 1;
  while (from + step < to && values[from + step] < wanted) step *= 2;
  return bisect(values, wanted, from + (step >> 1), Math.min(from + step, to), false);
}

// A row for drawing: `n` slices that do not overlap, of these kinds.
export function makeRow(start, duration, kind, kinds) {
  const slot = new Int8Array(256);
  kinds.forEach((one, at) => (slot[one] = at));
  return { start, duration, kind, kinds, slot, n: start.length, blocks: null };
}

// For each block, the time of each kind in all blocks before.
function blocksOf(row) {
  if (row.blocks) return row.blocks;
  const { duration, kind, slot, n } = row;
  const K = row.kinds.length;
  const blocks = new Float64Array((Math.floor(n / BLOCK) + 1) * K);
  const sums = new Float64Array(K);
  for (let i = 0, at = 0; i < n; i++) {
    if (i % BLOCK === 0) for (let k = 0; k < K; k++) blocks[at++] = sums[k];
    sums[slot[kind[i]]] += duration[i];
  }
  if (n % BLOCK === 0) blocks.set(sums, (n / BLOCK) * K);
  return (row.blocks = blocks);
}

// Adds the time of the slices [i, j) to into[at + slot of their kind].
function addUp(row, i, j, into, at) {
  const { duration, kind, slot } = row;
  const first = Math.ceil(i / BLOCK);
  const last = Math.floor(j / BLOCK);
  if (first < last) {
    const blocks = blocksOf(row);
    const K = row.kinds.length;
    for (let k = 0; k < K; k++) into[at + k] += blocks[last * K + k] - blocks[first * K + k];
    for (; i < first * BLOCK; i++) into[at + slot[kind[i]]] += duration[i];
    i = last * BLOCK;
  }
  for (; i < j; i++) into[at + slot[kind[i]]] += duration[i];
}

// What a row shows in `width` pixels of `per` nanoseconds from t0 on. Slices that are wide enough
// go to box(i); of all others the exact time within each pixel is in the result, by kind.
export function walk(row, t0, per, width, box) {
  const { start, duration, n, slot, kind } = row;
  const K = row.kinds.length;
  const cover = new Float64Array(width * K);
  const t1 = t0 + per * width;
  let i = bisect(start, t0, 0, n, true);
  if (i > 0 && start[i - 1] + duration[i - 1] > t0) i--;
  while (i < n && start[i] < t1) {
    if (duration[i] >= WIDE * per) {
      box(i++);
      continue;
    }
    const column = Math.min(Math.max(Math.floor((start[i] - t0) / per), 0), width - 1);
    const until = t0 + (column + 1) * per;
    let j = Math.max(bisectOn(start, until, i, n), i + 1);
    if (j - i > 1 && duration[j - 1] >= WIDE * per) j--;
    addUp(row, i, j, cover, column * K);
    const k = slot[kind[i]];
    if (start[i] < t0) cover[column * K + k] -= t0 - start[i];
    const last = j - 1; // it may go on into the next two pixels
    const rest = start[last] + duration[last] - until;
    if (rest > 0) {
      const s = slot[kind[last]];
      cover[column * K + s] -= rest;
      if (column + 1 < width) cover[(column + 1) * K + s] += Math.min(rest, per);
      if (rest > per && column + 2 < width) cover[(column + 2) * K + s] += rest - per;
    }
    i = j;
  }
  return cover;
}

// By kind, the nanoseconds of a row in each of `width` equal pieces of [t0, t1).
export function busy(row, t0, t1, width = 1) {
  const { start, duration, kind, kinds, slot } = row;
  const per = (t1 - t0) / width;
  const sums = kinds.map(() => new Array(width).fill(0));
  const cover = walk(row, t0, per, width, (i) => {
    const [begin, end] = [Math.max(start[i], t0), Math.min(start[i] + duration[i], t1)];
    for (let x = Math.floor((begin - t0) / per); x < width && t0 + x * per < end; x++)
      sums[slot[kind[i]]][x] += Math.min(end, t0 + (x + 1) * per) - Math.max(begin, t0 + x * per);
  });
  sums.forEach((one, k) => one.forEach((_, x) => (one[x] += cover[x * kinds.length + k])));
  return Object.fromEntries(kinds.map((one, k) => [one, sums[k]]));
}
