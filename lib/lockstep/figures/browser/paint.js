// The picture of memory over time: pixels, column by column, and lines and words on them.

import { css, fill, mix, rgb, tileOf, word } from "./colours.js";
import { binary, climb, count, duration, fullestBetween } from "./stack.js";

const HEIGHT = 320;

// Sizes are of usual letters, 13 pixels, and grow with them.
export function measureRoom({ canvas, root }) {
  const enlarged = parseFloat(getComputedStyle(root).fontSize) / 13;
  const width = canvas.parentElement.clientWidth;
  const left = (width / enlarged < 560 ? 62 : 74) * enlarged;
  const [top, bottom, right] = [22 * enlarged, 36 * enlarged, 8 * enlarged];
  const ratio = Math.max(1, Math.round(devicePixelRatio));
  const height = HEIGHT * enlarged;
  return { enlarged, width, height, left, top, ratio, wide: width - left - right, high: height - top - bottom };
}

// The page's own colours, whatever its theme.
export function coloursOf({ canvas, root }) {
  const parts = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
  const ink = parts(getComputedStyle(root).color);
  const paper = parts(getComputedStyle(canvas).backgroundColor);
  return { ink, paper, muted: mix(ink, paper, 0.35), line: mix(ink, paper, 0.82) };
}

export const tilesOf = (kinds, { ink, paper }, ratio) =>
  kinds.map((look) => ({
    full: tileOf(look, paper, ratio, 0),
    lit: tileOf({ colour: look.colour, pattern: "" }, ink, ratio, 0.45),
    edge: word(mix(rgb(look.colour), paper, 0.6)),
  }));

export function swatchOf(tile, ratio) {
  const swatch = document.createElement("canvas");
  Object.assign(swatch, { width: 24 * ratio, height: 12 * ratio, ariaHidden: "true" });
  swatch.style.cssText = "width:2em;height:1em;flex:none";
  const image = new ImageData(swatch.width, swatch.height);
  const all = { pixels: new Uint32Array(image.data.buffer), stride: swatch.width, ratio };
  fill(all, 0, 0, swatch.width, swatch.height, tile);
  swatch.getContext("2d").putImageData(image, 0, 0);
  return swatch;
}

// shown: {stack, axis, view, room, tiles, colours, cursor, picked, top}; top: bytes at the upper edge.
export function paint(canvas, shown) {
  const { room, colours } = shown;
  const { width, height, ratio } = room;
  const [W, H] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== W || canvas.height !== H) Object.assign(canvas, { width: W, height: H });
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, W, H);
  paintAreas(context, shown);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = `${11 * room.enlarged}px system-ui, sans-serif`;
  context.strokeStyle = context.fillStyle = css(colours.ink);
  context.lineWidth = 1;
  paintAxes(context, shown);
  paintReserved(context, shown);
  paintMarks(context, shown);
}

function paintAreas(context, { stack, axis, view, room, tiles, picked, top }) {
  const { left, top: above, wide, high, ratio } = room;
  const [W, H] = [Math.max(Math.round(wide * ratio), 1), Math.max(Math.round(high * ratio), 1)];
  const image = new ImageData(W, H);
  const pixels = new Uint32Array(image.data.buffer);
  const span = view.to - view.from;
  const least = 4 * ratio; // of an allocation that has an edge of its own
  const paper = { pixels, stride: W, ratio };
  const edges = stack.edges[axis];
  const placed = (x) => view.from + (x / W) * span;
  for (let x = 0; x < W; ) {
    const group = fullestBetween(stack, axis, placed(x), placed(x + 1));
    // What is wider than a pixel is the same in the next columns.
    let next = x + 1;
    const ends = edges[group + 1];
    while (next < W && edges[group] <= placed(next) && placed(next + 1) <= ends) next++;
    climb(stack, group, (i, kind, low, high) => {
      const [y0, y1] = [high, low].map((bytes) => Math.max(Math.round(H - (bytes / top) * H), 0));
      if (y1 <= y0) return false;
      fill(paper, x, y0, next, y1, i >= 0 && i === picked ? tiles[kind].lit : tiles[kind].full);
      if (y1 - y0 >= least) pixels.fill(tiles[kind].edge, y0 * W + x, y0 * W + next);
      const begins = i >= 0 && stack.begin[i] === group && edges[group] >= placed(x);
      if (begins && y1 - y0 >= least && next - x >= least)
        for (let y = y0; y < y1; y++) pixels[y * W + x] = tiles[kind].edge;
      return false;
    });
    x = next;
  }
  context.putImageData(image, Math.round(left * ratio), Math.round(above * ratio));
}

// Round numbers between two places, about so many pixels from each other.
function ticksBetween(from, to, pixels, apart, base) {
  const rough = ((to - from) / Math.max(pixels, 1)) * apart;
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  const step = steps.map((one) => one * power).find((one) => one >= rough * (1 - 1e-9)) ?? rough;
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}

function paintAxes(context, { axis, view, room, colours, top, stack }) {
  const { left, top: above, wide, high, enlarged } = room;
  const bottom = above + high;
  const lines = (draw) => {
    context.strokeStyle = css(colours.line);
    context.beginPath();
    draw();
    context.stroke();
    context.strokeStyle = css(colours.ink);
  };
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of ticksBetween(0, top, high, 48 * enlarged, 2)) {
    const y = Math.round(bottom - (tick / top) * high) + 0.5;
    lines(() => (context.moveTo(left - 4, y), context.lineTo(left, y)));
    context.fillText(tick ? binary(tick).replace(".00", "") : "0", left - 6, y);
  }
  context.textBaseline = "top";
  const text = axis === "time" ? duration : count;
  const least = axis === "events" ? 1 : 0;
  for (const tick of ticksBetween(view.from, view.to, wide, 92 * enlarged, 10)) {
    if (least && tick % 1) continue;
    const x = Math.round(left + ((tick - view.from) / (view.to - view.from)) * wide) + 0.5;
    lines(() => (context.moveTo(x, bottom), context.lineTo(x, bottom + 4)));
    const label = text(tick);
    const half = context.measureText(label).width / 2;
    context.textAlign = "center";
    context.fillText(label, Math.min(Math.max(x, half), left + wide + 8 - half), bottom + 6);
  }
  context.textAlign = "right";
  context.fillStyle = css(colours.muted);
  const name = axis === "time" ? "time since the first event" : "events of the allocator";
  context.fillText(name, left + wide, bottom + 21 * enlarged);
  context.fillStyle = css(colours.ink);
  lines(() => context.rect(left - 0.5, above - 0.5, wide + 1, high + 1));
}

export const placeIn = ({ view, room }, x) =>
  room.left + ((x - view.from) / (view.to - view.from)) * room.wide;

function paintReserved(context, shown) {
  const { stack, axis, view, room, top } = shown;
  const edges = stack.edges[axis];
  const y = (bytes) => room.top + room.high * (1 - bytes / top);
  context.save();
  context.beginPath();
  context.rect(room.left, room.top - 1, room.wide, room.high + 1);
  context.clip();
  context.setLineDash([2, 3]);
  context.beginPath();
  for (let group = 0; group < stack.full.length; group++) {
    if (edges[group + 1] < view.from || edges[group] > view.to) continue;
    if (group && stack.reserved[group] === stack.reserved[group - 1] && edges[group] > view.from) continue;
    let last = group + 1; // of the groups that have as much
    while (last < stack.full.length && stack.reserved[last] === stack.reserved[group]) last++;
    context.lineTo(placeIn(shown, edges[group]), y(stack.reserved[group]));
    context.lineTo(placeIn(shown, edges[last]), y(stack.reserved[group]));
  }
  context.stroke();
  context.restore();
}

function paintMarks(context, shown) {
  const { stack, axis, view, room, colours, cursor, top } = shown;
  const inside = (x) => x >= room.left - 1 && x <= room.left + room.wide + 1;
  const place = ([state, time]) => placeIn(shown, axis === "time" ? time : state + 0.5);
  const at = place([cursor.state, cursor.time]);
  context.strokeStyle = css(colours.ink);
  if (inside(at)) {
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(at, room.top);
    context.lineTo(at, room.top + room.high);
    context.stroke();
    context.setLineDash([]);
  }
  const { peak, failed } = stack;
  const x = place([peak.state, peak.time]);
  if (inside(x)) {
    const y = room.top + room.high * (1 - peak.bytes / top);
    const size = 6 * room.enlarged;
    context.beginPath();
    context.moveTo(x, y - 1);
    context.lineTo(x - size, y - 1.6 * size);
    context.lineTo(x + size, y - 1.6 * size);
    context.closePath();
    context.fill();
    context.strokeStyle = css(colours.paper);
    context.stroke();
    const said = `peak ${binary(peak.bytes)}`;
    const wide = context.measureText(said).width;
    const isRight = x + size + 4 + wide < room.left + room.wide;
    context.textAlign = isRight ? "left" : "right";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    const where = [x + (isRight ? 1 : -1) * (size + 4), Math.max(y - 1.1 * size, 8 * room.enlarged)];
    context.strokeText(said, ...where);
    context.fillText(said, ...where);
    context.lineWidth = 1;
  }
  context.strokeStyle = colours.error;
  context.lineWidth = 2.5;
  for (const one of failed) {
    const [x, size] = [place(one), 5 * room.enlarged];
    if (!inside(x)) continue;
    const y = room.top + size + 2;
    context.beginPath();
    for (const way of [-1, 1]) (context.moveTo(x - size, y - way * size), context.lineTo(x + size, y + way * size));
    context.stroke();
  }
}
