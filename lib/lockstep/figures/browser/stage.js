// What each rank holds, and the messages that are under way: a row is a rank, a column a chunk.

import { svg } from "./nodes.js";

const ROW = 40;
const BETWEEN_NODES = 16;
const TOP = 20;

function layoutOf(film, width) {
  const left = width < 420 ? 46 : 58;
  const chunks = film.states[0][0].length;
  const column = Math.min((width - left - 10) / chunks, chunks === 1 ? 220 : 96);
  const cell = Math.min(column * 0.7, 64);
  const perNode = film.ranks / film.nodes;
  const y = (rank) => TOP + rank * ROW + Math.floor(rank / perNode) * BETWEEN_NODES + ROW / 2;
  const x = (chunk) => left + column * (chunk + 0.5);
  return { left, chunks, column, cell, x, y, height: y(film.ranks - 1) + ROW / 2 + 4 };
}

// Squares of the ranks whose numbers are in `bits`, in the same places everywhere.
function boxOf(film, cell, bits, isMoving) {
  const high = ROW - 12;
  const sizeOf = (across) =>
    Math.min((cell - 4) / across, (high - 4) / Math.ceil(film.ranks / across), 12);
  const ways = [4, 2, 3, 1, 5, 6, 7, 8].filter((across) => across <= film.ranks);
  const across = ways.reduce((best, one) => (sizeOf(one) > sizeOf(best) ? one : best));
  const down = Math.ceil(film.ranks / across);
  const size = sizeOf(across);
  const isWhole = bits === film.whole;
  const box = svg("g", { "data-bits": bits });
  box.append(
    svg("rect", {
      ...{ x: -cell / 2, y: -high / 2, width: cell, height: high, rx: 3, stroke: "currentColor" },
      "stroke-width": isWhole ? 2.5 : 0.8,
      fill: "var(--paper)",
      "stroke-dasharray": isMoving ? "3 2" : "none",
    }),
  );
  for (let rank = 0; rank < film.ranks; rank++) {
    const isIn = (bits >> rank) & 1;
    box.append(
      svg("rect", {
        x: ((rank % across) - across / 2) * size + 0.75,
        y: (Math.floor(rank / across) - down / 2) * size + 0.75,
        width: size - 1.5,
        height: size - 1.5,
        fill: isIn ? film.colours[rank] : "var(--faint)",
      }),
    );
  }
  return box;
}

// Down on the right of a column, up on its left.
function wayOf(layout, one, chunk) {
  const side = one.to > one.from ? 1 : -1;
  const edge = layout.x(chunk) + side * (layout.cell / 2 + 1);
  const room = (layout.column - layout.cell) / 2 + (layout.chunks > 1 ? 3 : 0);
  const bulge = side * Math.min(room, 8 + 7 * Math.abs(one.to - one.from)) * 1.6;
  const [a, b] = [layout.y(one.from), layout.y(one.to)];
  return { edge, bulge, a, b };
}

const pointAt = ({ edge, bulge, a, b }, share) => ({
  x: edge + 2 * share * (1 - share) * bulge,
  y: a + share * (b - a),
});

function arrowOf(layout, one, chunk) {
  const way = wayOf(layout, one, chunk);
  const lean = Math.sign(way.bulge);
  const dash = one.adds ? "none" : "4 3";
  return svg(
    "g",
    { fill: "none", stroke: "#D55E00", "stroke-width": 1.8 },
    svg("path", {
      d: `M${way.edge} ${way.a}Q${way.edge + way.bulge} ${(way.a + way.b) / 2} ${way.edge} ${way.b}`,
      "stroke-dasharray": dash,
    }),
    svg("path", {
      d: `M${way.edge + lean * 6} ${way.b + Math.sign(way.a - way.b) * 5}L${way.edge} ${way.b}` +
        `L${way.edge + lean * 7.5} ${way.b - Math.sign(way.a - way.b) * 1.5}`,
    }),
  );
}

// time: 2 is the end of round 2, and 1.5 the middle of it.
export function drawStage(picture, film, time, width) {
  const layout = layoutOf(film, width);
  const round = Math.ceil(time);
  const share = time - Math.floor(time);
  const state = film.states[Math.floor(time)];
  const rows = [];
  if (layout.chunks > 1)
    for (let chunk = 0; chunk < layout.chunks; chunk++)
      rows.push(svg("text", { x: layout.x(chunk), y: 12, "text-anchor": "middle" }, String(chunk)));
  rows.push(svg("text", { x: 0, y: 12 }, layout.chunks > 1 ? "chunk" : ""));
  state.forEach((held, rank) => {
    rows.push(svg("text", { x: 0, y: layout.y(rank) + 4 }, `rank ${rank}`));
    held.forEach((bits, chunk) => {
      const box = boxOf(film, layout.cell, bits, false);
      box.setAttribute("transform", `translate(${layout.x(chunk)} ${layout.y(rank)})`);
      rows.push(box);
    });
  });
  const perNode = film.ranks / film.nodes;
  for (let node = 1; node < film.nodes; node++) {
    const y = layout.y(node * perNode) - ROW / 2 - BETWEEN_NODES / 2;
    const ends = { x1: 0, x2: layout.left + layout.column * layout.chunks, y1: y, y2: y };
    rows.push(svg("line", { ...ends, stroke: "var(--line)", "stroke-dasharray": "2 4" }));
  }
  const messages = round ? film.rounds[round - 1] : [];
  for (const one of messages)
    for (const chunk of one.chunks) rows.push(arrowOf(layout, one, chunk));
  if (share)
    for (const one of messages)
      for (const chunk of one.chunks) {
        const { x, y } = pointAt(wayOf(layout, one, chunk), share);
        const box = boxOf(film, layout.cell, state[one.from][chunk], true);
        box.setAttribute("transform", `translate(${x} ${y}) scale(0.8)`);
        rows.push(box);
      }
  picture.setAttribute("width", width);
  picture.setAttribute("height", layout.height);
  picture.setAttribute("viewBox", `0 0 ${width} ${layout.height}`);
  picture.replaceChildren(...rows);
}
