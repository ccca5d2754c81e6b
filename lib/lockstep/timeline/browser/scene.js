// What Python sends (see scene.py), and what can be asked about a slice. Nothing here is ever
// changed: one scene may be shown in several places.
//
// Every slice is here, in typed arrays sorted by row and start; `i` is a slice's place in them.

import { bisect, makeRow } from "./rows.js";
import { shortName } from "./words.js";

const ARRAYS = {
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float64: Float64Array,
};

// buffers: one a column, as DataView or Uint8Array.
export function openScene(text, buffers) {
  const head = JSON.parse(text);
  const columns = {};
  head.columns.forEach(([name, type], at) => {
    const { buffer, byteOffset, byteLength } = buffers[at];
    const isAligned = byteOffset % 8 === 0;
    const from = isAligned ? buffer : buffer.slice(byteOffset, byteOffset + byteLength);
    const array = ARRAYS[type];
    columns[name] = new array(from, isAligned ? byteOffset : 0, byteLength / array.BYTES_PER_ELEMENT);
  });
  const rows = head.rows.map(([part, rank, lane, level, first, last, kinds, onDevice, isQuiet]) => ({
    ...{ part, rank, lane, level, first, last, onDevice, isQuiet },
    communicates: placeIn(columns.communications, first) < placeIn(columns.communications, last),
    draw: makeRow(
      columns.start.subarray(first, last),
      columns.duration.subarray(first, last),
      columns.kind.subarray(first, last),
      kinds,
    ),
  }));
  return { head, columns, rows, firsts: rows.map((row) => row.first), total: columns.start.length };
}

export const rowOf = ({ rows, firsts }, i) => rows[bisect(firsts, i, 0, rows.length, true) - 1];
export const endOf = ({ columns }, i) => columns.start[i] + columns.duration[i];
export const nameOf = ({ head, columns }, i) => head.names[columns.name[i]];

// ── Collectives and launches ─────────────────────────────────────────────────────────────────

const placeIn = (communications, i) => bisect(communications, i, 0, communications.length, false);

export function communicationOf({ columns: { communications } }, i) {
  const at = placeIn(communications, i);
  return communications[at] === i ? at : -1;
}

export const knownOf = (scene, i) =>
  scene.head.collectives[scene.columns.known[communicationOf(scene, i)]];

// What a communication is called in few words; of other slices the name.
export const operationOf = (scene, i) => knownOf(scene, i)?.operation || shortName(nameOf(scene, i));

// Of a block of the band above a rank's lanes: the communication that fills most of it, or -1.
export function communicationIn(scene, i) {
  const { part, rank, lane } = rowOf(scene, i);
  const [t0, t1] = [scene.columns.start[i], endOf(scene, i)];
  let [most, found] = [0, -1];
  for (const { draw, first, ...row } of lane ? [] : scene.rows) {
    if (row.part !== part || row.rank !== rank || !row.communicates) continue;
    let k = Math.max(bisect(draw.start, t0, 0, draw.n, true) - 1, 0);
    for (; k < draw.n && draw.start[k] < t1; k++) {
      const shared = Math.min(draw.start[k] + draw.duration[k], t1) - Math.max(draw.start[k], t0);
      if (shared > most && communicationOf(scene, first + k) >= 0) [most, found] = [shared, first + k];
    }
  }
  return found;
}

// What is meant by a click on a slice: of a block that communicates, its communication.
export function meantBy(scene, i) {
  const inside = i < 0 ? -1 : communicationIn(scene, i);
  return inside < 0 ? i : inside;
}

// All ranks' slices of the same collective, and what each waited for the last.
export function membersOf(scene, i) {
  const { columns } = scene;
  const at = communicationOf(scene, i);
  const instance = at < 0 ? -1 : columns.instance[at];
  if (instance < 0) return { others: [i], waits: [], last: -1 };
  const others = [];
  for (let k = 0; k < columns.instance.length; k++)
    if (columns.instance[k] === instance) others.push(columns.communications[k]);
  const part = scene.head.parts[rowOf(scene, i).part];
  if (others.length < 2 || !part.oneClock) return { others, waits: [], last: -1 };
  const last = others.reduce((a, b) => (columns.start[b] > columns.start[a] ? b : a));
  const waits = others
    .map((one) => ({ i: one, until: Math.min(columns.start[last], endOf(scene, one)) }))
    .filter((one) => one.until - columns.start[one.i] > (part.resolution ?? 0));
  return { others, waits, last };
}

// What launched a slice, and what it launched.
export function launchesOf({ columns: { launches, launched } }, i) {
  const [from, to] = [[], []];
  for (let k = 0; k < launches.length && to.length < 200; k++) {
    if (launches[k] === i) to.push(launched[k]);
    if (launched[k] === i) from.push(launches[k]);
  }
  return { from, to };
}
