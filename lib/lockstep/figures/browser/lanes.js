// What runs when: a lane for each rank, a box for each step.

import { make, svg } from "./nodes.js";

const ROW = 30;
const PATTERNS = {
  "": [],
  "/": ["M0 8L8 0M-2 2L2 -2M6 10L10 6"],
  "\\": ["M0 0L8 8M-2 6L2 10M6 -2L10 2"],
  x: ["M0 8L8 0M0 0L8 8"],
  "|": ["M4 0V8"],
  "-": ["M0 4H8"],
  ".": ["M2 1V3M6 5V7"],
};

const patternOf = (id, { colour, pattern }) =>
  svg(
    "pattern",
    { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
    svg("rect", { width: 8, height: 8, fill: colour }),
    ...PATTERNS[pattern].map((d) =>
      svg("path", { d, stroke: "var(--paper)", "stroke-width": 1.2, opacity: 0.55, fill: "none" }),
    ),
  );

// share: how long the lanes are beside the longest ones that are drawn.
export function drawLanes(picture, { lanes, kinds, axis }, width, name, share) {
  const left = 66;
  const right = lanes.some((lane) => lane.end) ? 62 : 4;
  const wide = (width - left - right) * share;
  const parts = Object.entries(kinds).map(([kind, look]) => patternOf(`${name}-${kind}`, look));
  lanes.forEach((lane, row) => {
    const y = row * ROW;
    parts.push(svg("text", { x: 0, y: y + ROW / 2 + 4 }, lane.label));
    parts.push(svg("rect", { x: left, y: y + 2, width: wide, height: ROW - 4, fill: "var(--soft)" }));
    parts.push(svg("text", { x: left + wide + 6, y: y + ROW / 2 + 4 }, lane.end));
    for (const [start, end, text, kind] of lane.boxes) {
      const room = (end - start) * wide;
      const place = { x: left + start * wide, y: y + 2, height: ROW - 4 };
      const box = svg("rect", {
        ...{ ...place, width: Math.max(room - (room > 3 ? 1 : 0), 0.5), rx: room > 6 ? 2 : 0 },
        fill: `url(#${name}-${kind})`,
      });
      box.append(svg("title", {}, text));
      parts.push(box);
      const needs = text.length * 7 + 5;
      if (room < needs) continue;
      // Letters stand on the colour with an edge of paper around each.
      const edge = { stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke" };
      const middle = { x: place.x + room / 2, y: y + ROW / 2 + 4, "text-anchor": "middle" };
      parts.push(svg("text", { ...middle, ...edge, "stroke-linejoin": "round" }, text));
    }
  });
  const foot = lanes.length * ROW + 14;
  parts.push(svg("text", { x: left, y: foot }, "0"));
  parts.push(svg("text", { x: left + wide, y: foot, "text-anchor": "end" }, axis.end));
  // Between both ends if there is room, else below them, and nowhere if a line is too short.
  const long = axis.label.length * 7;
  const fits = wide > long + 2 * axis.end.length * 7;
  const title = fits ? { x: left + wide / 2, y: foot } : { x: 0, y: foot + 16 };
  const shown = fits || long < width;
  const anchor = fits ? "middle" : "start";
  if (shown) parts.push(svg("text", { ...title, "text-anchor": anchor }, axis.label));
  const high = (shown ? title.y : foot) + 6;
  picture.setAttribute("width", width);
  picture.setAttribute("height", high);
  picture.setAttribute("viewBox", `0 0 ${width} ${high}`);
  picture.replaceChildren(...parts);
}

export function legendOfLanes({ kinds, axis }, name) {
  const spans = Object.entries(kinds).map(([kind, { label }]) => {
    const fill = svg("rect", { width: 24, height: 12, rx: 2, fill: `url(#${name}-${kind})` });
    return make("span", {}, svg("svg", { width: 24, height: 12, "aria-hidden": "true" }, fill), label);
  });
  const soft = svg("rect", { width: 24, height: 12, rx: 2, fill: "var(--soft)", stroke: "var(--line)" });
  const idle = svg("svg", { width: 24, height: 12, "aria-hidden": "true" }, soft);
  return [...spans, make("span", {}, idle, axis.empty)];
}
