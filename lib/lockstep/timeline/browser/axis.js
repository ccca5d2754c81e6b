// The axis of time above the lanes.

import { xOf } from "./view.js";

const HEIGHT = 22;

export function drawAxis(timeline) {
  const { view, width, ratio, colours, left, enlarged } = timeline;
  const { axis } = timeline.nodes;
  const all = width + left;
  const high = HEIGHT * enlarged;
  const [W, H] = [Math.round(all * ratio), Math.round(high * ratio)];
  if (axis.width !== W || axis.height !== H) Object.assign(axis, { width: W, height: H });
  axis.style.cssText = `width:${all}px;height:${high}px`;
  const context = axis.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, all, high);
  context.font = `${11 * enlarged}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.fillStyle = colours.muted;
  context.strokeStyle = colours.muted;
  context.fillText("time", 4, high / 2);
  context.beginPath();
  const { step, inUnit } = ticksOf(view, width / enlarged);
  for (let tick = Math.ceil(view.t0 / step); tick * step <= view.t1; tick++) {
    const x = left + xOf(timeline, tick * step);
    context.moveTo(x, high - 5);
    context.lineTo(x, high);
    const text = inUnit(tick * step);
    const wide = context.measureText(text).width;
    if (x + wide / 2 < all) context.fillText(text, Math.max(x - wide / 2, left), high / 2 - 2);
  }
  context.stroke();
}

// The nanoseconds from tick to tick, and how a time is written.
function ticksOf({ t0, t1 }, width) {
  const units = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  const [unit, size] = units.find(([, one]) => t1 >= one * 2) ?? ["ns", 1];
  const rough = (t1 - t0) / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return { step, inUnit: (ns) => `${(ns / size).toFixed(digits)} ${unit}` };
}
