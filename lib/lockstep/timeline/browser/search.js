// The search: which names, and so which slices, hold what was typed.

import { makeRow } from "./rows.js";

// isIn: by name, whether the query is in it; null while nothing is searched for.
// rows: the matches of each row, as a row for drawing, once it was drawn.
// counts: by name, its slices; from the first search on.
export const noSearch = () => ({ isIn: null, rows: new Map(), counts: null });

export function searchFor(timeline, query) {
  const { scene, search, nodes } = timeline;
  const wanted = query.trim().toLowerCase();
  search.rows.clear();
  if (!wanted) {
    search.isIn = null;
    nodes.found.textContent = "";
  } else {
    search.counts ??= countNames(scene);
    search.isIn = Uint8Array.from(scene.head.names, (name) => name.toLowerCase().includes(wanted));
    let hits = 0;
    search.isIn.forEach((hit, name) => (hits += hit * search.counts[name]));
    nodes.found.textContent = hits === 1 ? "1 match" : `${hits.toLocaleString("en-GB")} matches`;
  }
  nodes.root.dataset.matches = nodes.found.textContent;
  timeline.redraw();
}

function countNames({ head, columns, total }) {
  const counts = new Uint32Array(head.names.length);
  for (let i = 0; i < total; i++) counts[columns.name[i]]++;
  return counts;
}

export const isMatch = ({ scene, search }, i) => search.isIn[scene.columns.name[i]];

// The matches of a row, for drawing.
export function matchesOf({ scene: { columns }, search: { isIn, rows } }, row) {
  if (rows.has(row)) return rows.get(row);
  const { first, last } = row;
  let n = 0;
  for (let i = first; i < last; i++) n += isIn[columns.name[i]];
  const [start, duration] = [new Float64Array(n), new Float64Array(n)];
  const kind = new Uint8Array(n);
  for (let i = first, k = 0; i < last; i++)
    if (isIn[columns.name[i]]) {
      start[k] = columns.start[i];
      duration[k] = columns.duration[i];
      kind[k++] = columns.kind[i];
    }
  const matches = makeRow(start, duration, kind, row.draw.kinds);
  rows.set(row, matches);
  return matches;
}
