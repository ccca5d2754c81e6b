// What is drawn over the slices for the selected one: frames, waiting times, arrows of launches.

import { isLight, rgb } from "../../figures/browser/colours.js";
import { lineOf } from "./lines.js";
import { placeOf, xOf } from "./view.js";
import { inWords } from "./words.js";

export function drawSelected(timeline, context, scroll) {
  const { view, joined } = timeline;
  if (view.selected < 0) return;
  for (const wait of joined.waits) drawWait(timeline, context, scroll, wait);
  context.setLineDash([]);
  for (const i of [...joined.others, view.selected]) drawFrame(timeline, context, scroll, i);
  const arrows = joined.from.map((i) => [i, view.selected]);
  arrows.push(...joined.to.map((i) => [view.selected, i]));
  for (const [from, to] of arrows) {
    const [a, b] = [placeOf(timeline, from, scroll), placeOf(timeline, to, scroll)];
    if (a && b) drawArrow(timeline, context, a.x0, a.y + a.h / 2, b.x0, b.y + b.h / 2);
  }
}

function drawFrame(timeline, context, scroll, i) {
  const { width, colours } = timeline;
  const place = placeOf(timeline, i, scroll);
  if (!place) return;
  const x0 = Math.max(place.x0, -4);
  const x1 = Math.min(place.x1, width + 4);
  if (x1 < 0 || x0 > width) return;
  context.lineWidth = 2;
  context.strokeStyle = colours.paper;
  context.strokeRect(x0 - 0.5, place.y + 0.5, Math.max(x1 - x0, 3) + 1, place.h - 1);
  context.strokeStyle = colours.ink;
  context.strokeRect(x0 - 1.5, place.y - 0.5, Math.max(x1 - x0, 3) + 3, place.h + 1);
}

// The part of a slice that waits, hatched, with the time where there is room.
function drawWait(timeline, context, scroll, { i, until }) {
  const { scene, width, colours, enlarged } = timeline;
  const place = placeOf(timeline, i, scroll);
  if (!place) return;
  const x0 = Math.max(place.x0, 0);
  const x1 = Math.min(xOf(timeline, until), width);
  if (x1 <= x0) return;
  context.save();
  context.beginPath();
  context.rect(x0, place.y + 1, x1 - x0, place.h - 2);
  context.fillStyle = colours.paper;
  context.fill();
  context.clip();
  context.beginPath();
  context.setLineDash([]);
  context.lineWidth = 1.5;
  const { colour } = scene.head.waiting;
  context.strokeStyle = colour;
  for (let x = x0 - place.h - (x0 % 6); x < x1; x += 6) {
    context.moveTo(x, place.y);
    context.lineTo(x + place.h, place.y + place.h);
  }
  context.stroke();
  const text = `waits ${inWords(until - scene.columns.start[i])}`;
  context.font = `${11 * enlarged}px system-ui, sans-serif`;
  const wide = context.measureText(text).width + 6;
  if (wide < x1 - x0 - 4) {
    context.fillStyle = colour;
    context.fillRect(x0 + 4, place.y + 2, wide, place.h - 4);
    context.fillStyle = isLight(rgb(colour)) ? "#000" : "#fff";
    context.fillText(text, x0 + 7, place.y + place.h / 2 + 0.5);
  }
  context.restore();
}

function drawArrow({ width, colours }, context, x0, y0, x1, y1) {
  if (Math.max(x0, x1) < -50 || Math.min(x0, x1) > width + 50) return;
  const bend = Math.max(12, Math.abs(x1 - x0) / 2);
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 2, y1);
  context.moveTo(x1 - 8, y1 - 4);
  context.lineTo(x1, y1);
  context.lineTo(x1 - 8, y1 + 4);
  context.lineWidth = 4;
  context.strokeStyle = colours.paper;
  context.stroke();
  context.lineWidth = 1.5;
  context.strokeStyle = colours.ink;
  context.stroke();
}

// ── A range of time, the critical path ───────────────────────────────────────────────────────

export function drawRange(timeline, context) {
  const { view, width, shown, colours } = timeline;
  if (!view.range) return;
  const [x0, x1] = view.range.map((t) => xOf(timeline, t));
  context.fillStyle = colours.paper;
  context.globalAlpha = 0.55; // what is outside is still seen
  context.fillRect(0, 0, x0, shown);
  context.fillRect(x1, 0, width - x1, shown);
  context.globalAlpha = 1;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.5;
  context.strokeRect(x0, -2, x1 - x0, shown + 4);
}

// Along the bottom of what it is on, and from one to the next.
export function drawPath(timeline, context, scroll) {
  const { scene, view, colours } = timeline;
  const { path } = scene.head;
  if (!path.length) return;
  const places = new Map();
  const yOf = (at) => {
    if (!places.has(at)) {
      const line = lineOf(timeline, scene.rows[at]);
      places.set(at, line ? line.y + line.h - 2 - scroll : null);
    }
    return places.get(at);
  };
  context.beginPath();
  let isOn = false;
  for (const [start, end, row] of path) {
    const y = end < view.t0 || start > view.t1 ? null : yOf(row);
    if (y === null) {
      isOn = false;
      continue;
    }
    if (isOn) context.lineTo(xOf(timeline, start), y);
    else context.moveTo(xOf(timeline, start), y);
    context.lineTo(xOf(timeline, end), y);
    isOn = true;
  }
  for (const [colour, wide] of [[colours.paper, 4], [colours.ink, 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.stroke();
  }
}
