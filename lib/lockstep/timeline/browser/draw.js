// One frame. It asks each visible row for its pixels, writes them into an image, and draws names
// and marks over it.

import { drawAxis } from "./axis.js";
import { css, fill, isLight, mix, rgb, word } from "../../figures/browser/colours.js";
import { pathHeight, rowHeight } from "./lines.js";
import { drawPath, drawRange, drawSelected } from "./marks.js";
import { walk } from "./rows.js";
import { communicationIn, operationOf, rowOf } from "./scene.js";
import { isMatch, matchesOf } from "./search.js";

export function draw(timeline) {
  const begun = performance.now();
  const { width, ratio, shown, colours } = timeline;
  const { canvas, body } = timeline.nodes;
  const [W, H] = [Math.round(width * ratio), Math.round(shown * ratio)];
  if (canvas.width !== W || canvas.height !== H) Object.assign(canvas, { width: W, height: H });
  const context = canvas.getContext("2d");
  const data = context.createImageData(W, H);
  const pixels = new Uint32Array(data.data.buffer);
  pixels.fill(word(rgb(colours.paper)));
  const scroll = body.scrollTop;
  const texts = drawLines(timeline, { pixels, stride: W, height: H, ratio }, scroll);
  context.putImageData(data, 0, 0);
  context.save();
  context.scale(ratio, ratio);
  drawPath(timeline, context, scroll);
  drawNames(timeline, context, texts);
  drawSelected(timeline, context, scroll);
  drawRange(timeline, context);
  context.restore();
  drawAxis(timeline);
  saySo(timeline, begun);
}

// What the node says of itself, for tests and benchmarks.
function saySo({ scene, view, el, nodes: { root } }, begun) {
  const now = performance.now();
  Object.assign(root.dataset, {
    frameMs: (now - begun).toFixed(2),
    frames: Number(root.dataset.frames ?? 0) + 1,
    from: view.t0,
    to: view.t1,
  });
  root.dataset.slices = scene.total;
  el.dataset.painted ??= performance.timeOrigin + now;
  if (!scene.head.isOverview) el.dataset.complete ??= performance.timeOrigin + now;
}

// ── Pixels ───────────────────────────────────────────────────────────────────────────────────

// image: {pixels, stride, height, ratio}. Returns the slices that have room for a name.
function drawLines(timeline, image, scroll) {
  const { scene, lines, shown, search, ratio, enlarged } = timeline;
  const below = pathHeight(scene) * enlarged * ratio; // names
  const texts = [];
  for (const line of lines) {
    if (line.y >= scroll + shown || line.y + line.h <= scroll) continue;
    const top = Math.round((line.y - scroll) * ratio);
    const bottom = Math.round((line.y + line.h - scroll) * ratio);
    if (!line.row) continue;
    const { row } = line;
    const place = { top: top + ratio, bottom: bottom - ratio };
    const name = (i, x0, x1) => texts.push({ i: row.first + i, x0, x1, top, bottom: bottom - below });
    drawRow(timeline, image, row.draw, place, search.isIn ? "dim" : "full", name);
    if (search.isIn) drawRow(timeline, image, matchesOf(timeline, row), place, "full", null);
  }
  return texts;
}

// tone: which tiles, "full" or "dim". name: called for slices that have room for one.
function drawRow({ view, tiles, enlarged }, image, row, { top, bottom }, tone, name) {
  const W = image.stride;
  const per = (view.t1 - view.t0) / W;
  const X = (t) => (t - view.t0) / per;
  const [y0, y1] = [Math.max(top, 0), Math.min(bottom, image.height)];
  if (y1 <= y0) return;
  const cover = walk(row, view.t0, per, W, (i) => {
    if (view.hidden.has(row.kind[i])) return;
    const xa = X(row.start[i]);
    const xb = X(row.start[i] + row.duration[i]);
    const x0 = Math.max(Math.round(xa), 0);
    let x1 = Math.min(Math.max(Math.round(xb), Math.round(xa) + 1), W);
    if (xb - xa >= 4 && x1 < W) x1 -= 1; // so that neighbours can be told apart
    fill(image, x0, y0, x1, y1, tiles[row.kind[i]][tone]);
    if (name && x1 - x0 >= 22 * enlarged * image.ratio) name(i, x0, x1);
  });
  row.kinds.forEach((kind, k) => {
    if (view.hidden.has(kind)) for (let at = k; at < cover.length; at += row.kinds.length) cover[at] = 0;
  });
  drawCover(image, cover, per, row.kinds.map((kind) => tiles[kind]), { top, bottom }, tone);
}

// cover: for each pixel, the time of each kind in it. tiles: of these kinds.
function drawCover(image, cover, per, tiles, { top, bottom }, tone) {
  const { pixels, stride: W, height } = image;
  const [y0, y1] = [Math.max(top, 0), Math.min(bottom, height)];
  const K = tiles.length;
  const full = bottom - top;
  for (let x = 0, at = 0; x < W; x++, at += K) {
    let sum = 0;
    for (let k = 0; k < K; k++) sum += cover[at + k];
    if (sum <= 0) continue;
    let most = 0;
    for (let k = 1; k < K; k++) if (cover[at + k] > cover[at + most]) most = k;
    // Faintly: something is here; to its full height: how much of the pixel's time.
    const tint = tone === "dim" ? null : tiles[most].tint;
    if (tint !== null) for (let y = y0; y < y1; y++) pixels[y * W + x] = tint;
    const high = Math.max(1, Math.round((full * sum) / per));
    let below = bottom;
    let done = 0;
    for (let k = 0; k < K; k++) {
      if (cover[at + k] <= 0) continue;
      done += cover[at + k];
      const upto = bottom - Math.max(1, Math.round((high * done) / sum));
      fill(image, x, Math.max(upto, y0), x + 1, Math.min(below, y1), tiles[k][tone]);
      below = upto;
    }
  }
}

// ── Names ────────────────────────────────────────────────────────────────────────────────────

function drawNames(timeline, context, texts) {
  const { scene, search, tiles, colours, ratio, enlarged } = timeline;
  context.font = `${(rowHeight(scene) >= 24 ? 12 : 11) * enlarged}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const one = context.measureText("n").width;
  for (const { i, x0, x1, top, bottom } of texts.slice(0, 600)) {
    const named = rowOf(scene, i).lane ? i : communicationIn(scene, i);
    const name = named < 0 ? "" : operationOf(scene, named);
    const { text, wide } = shortened(context, name, (x1 - x0) / ratio - 6, one);
    if (!text) continue;
    const kind = scene.columns.kind[i];
    const isDim = search.isIn && !isMatch(timeline, i);
    const x = x0 / ratio + 3;
    const colour = isDim ? mix(tiles[kind].colour, rgb(colours.paper), 0.78) : tiles[kind].colour;
    if (scene.head.kinds[kind].pattern || scene.head.path.length) {
      context.fillStyle = css(colour);
      context.fillRect(x - 2, top / ratio + 1, wide + 4, (bottom - top) / ratio - 2);
    }
    context.fillStyle = isLight(colour) ? "#000" : "#fff";
    context.fillText(text, x, (top + bottom) / 2 / ratio + 0.5);
  }
}

// As much of a text as there is room for, and its width; "" if that says nothing. one: the width
// of a letter, roughly: long texts are cut before they are measured.
function shortened(context, text, room, one) {
  if (text.length * one * 0.5 > room) text = text.slice(0, Math.floor(room / one / 0.5) + 1);
  let wide = context.measureText(text).width;
  while (wide > room && text.length > 1) {
    text = `${text.slice(0, Math.min(text.length - 2, Math.floor((text.length * room) / wide)))}…`;
    wide = context.measureText(text).width;
  }
  return wide > room || text === "…" ? { text: "", wide: 0 } : { text, wide };
}
