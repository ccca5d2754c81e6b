// Curves over measured points. Places come as shares of the axes: what an axis is, Python knows.

import { make, svg } from "./nodes.js";

const HEIGHT = 300;
const MARGIN = { left: 62, right: 14, top: 10, bottom: 44 };

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
  const bounds = { x: x(0), y: y(1), width: wide, height: high };
  parts.push(svg("clipPath", { id: clip }, svg("rect", bounds)));
  const inside = svg("g", { "clip-path": `url(#${clip})` });
  for (const { colour, dash, points } of chart.lines)
    inside.append(
      svg("polyline", {
        ...{ fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash },
        points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" "),
      }),
    );
  for (const { colour, points } of chart.dots)
    for (const [a, b] of points)
      inside.append(
        svg("circle", { cx: x(a), cy: y(b), r: 3.5, fill: colour, stroke: "var(--paper)" }),
      );
  const at = x(chart.mark);
  inside.append(
    svg("line", {
      ...{ x1: at, x2: at, y1: y(0), y2: y(1), stroke: "currentColor" },
      "stroke-dasharray": "2 3",
    }),
  );
  parts.push(inside, svg("rect", { ...bounds, fill: "none", stroke: "var(--line)" }));
  picture.setAttribute("width", width);
  picture.setAttribute("height", HEIGHT);
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.replaceChildren(...parts);
}

export function legendOfChart(chart) {
  const swatch = (...inside) => {
    const picture = svg("svg", { width: 30, height: 12, "aria-hidden": "true" }, ...inside);
    return picture;
  };
  return [
    ...chart.lines.map(({ label, colour, dash }) => {
      const look = { stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash };
      const line = svg("line", { x1: 0, x2: 30, y1: 6, y2: 6, ...look });
      return make("span", {}, swatch(line), label);
    }),
    ...chart.dots.map(({ label, colour }) => {
      const dots = [5, 15, 25].map((cx) => svg("circle", { cx, cy: 6, r: 3.5, fill: colour }));
      return make("span", {}, swatch(...dots), label);
    }),
  ];
}
