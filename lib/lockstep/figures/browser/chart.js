// Curves and points. Places come as shares of the axes: what an axis is, Python knows.

import { make, svg } from "./nodes.js";

const HEIGHT = 320;
const MARGIN = { left: 62, right: 14, top: 24, bottom: 44 };
// As matplotlib calls them.
const MARKERS = {
  o: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
  s: "M-3.3 -3.3H3.3V3.3H-3.3Z",
  "^": "M0 -4.2L4 3.3H-4Z",
  D: "M0 -4.6L4.6 0L0 4.6L-4.6 0Z",
  v: "M0 4.2L4 -3.3H-4Z",
  P: "M-1.5 -4.2H1.5V-1.5H4.2V1.5H1.5V4.2H-1.5V1.5H-4.2V-1.5H-1.5Z",
  X: "M0 -2L2 -4L4 -2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0L-4 -2L-2 -4Z",
  "*": "M0 -5L1.3 -1.5H5L2 0.8L3 4.6L0 2.3L-3 4.6L-2 0.8L-5 -1.5H-1.3Z",
};

const lookOf = ({ colour, dash }) => ({
  ...{ fill: "none", stroke: colour, "stroke-width": 2.2 },
  "stroke-dasharray": dash.map((length) => 2.2 * length).join(" "),
});

const markerAt = ({ colour, marker }, x, y) =>
  svg("path", {
    ...{ d: MARKERS[marker], transform: `translate(${x} ${y})`, fill: colour },
    stroke: "var(--paper)",
  });

// A line, with what it scatters by, and points that say what they are.
function drawLine(inside, line, mark, x, y) {
  const points = line.points.map(([a, ...values]) => [x(a), ...values.map(y)]);
  const path = (some) => some.map((point) => point.join(",")).join(" ");
  const scatters = points[0].length > 2;
  if (scatters && !line.marker) {
    const edge = [...points.map(([a, , low]) => [a, low]), ...points.map(([a, , , high]) => [a, high]).reverse()];
    inside.append(svg("polygon", { points: path(edge), fill: line.colour, opacity: 0.2 }));
  }
  inside.append(svg("polyline", { points: path(points.map(([a, b]) => [a, b])), ...lookOf(line) }));
  if (line.crossed)
    inside.append(svg("circle", { cx: x(mark), cy: y(line.crossed[0]), r: 4, fill: line.colour }));
  if (!line.marker) return;
  points.forEach(([a, b, low, high], number) => {
    if (scatters) inside.append(svg("line", { x1: a, x2: a, y1: low, y2: high, stroke: line.colour }));
    const point = markerAt(line, a, b);
    point.append(svg("title", {}, line.said[number]));
    inside.append(point);
  });
}

export function drawChart(picture, chart, width, clip) {
  const wide = width - MARGIN.left - MARGIN.right;
  const high = HEIGHT - MARGIN.top - MARGIN.bottom;
  const x = (share) => MARGIN.left + share * wide;
  const y = (share) => MARGIN.top + (1 - share) * high;
  const parts = [];
  const every = width < 420 ? 2 : 1;
  chart.x.ticks.forEach(([at, text], number) => {
    parts.push(svg("line", { x1: x(at), x2: x(at), y1: y(0), y2: y(1), stroke: "var(--faint)" }));
    if (number % every === 0)
      parts.push(
        svg("text", { x: x(at), y: y(0) + 16, "text-anchor": at < 0.03 ? "start" : "middle" }, text),
      );
  });
  for (const [at, text] of chart.y.ticks) {
    parts.push(svg("line", { x1: x(0), x2: x(1), y1: y(at), y2: y(at), stroke: "var(--faint)" }));
    parts.push(svg("text", { x: x(0) - 6, y: y(at) + 4, "text-anchor": "end" }, text));
  }
  parts.push(svg("text", { x: x(1), y: HEIGHT - 8, "text-anchor": "end" }, chart.x.label));
  parts.push(svg("text", { x: 4, y: 14 }, chart.y.label));
  const bounds = { x: x(0), y: y(1), width: wide, height: high };
  parts.push(svg("clipPath", { id: clip }, svg("rect", bounds)));
  const inside = svg("g", { "clip-path": `url(#${clip})` });
  for (const line of chart.lines) drawLine(inside, line, chart.mark, x, y);
  if (chart.mark !== null) {
    const at = x(chart.mark);
    const ends = { x1: at, x2: at, y1: y(0), y2: y(1), stroke: "currentColor" };
    inside.append(svg("line", { ...ends, "stroke-dasharray": "2 3" }));
  }
  parts.push(inside, svg("rect", { ...bounds, fill: "none", stroke: "var(--line)" }));
  picture.setAttribute("width", width);
  picture.setAttribute("height", HEIGHT);
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.replaceChildren(...parts);
}

export const legendOfChart = ({ lines }) =>
  lines.map((line) => {
    const swatch = svg("svg", { width: 36, height: 12, "aria-hidden": "true" });
    swatch.append(svg("line", { x1: 0, x2: 36, y1: 6, y2: 6, ...lookOf(line) }));
    if (line.marker) swatch.append(markerAt(line, 18, 6));
    const value = line.crossed ? [make("strong", { textContent: line.crossed[1] })] : [];
    return make("span", {}, swatch, line.label, ...value);
  });
