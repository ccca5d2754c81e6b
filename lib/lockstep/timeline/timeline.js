// Draws a scene (see scene.py) on a canvas; in a notebook through anywidget, or in a page.
//
// Every slice is here, in typed arrays sorted by row and start. A frame asks each visible row for
// its pixels by binary search and by sums of blocks, so that it costs the same however many slices
// there are. Pixels are written into an image: a million small rectangles would be too slow.
// Text of a trace is only ever set as textContent or drawn: it is data.

const LEFT = 168; // of the lanes, in CSS pixels, as are all sizes but where "device" is said
const AXIS = 22;
const HIGHEST = 560; // of the lanes before they scroll
const BLOCK = 32; // slices that are summed up together
const WIDE = 1.5; // device pixels from which a slice is drawn on its own
const THEMES = {
  light: { ink: "#1a1a1a", muted: "#5c5c5c", line: "#d8d8d8", paper: "#ffffff", soft: "#f4f4f4" },
  dark: { ink: "#e6e6e6", muted: "#a8a8a8", line: "#3a3a3a", paper: "#111111", soft: "#1e1e1e" },
};
const HELP =
  "Arrow keys pan and scroll, + and − zoom, Home shows all, / searches, Enter goes to the next match. " +
  "Shift and arrow keys go from slice to slice, Escape unselects.";

// ── Numbers in words ─────────────────────────────────────────────────────────────────────────

function inWords(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(4))} ${unit}`;
  return `${Number(ns.toPrecision(4))} ns`;
}

function bytesInWords(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]])
    if (bytes >= size) return `${Number((bytes / size).toPrecision(4))} ${unit}`;
  return `${bytes} bytes`;
}

function ranksInWords(ranks) {
  const runs = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`)).join(", ");
}

const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const count = (number, what) => `${number.toLocaleString("en-GB")} ${what}${number === 1 ? "" : "s"}`;

// A kernel's name without its template and arguments; other names as they are.
function shortName(name) {
  const cut = name.search(/[<(]/);
  if (cut < 4) return name;
  const head = name.slice(0, cut).replace(/^void /, "");
  return head.includes("::") ? head.split("::").at(-1) || name : head;
}

// ── Rows ─────────────────────────────────────────────────────────────────────────────────────

// The first index in [from, to) whose value is not below (or, with `after`, is above) `wanted`.
function search(values, wanted, from, to, after) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] < wanted || (after && values[middle] === wanted)) from = middle + 1;
    else to = middle;
  }
  return from;
}

// The same as search, from a place that is probably near.
function searchOn(values, wanted, from, to) {
  let step = 1;
  while (from + step < to && values[from + step] < wanted) step *= 2;
  return search(values, wanted, from + (step >> 1), Math.min(from + step, to), false);
}

// A row for drawing: `n` slices that do not overlap, of these kinds.
function makeRow(start, duration, kind, kinds) {
  const slot = new Int8Array(256);
  kinds.forEach((one, at) => (slot[one] = at));
  return { start, duration, kind, kinds, slot, n: start.length, blocks: null };
}

// For each block, the time of each kind in all blocks before.
function blocksOf(row) {
  if (row.blocks) return row.blocks;
  const { duration, kind, slot, n } = row;
  const K = row.kinds.length;
  const blocks = new Float64Array((Math.floor(n / BLOCK) + 1) * K);
  const sums = new Float64Array(K);
  for (let i = 0, at = 0; i < n; i++) {
    if (i % BLOCK === 0) for (let k = 0; k < K; k++) blocks[at++] = sums[k];
    sums[slot[kind[i]]] += duration[i];
  }
  if (n % BLOCK === 0) blocks.set(sums, (n / BLOCK) * K);
  return (row.blocks = blocks);
}

// Adds the time of the slices [i, j) to into[at + slot of their kind].
function addUp(row, i, j, into, at) {
  const { duration, kind, slot } = row;
  const first = Math.ceil(i / BLOCK);
  const last = Math.floor(j / BLOCK);
  if (first < last) {
    const blocks = blocksOf(row);
    const K = row.kinds.length;
    for (let k = 0; k < K; k++) into[at + k] += blocks[last * K + k] - blocks[first * K + k];
    for (; i < first * BLOCK; i++) into[at + slot[kind[i]]] += duration[i];
    i = last * BLOCK;
  }
  for (; i < j; i++) into[at + slot[kind[i]]] += duration[i];
}

// What a row shows in `width` pixels of `per` nanoseconds from t0 on. Slices that are wide enough
// go to box(i); of all others the exact time within each pixel is in the result, by kind.
function walk(row, t0, per, width, box) {
  const { start, duration, n, slot, kind } = row;
  const K = row.kinds.length;
  const cover = new Float64Array(width * K);
  const t1 = t0 + per * width;
  let i = search(start, t0, 0, n, true);
  if (i > 0 && start[i - 1] + duration[i - 1] > t0) i--;
  while (i < n && start[i] < t1) {
    if (duration[i] >= WIDE * per) {
      box(i++);
      continue;
    }
    const column = Math.min(Math.max(Math.floor((start[i] - t0) / per), 0), width - 1);
    const until = t0 + (column + 1) * per;
    let j = Math.max(searchOn(start, until, i, n), i + 1);
    if (j - i > 1 && duration[j - 1] >= WIDE * per) j--;
    addUp(row, i, j, cover, column * K);
    const k = slot[kind[i]];
    if (start[i] < t0) cover[column * K + k] -= t0 - start[i];
    const last = j - 1; // it may go on into the next two pixels
    const rest = start[last] + duration[last] - until;
    if (rest > 0) {
      const s = slot[kind[last]];
      cover[column * K + s] -= rest;
      if (column + 1 < width) cover[(column + 1) * K + s] += Math.min(rest, per);
      if (rest > per && column + 2 < width) cover[(column + 2) * K + s] += rest - per;
    }
    i = j;
  }
  return cover;
}

// ── Colours and patterns ─────────────────────────────────────────────────────────────────────

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mix = (a, b, share) => a.map((value, at) => Math.round(value * (1 - share) + b[at] * share));
const word = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const css = (colour) => `rgb(${colour.join(" ")})`;
const isLight = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 125;

const PATTERNS = {
  "": () => false,
  "/": (x, y) => (x + y) % 8 < 3,
  "\\": (x, y) => (x - y + 64) % 8 < 3,
  "-": (x, y) => y % 4 === 1,
  "|": (x) => x % 4 === 1,
  ".": (x, y) => (x % 4 === 1 && y % 4 === 1) || (x % 4 === 3 && y % 4 === 3),
  x: (x, y) => (x + y) % 8 < 2 || (x - y + 64) % 8 < 2,
};

// A tile of 8 × 8 CSS pixels, as words of an image.
function tileOf(look, paper, ratio, dim) {
  const size = 8 * ratio;
  const base = mix(rgb(look.colour), paper, dim);
  const ink = mix(base, paper, 0.45);
  const tile = new Uint32Array(size * size);
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++) {
      const on = PATTERNS[look.pattern](Math.floor(x / ratio), Math.floor(y / ratio));
      tile[y * size + x] = word(on ? ink : base);
    }
  return tile;
}

// ── The widget ───────────────────────────────────────────────────────────────────────────────

const STYLE = `
.lockstep-timeline{--ink:#1a1a1a;--muted:#5c5c5c;--line:#d8d8d8;--paper:#fff;--soft:#f4f4f4;
  position:relative;color:var(--ink);background:var(--paper);font:12px/1.4 system-ui,sans-serif;
  box-sizing:border-box;width:100%;min-width:320px;padding:4px}
.lockstep-timeline *{box-sizing:border-box}
.lockstep-timeline .ls-bar{display:flex;flex-wrap:wrap;gap:6px;align-items:center;padding:2px 0 6px}
.lockstep-timeline .ls-title{font-weight:600;font-size:13px;margin-right:auto;overflow-wrap:anywhere}
.lockstep-timeline button,.lockstep-timeline input{font:inherit;color:inherit;
  background:var(--soft);border:1px solid var(--line);border-radius:4px;padding:2px 8px;margin:0}
.lockstep-timeline button{cursor:pointer}
.lockstep-timeline :focus-visible{outline:2px solid #56B4E9;outline-offset:-1px}
.lockstep-timeline input{width:15em}
.lockstep-timeline .ls-found{min-width:7em;color:var(--muted)}
.lockstep-timeline canvas{display:block}
.lockstep-timeline .ls-body{position:relative;overflow-x:hidden;overflow-y:auto;display:grid;
  grid-template-columns:${LEFT}px 1fr;border:solid var(--line);border-width:1px 0;
  overscroll-behavior:contain}
.lockstep-timeline .ls-rows{position:sticky;top:0;align-self:start;touch-action:none;cursor:grab}
.lockstep-timeline .ls-labels{position:relative;border-right:1px solid var(--line)}
.lockstep-timeline .ls-label{position:absolute;left:0;right:4px;padding:0 2px 0 4px;display:flex;
  gap:4px;align-items:center;white-space:nowrap;overflow:hidden;border:0;background:none;
  text-align:left;border-radius:0}
.lockstep-timeline .ls-label span{overflow:hidden;text-overflow:ellipsis}
.lockstep-timeline .ls-label small{margin-left:auto;color:var(--muted);font-size:11px;flex:none}
.lockstep-timeline .ls-rank{font-weight:600}
.lockstep-timeline .ls-lane{padding-left:16px}
.lockstep-timeline .ls-part{background:var(--soft);font-weight:600;z-index:1}
.lockstep-timeline .ls-tip{position:absolute;z-index:9;max-width:30em;pointer-events:none;
  background:var(--paper);border:1px solid var(--ink);border-radius:4px;padding:4px 8px;
  overflow-wrap:anywhere;box-shadow:0 1px 4px #0006}
.lockstep-timeline .ls-tip div:first-child,.lockstep-timeline .ls-said div:first-child{
  font-weight:600;max-height:4.2em;overflow:hidden}
.lockstep-timeline .ls-said{padding:4px 0;min-height:3.4em;overflow-wrap:anywhere}
.lockstep-timeline .ls-legend{display:flex;flex-wrap:wrap;gap:2px 14px;padding:4px 0}
.lockstep-timeline .ls-legend span{display:inline-flex;gap:5px;align-items:center}
.lockstep-timeline .ls-muted{color:var(--muted)}
.lockstep-timeline .ls-foot{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 16px}
.lockstep-timeline .ls-unseen{position:absolute;width:1px;height:1px;overflow:hidden;
  clip-path:inset(50%)}
.lockstep-timeline [hidden]{display:none!important}
`;

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties))
    if (key in node && key !== "role") node[key] = value;
    else node.setAttribute(key, value);
  // JupyterLab's keys would run cells and delete them. It looks at the focused node itself first.
  node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children);
  return node;
}

// JupyterLab says which theme is on; elsewhere the system does.
function themeNow() {
  const said = document.body.getAttribute("data-jp-theme-light");
  if (said !== null) return said === "false" ? "dark" : "light";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// earlier: what was looked at in the overview of the same scene.
function mount(el, head, columns, earlier) {
  const controller = new AbortController();
  const { signal } = controller;
  const total = columns.start.length;
  const endOf = (i) => columns.start[i] + columns.duration[i];

  const rows = head.rows.map(([part, rank, lane, level, first, last, kinds]) => ({
    ...{ part, rank, lane, level, first, last },
    draw: makeRow(
      columns.start.subarray(first, last),
      columns.duration.subarray(first, last),
      columns.kind.subarray(first, last),
      kinds,
    ),
    matches: null,
  }));
  const firsts = rows.map((row) => row.first);
  const rowOf = (i) => rows[search(firsts, i, 0, rows.length, true) - 1];

  // What the user has changed.
  const { t0, t1 } = earlier ?? { t0: 0, t1: head.span };
  const view = { t0, t1, folded: new Set(), selected: -1, query: "", theme: "" };
  let lines = []; // what stands below each other: {what, y, h, row?, …}
  let height = 0;
  let tiles = {};
  let width = 0; // of the canvas
  let ratio = 1;
  let isDue = false;
  let matched = null; // by name: whether the query is in it
  let joined = { others: [], waits: [], from: [], to: [] }; // of what is selected

  // ── Nodes ──
  const title = make("span", { className: "ls-title", textContent: head.title });
  const field = make("input", { type: "search", placeholder: "search names ( / )" });
  field.setAttribute("aria-label", "search names");
  const found = make("span", { className: "ls-found", role: "status" });
  const button = (text, label, act) => {
    const node = make("button", { type: "button", textContent: text, title: label });
    node.setAttribute("aria-label", label);
    node.addEventListener("click", act, { signal });
    return node;
  };
  const bar = make(
    "div",
    { className: "ls-bar" },
    title,
    field,
    found,
    button("+", "zoom in", () => zoom(0.5)),
    button("−", "zoom out", () => zoom(2)),
    button("all", "show all", () => reset()),
  );
  const axis = make("canvas", { className: "ls-axis" });
  axis.setAttribute("aria-hidden", "true");
  const labels = make("div", { className: "ls-labels" });
  const canvas = make("canvas", { className: "ls-rows", tabIndex: 0, role: "application" });
  canvas.setAttribute("aria-roledescription", "timeline");
  canvas.setAttribute("aria-label", `${head.alt} ${HELP}`);
  const body = make("div", { className: "ls-body" }, labels, canvas);
  const tip = make("div", { className: "ls-tip", hidden: true });
  const said = make("div", { className: "ls-said", role: "status" });
  const legend = make("div", { className: "ls-legend" });
  const foot = make(
    "div",
    { className: "ls-foot ls-muted" },
    make("span", { className: "ls-stamp", textContent: head.stamp }),
  );
  const cells = (tag, texts) =>
    make("tr", {}, ...texts.map((text) => make(tag, { textContent: text })));
  const table = make(
    "table",
    {},
    make("caption", { textContent: head.alt }),
    cells("th", ["rank", "computes", "communicates", "exposed"]),
    ...head.times.map((one) =>
      cells("td", [
        `${head.parts[one.part].label} rank ${one.rank}`.trim(),
        one.hasCompute ? percent(one.compute, one.span) : "unknown",
        percent(one.communication, one.span),
        one.hasCompute ? percent(one.exposed, one.span) : "unknown",
      ]),
    ),
  );
  const root = make(
    "div",
    { className: "lockstep-timeline" },
    make("style", { textContent: STYLE }),
    ...[bar, axis, body, said, legend, foot, tip],
    make("div", { className: "ls-unseen" }, table),
  );
  el.replaceChildren(root);

  // ── Lines ──
  const rowHeight = rows.length <= 14 ? 26 : rows.length <= 40 ? 17 : 14;
  const keyOf = (row) => `${row.part} ${row.rank}`;

  function layOut() {
    lines = [];
    let y = 0;
    const add = (line, h) => {
      lines.push({ ...line, y, h });
      y += h;
    };
    const ofRank = Map.groupBy ? Map.groupBy(rows, keyOf) : grouped(rows, keyOf);
    let part = -1;
    for (const [key, mine] of ofRank) {
      const [first] = mine;
      if (first.part !== part && head.parts[first.part].label) {
        const label = head.parts[first.part].label;
        add({ what: "part", label }, 20);
      }
      part = first.part;
      const lanes = grouped(
        mine.filter((row) => row.lane),
        (row) => row.lane,
      );
      const band = mine.find((row) => !row.lane);
      const alone = !band && lanes.size === 1; // then rank and lane share a line
      if (!alone) add({ what: "rank", key, row: band, rank: first.rank, part }, Math.max(rowHeight, 18));
      if (!alone && view.folded.has(key)) continue;
      for (const [lane, levels] of lanes) {
        const laneKey = `${key} ${lane}`;
        const label = alone ? `rank ${first.rank} · ${lane}` : lane;
        levels.forEach((row, level) => {
          if (level && view.folded.has(laneKey)) return;
          const fold = !level && levels.length > 1 ? laneKey : null;
          add({ what: "row", row, key: fold, label: level ? "" : label, alone, levels }, rowHeight);
        });
      }
      y += 4;
    }
    height = y;
    const shown = Math.min(height, HIGHEST);
    body.style.height = `${shown + 2}px`;
    labels.style.height = `${height}px`;
    canvas.style.height = `${shown}px`;
    labels.replaceChildren(...lines.map(labelOf).filter(Boolean));
    dirty();
  }

  function grouped(values, keyOfValue) {
    const groups = new Map();
    for (const value of values) {
      const key = keyOfValue(value);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(value);
    }
    return groups;
  }

  function labelOf(line) {
    if (line.what === "row" && !line.label) return null;
    const folds = line.what === "rank" || line.key;
    const node = make(folds ? "button" : "div", { className: `ls-label ls-${classOf(line)}` });
    let text = line.label ?? "";
    if (line.what === "rank") text = `rank ${line.rank}`;
    if (folds) {
      const isFolded = view.folded.has(line.key);
      node.type = "button";
      node.setAttribute("aria-expanded", String(!isFolded));
      node.dataset.key = line.key;
      node.append(make("span", { textContent: isFolded ? "▸" : "▾", ariaHidden: "true" }));
    }
    node.append(make("span", { textContent: text }));
    node.title = text;
    if (line.what === "rank") {
      const times = head.times.find((one) => one.part === line.part && one.rank === line.rank);
      if (times?.hasCompute && times.communication) {
        const share = `${percent(times.exposed, times.span)} exposed`;
        node.append(make("small", { textContent: share }));
      }
    } else if (line.key && view.folded.has(line.key)) {
      node.append(make("small", { textContent: `+${line.levels.length - 1} levels` }));
    }
    node.style.top = `${line.y}px`;
    node.style.height = `${line.h}px`;
    return node;
  }

  const classOf = (line) => (line.what === "row" ? (line.alone ? "rank" : "lane") : line.what);

  labels.addEventListener(
    "click",
    (event) => {
      const key = event.target.closest("button")?.dataset.key;
      if (key === undefined) return;
      if (!view.folded.delete(key)) view.folded.add(key);
      layOut();
      [...labels.querySelectorAll("button")].find((one) => one.dataset.key === key)?.focus();
    },
    { signal },
  );

  // ── Drawing ──
  function dirty() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      if (!signal.aborted && width) draw();
    });
  }

  function dress() {
    view.theme = themeNow();
    const colours = THEMES[view.theme];
    for (const [name, colour] of Object.entries(colours)) root.style.setProperty(`--${name}`, colour);
    root.dataset.theme = view.theme;
    ratio = Math.max(1, Math.round(devicePixelRatio));
    const paper = rgb(colours.paper);
    tiles = {};
    for (const [kind, look] of Object.entries(head.kinds))
      tiles[kind] = {
        full: tileOf(look, paper, ratio, 0),
        dim: tileOf(look, paper, ratio, 0.78),
        tint: word(mix(rgb(look.colour), paper, 0.75)),
        colour: rgb(look.colour),
      };
    legend.replaceChildren(
      ...head.legend.map((kind) => {
        const swatch = make("canvas", { width: 24 * ratio, height: 12 * ratio, ariaHidden: "true" });
        swatch.style.cssText = "width:24px;height:12px";
        const image = new ImageData(swatch.width, swatch.height);
        const pixels = new Uint32Array(image.data.buffer);
        fill(pixels, swatch.width, 0, 0, swatch.width, swatch.height, tiles[kind].full);
        swatch.getContext("2d").putImageData(image, 0, 0);
        return make("span", {}, swatch, make("span", { textContent: head.kinds[kind].label }));
      }),
      make("span", {
        className: "ls-muted",
        hidden: total < 1000,
        textContent: "where slices are narrower than a pixel: height = share of time, faint = something",
      }),
    );
    dirty();
  }

  // A rectangle of device pixels, with a tile that lies still.
  function fill(pixels, stride, x0, y0, x1, y1, tile) {
    const size = 8 * ratio;
    const mask = size - 1;
    const isPowerOfTwo = (size & mask) === 0;
    for (let y = y0; y < y1; y++) {
      const line = (y % size) * size;
      const at = y * stride;
      for (let x = x0; x < x1; x++) pixels[at + x] = tile[line + (isPowerOfTwo ? x & mask : x % size)];
    }
  }

  function drawRow(pixels, W, H, row, top, bottom, how, names) {
    const per = (view.t1 - view.t0) / W;
    const X = (t) => (t - view.t0) / per;
    const [y0, y1] = [Math.max(top, 0), Math.min(bottom, H)];
    if (y1 <= y0) return;
    const cover = walk(row, view.t0, per, W, (i) => {
      const xa = X(row.start[i]);
      const xb = X(row.start[i] + row.duration[i]);
      const x0 = Math.max(Math.round(xa), 0);
      let x1 = Math.min(Math.max(Math.round(xb), Math.round(xa) + 1), W);
      if (xb - xa >= 4 && x1 < W) x1 -= 1; // so that neighbours can be told apart
      fill(pixels, W, x0, y0, x1, y1, tiles[row.kind[i]][how]);
      if (names && x1 - x0 >= 22 * ratio) names(i, x0, x1);
    });
    const K = row.kinds.length;
    const full = bottom - top;
    for (let x = 0, at = 0; x < W; x++, at += K) {
      let sum = 0;
      for (let k = 0; k < K; k++) sum += cover[at + k];
      if (sum <= 0) continue;
      let most = 0;
      for (let k = 1; k < K; k++) if (cover[at + k] > cover[at + most]) most = k;
      // Faintly: something is here; to its full height: how much of the pixel's time.
      const tint = how === "dim" ? null : tiles[row.kinds[most]].tint;
      if (tint !== null) for (let y = y0; y < y1; y++) pixels[y * W + x] = tint;
      const high = Math.max(1, Math.round((full * sum) / per));
      let below = bottom;
      let done = 0;
      for (let k = 0; k < K; k++) {
        if (cover[at + k] <= 0) continue;
        done += cover[at + k];
        const upto = bottom - Math.max(1, Math.round((high * done) / sum));
        fill(pixels, W, x, Math.max(upto, y0), x + 1, Math.min(below, y1), tiles[row.kinds[k]][how]);
        below = upto;
      }
    }
  }

  function draw() {
    const start = performance.now();
    const colours = THEMES[view.theme];
    const shown = Math.min(height, HIGHEST);
    const [W, H] = [Math.round(width * ratio), Math.round(shown * ratio)];
    if (canvas.width !== W || canvas.height !== H) Object.assign(canvas, { width: W, height: H });
    const context = canvas.getContext("2d");
    const image = context.createImageData(W, H);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(word(rgb(colours.paper)));
    const scroll = body.scrollTop;
    const texts = [];
    for (const line of visible(scroll, shown)) {
      const top = Math.round((line.y - scroll) * ratio);
      const bottom = Math.round((line.y + line.h - scroll) * ratio);
      if (line.what === "part") {
        const soft = new Uint32Array(64 * ratio * ratio).fill(word(rgb(colours.soft)));
        fill(pixels, W, 0, Math.max(top, 0), W, Math.min(bottom, H), soft);
      }
      if (!line.row) continue;
      const { row } = line;
      const names = row.lane && ((i, x0, x1) => texts.push([row, i, x0, x1, top, bottom]));
      drawRow(pixels, W, H, row.draw, top + ratio, bottom - ratio, matched ? "dim" : "full", names);
      if (matched) drawRow(pixels, W, H, matchesOf(row), top + ratio, bottom - ratio, "full", null);
    }
    context.putImageData(image, 0, 0);
    context.save();
    context.scale(ratio, ratio);
    drawNames(context, texts, colours);
    drawSelected(context, scroll, shown, colours);
    context.restore();
    drawAxis(colours);
    const now = performance.now();
    Object.assign(root.dataset, {
      frameMs: (now - start).toFixed(2),
      frames: Number(root.dataset.frames ?? 0) + 1,
      from: view.t0,
      to: view.t1,
    });
    root.dataset.slices = total;
    el.dataset.painted ??= performance.timeOrigin + now;
    if (!head.isOverview) el.dataset.complete ??= performance.timeOrigin + now;
  }

  const visible = (scroll, shown) =>
    lines.filter((line) => line.y < scroll + shown && line.y + line.h > scroll);

  function drawNames(context, texts, colours) {
    context.font = `${rowHeight >= 24 ? 12 : 11}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const one = context.measureText("n").width;
    for (const [row, i, x0, x1, top, bottom] of texts.slice(0, 600)) {
      const global = row.first + i;
      const kind = columns.kind[global];
      const isDim = matched && !matched[columns.name[global]];
      const room = (x1 - x0) / ratio - 6;
      let text = knownOf(global)?.operation || shortName(head.names[columns.name[global]]);
      if (text.length * one * 0.5 > room) text = text.slice(0, Math.floor(room / one / 0.5) + 1);
      let wide = context.measureText(text).width;
      while (wide > room && text.length > 1) {
        text = `${text.slice(0, Math.min(text.length - 2, Math.floor((text.length * room) / wide)))}…`;
        wide = context.measureText(text).width;
      }
      if (wide > room || text === "…") continue;
      const x = x0 / ratio + 3;
      const colour = isDim ? mix(tiles[kind].colour, rgb(colours.paper), 0.78) : tiles[kind].colour;
      if (head.kinds[kind].pattern) {
        context.fillStyle = css(colour);
        context.fillRect(x - 2, top / ratio + 1, wide + 4, (bottom - top) / ratio - 2);
      }
      context.fillStyle = isLight(colour) ? "#000" : "#fff";
      context.fillText(text, x, (top + bottom) / 2 / ratio + 0.5);
    }
  }

  const xOf = (t) => ((t - view.t0) / (view.t1 - view.t0)) * width;

  // Where a slice is, also one in a folded lane: {x0, x1, y, h}, or null if its rank is not there.
  function placeOf(i, scroll) {
    const row = rowOf(i);
    const line =
      lines.find((one) => one.row === row) ??
      lines.find((one) => one.levels?.includes(row)) ??
      lines.find((one) => one.what === "rank" && one.key === keyOf(row));
    if (!line) return null;
    return { x0: xOf(columns.start[i]), x1: xOf(endOf(i)), y: line.y - scroll, h: line.h };
  }

  function drawSelected(context, scroll, shown, colours) {
    if (view.selected < 0) return;
    context.lineWidth = 2;
    const frame = (i, dash) => {
      const place = placeOf(i, scroll);
      if (!place) return;
      const x0 = Math.max(place.x0, -4);
      const x1 = Math.min(place.x1, width + 4);
      if (x1 < 0 || x0 > width) return;
      context.setLineDash(dash);
      context.strokeStyle = colours.paper;
      context.strokeRect(x0 - 0.5, place.y + 0.5, Math.max(x1 - x0, 3) + 1, place.h - 1);
      context.strokeStyle = colours.ink;
      context.strokeRect(x0 - 1.5, place.y - 0.5, Math.max(x1 - x0, 3) + 3, place.h + 1);
    };
    for (const { i, until } of joined.waits) {
      const place = placeOf(i, scroll);
      if (!place) continue;
      const x0 = Math.max(place.x0, 0);
      const x1 = Math.min(xOf(until), width);
      if (x1 <= x0) continue;
      context.save();
      context.beginPath();
      context.rect(x0, place.y + 1, x1 - x0, place.h - 2);
      context.fillStyle = colours.paper;
      context.fill();
      context.clip();
      context.beginPath();
      context.setLineDash([]);
      context.lineWidth = 1.5;
      context.strokeStyle = colours.ink;
      for (let x = x0 - place.h - (x0 % 6); x < x1; x += 6) {
        context.moveTo(x, place.y);
        context.lineTo(x + place.h, place.y + place.h);
      }
      context.stroke();
      const text = `waits ${inWords(until - columns.start[i])}`;
      context.font = "11px system-ui, sans-serif";
      const wide = context.measureText(text).width + 6;
      if (wide < x1 - x0 - 4) {
        context.fillStyle = colours.paper;
        context.fillRect(x0 + 4, place.y + 2, wide, place.h - 4);
        context.fillStyle = colours.ink;
        context.fillText(text, x0 + 7, place.y + place.h / 2 + 0.5);
      }
      context.restore();
    }
    context.lineWidth = 2;
    for (const i of joined.others) frame(i, []);
    frame(view.selected, []);
    context.setLineDash([]);
    context.lineWidth = 1.5;
    const arrows = joined.from.map((i) => [i, view.selected]);
    arrows.push(...joined.to.map((i) => [view.selected, i]));
    for (const [from, to] of arrows) {
      const [a, b] = [placeOf(from, scroll), placeOf(to, scroll)];
      if (a && b) arrow(context, a.x0, a.y + a.h / 2, b.x0, b.y + b.h / 2, colours);
    }
  }

  function arrow(context, x0, y0, x1, y1, colours) {
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

  function drawAxis(colours) {
    const all = width + LEFT;
    const [W, H] = [Math.round(all * ratio), AXIS * ratio];
    if (axis.width !== W || axis.height !== H) Object.assign(axis, { width: W, height: H });
    axis.style.cssText = `width:${all}px;height:${AXIS}px`;
    const context = axis.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, all, AXIS);
    const span = view.t1 - view.t0;
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, one]) => view.t1 >= one * 2) ?? ["ns", 1];
    const rough = span / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colours.muted;
    context.strokeStyle = colours.muted;
    context.fillText("time", 4, AXIS / 2);
    context.beginPath();
    for (let tick = Math.ceil(view.t0 / step); tick * step <= view.t1; tick++) {
      const x = LEFT + xOf(tick * step);
      context.moveTo(x, AXIS - 5);
      context.lineTo(x, AXIS);
      const text = `${((tick * step) / size).toFixed(digits)} ${unit}`;
      const wide = context.measureText(text).width;
      if (x + wide / 2 < all) context.fillText(text, Math.max(x - wide / 2, LEFT), AXIS / 2 - 2);
    }
    context.stroke();
  }

  // ── What is looked at ──
  function show(t0, t1) {
    const span = Math.min(Math.max(t1 - t0, Math.min(20, head.span)), head.span);
    const from = Math.min(Math.max(t0, 0), head.span - span);
    Object.assign(view, { t0: from, t1: from + span });
    hideTip();
    dirty();
  }
  function zoom(factor, at = (view.t0 + view.t1) / 2) {
    const span = Math.min((view.t1 - view.t0) * factor, head.span);
    const share = (at - view.t0) / (view.t1 - view.t0);
    show(at - span * share, at - span * share + span);
  }
  const pan = (share) => {
    const by = (view.t1 - view.t0) * share;
    show(view.t0 + by, view.t1 + by);
  };
  const reset = () => show(0, head.span);

  function bringIntoView(i) {
    const row = rowOf(i);
    const laneKey = `${keyOf(row)} ${row.lane}`;
    if (view.folded.delete(keyOf(row)) || (row.level && view.folded.delete(laneKey))) layOut();
    const line = lines.find((one) => one.row === row);
    const shown = Math.min(height, HIGHEST);
    if (line.y < body.scrollTop || line.y + line.h > body.scrollTop + shown)
      body.scrollTop = line.y - shown / 2;
    const [start, end] = [columns.start[i], endOf(i)];
    const span = view.t1 - view.t0;
    const isNarrow = (end - start) / span < 3 / width;
    if (start < view.t0 || end > view.t1 || isNarrow) {
      const wanted = isNarrow ? Math.max((end - start) * 12, 20) : Math.max(span, (end - start) * 1.5);
      show((start + end) / 2 - wanted / 2, (start + end) / 2 + wanted / 2);
    }
  }

  // ── What is known of a slice ──
  function communicationOf(i) {
    const { communications } = columns;
    const at = search(communications, i, 0, communications.length, false);
    return communications[at] === i ? at : -1;
  }
  const knownOf = (i) => head.collectives[columns.known[communicationOf(i)]];

  // All ranks' slices of the same collective, and what each waited for the last.
  function membersOf(i) {
    const at = communicationOf(i);
    const instance = at < 0 ? -1 : columns.instance[at];
    if (instance < 0) return { others: [i], waits: [], last: -1 };
    const others = [];
    for (let k = 0; k < columns.instance.length; k++)
      if (columns.instance[k] === instance) others.push(columns.communications[k]);
    const part = head.parts[rowOf(i).part];
    if (others.length < 2 || !part.oneClock) return { others, waits: [], last: -1 };
    const last = others.reduce((a, b) => (columns.start[b] > columns.start[a] ? b : a));
    const waits = others
      .map((one) => ({ i: one, until: Math.min(columns.start[last], endOf(one)) }))
      .filter((one) => one.until - columns.start[one.i] > (part.resolution ?? 0));
    return { others, waits, last };
  }

  function wordsOf(i) {
    const row = rowOf(i);
    const duration = columns.duration[i];
    const where = row.lane ? ` · ${row.lane}` : "";
    const part = head.parts[row.part].label;
    const lines = [
      head.names[columns.name[i]],
      `${part ? `${part} · ` : ""}rank ${row.rank}${where} · ${head.kinds[columns.kind[i]].label}`,
      `starts at ${inWords(columns.start[i])}, lasts ${inWords(duration)}`,
    ];
    const at = communicationOf(i);
    const known = knownOf(i);
    if (known) {
      const bytes = Math.max(known.in, known.out);
      const words = [known.operation || "communication"];
      if (bytes >= 0) words.push(`of ${bytesInWords(bytes)}`);
      if (known.dtype) words.push(`(${known.dtype})`);
      if (known.peer >= 0) words.push(`with rank ${known.peer}`);
      lines.push(words.join(" "));
      if (bytes >= 0 && duration > 0)
        lines[3] += `: ${Number((bytes / duration).toPrecision(3))} GB/s (bytes / duration)`;
      if (known.group || known.ranks.length)
        lines.push(`group ${known.group || "?"}${known.ranks.length ? `: ranks ${ranksInWords(known.ranks)}` : ""}`);
    }
    if (at >= 0) {
      const { waits, last, others } = membersOf(i);
      const mine = waits.find((one) => one.i === i);
      if (mine) lines.push(`waits ${inWords(mine.until - columns.start[i])} for rank ${rowOf(last).rank}, which came last`);
      else if (last === i) lines.push(`came last of ${others.length} ranks`);
      else if (others.length > 1 && !head.parts[row.part].oneClock)
        lines.push("the ranks' clocks are not aligned: no waiting time can be told (trace.align())");
    }
    return lines;
  }

  function select(i) {
    view.selected = i;
    joined = { others: [], waits: [], from: [], to: [] };
    if (i >= 0) {
      const { others, waits } = membersOf(i);
      joined.others = others;
      joined.waits = waits;
      const { launches, launched } = columns;
      for (let k = 0; k < launches.length && joined.to.length < 200; k++) {
        if (launches[k] === i) joined.to.push(launched[k]);
        if (launched[k] === i) joined.from.push(launches[k]);
      }
      const words = wordsOf(i);
      if (joined.to.length) words.push(`launches ${count(joined.to.length, "slice")} on the device`);
      for (const one of joined.from) {
        const late = columns.start[i] - columns.start[one];
        words.push(`launched by ${head.names[columns.name[one]]}, ${inWords(late)} before`);
      }
      const [first, ...rest] = words;
      said.replaceChildren(
        make("div", { textContent: first }),
        make("div", { textContent: rest.join(" · ") }),
      );
    } else sayHelp();
    root.dataset.selected = i;
    root.dataset.lit = joined.others.length;
    root.dataset.waits = joined.waits.length;
    root.dataset.arrows = joined.from.length + joined.to.length;
    dirty();
  }

  function sayHelp() {
    if (head.isOverview) {
      said.replaceChildren(make("div", { textContent: "An overview; the slices are on their way…" }));
      return;
    }
    const first = "Click a slice, or hover. Click the picture, or hold Ctrl, to zoom with the wheel; drag to pan.";
    said.replaceChildren(
      make("div", { textContent: "" }),
      make("div", { className: "ls-muted", textContent: `${first} ${HELP}` }),
    );
  }

  // The slice at a place of the canvas; how many share its pixel, and what of it they cover.
  function at(x, y) {
    if (head.isOverview) return null;
    const wanted = y + body.scrollTop;
    const line = lines.find((one) => one.row && one.y <= wanted && wanted < one.y + one.h);
    if (!line) return null;
    const { draw: row, first } = line.row;
    const per = (view.t1 - view.t0) / width;
    const t = view.t0 + x * per;
    let i = search(row.start, t, 0, row.n, true) - 1;
    if (i >= 0 && row.start[i] + row.duration[i] > t && row.duration[i] > per)
      return { i: first + i, crowd: 1 };
    const from = Math.max(search(row.start, t - per, 0, row.n, false) - 1, 0);
    const to = searchOn(row.start, t + per, from, row.n);
    const near = [];
    for (let k = from; k < to && near.length < 1000; k++)
      if (row.start[k] + row.duration[k] >= t - per) near.push(k);
    if (!near.length) return null;
    const distance = (k) => Math.max(row.start[k] - t, t - row.start[k] - row.duration[k], 0);
    i = near.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    if (to - from <= 3) return { i: first + i, crowd: 1 };
    const [c0, c1] = [Math.floor(x) * per + view.t0, (Math.floor(x) + 1) * per + view.t0];
    return { i: first + i, crowd: to - from, row: line.row, t0: c0, t1: c1 };
  }

  // By kind, the nanoseconds of a row in each of `width` equal pieces of [t0, t1).
  function busy(row, t0, t1, width = 1) {
    const { start, duration, kind, kinds, slot } = row.draw;
    const per = (t1 - t0) / width;
    const sums = kinds.map(() => new Array(width).fill(0));
    const cover = walk(row.draw, t0, per, width, (i) => {
      const [begin, end] = [Math.max(start[i], t0), Math.min(start[i] + duration[i], t1)];
      for (let x = Math.floor((begin - t0) / per); x < width && t0 + x * per < end; x++)
        sums[slot[kind[i]]][x] += Math.min(end, t0 + (x + 1) * per) - Math.max(begin, t0 + x * per);
    });
    sums.forEach((one, k) => one.forEach((_, x) => (one[x] += cover[x * kinds.length + k])));
    return Object.fromEntries(kinds.map((one, k) => [one, sums[k]]));
  }

  function crowdInWords({ crowd, row, t0, t1 }) {
    const shares = Object.entries(busy(row, t0, t1)).filter(([, [time]]) => time > 0);
    const lines = [`${crowd === 1000 ? "1,000 or more" : crowd} slices around here`];
    lines.push(`rank ${row.rank}${row.lane ? ` · ${row.lane}` : ""} · zoom in to tell them apart`);
    const told = shares.map(([kind, [time]]) => `${head.kinds[kind].label} ${percent(time, t1 - t0)}`);
    lines.push(`busy in this pixel (${inWords(t1 - t0)}): ${told.join(", ") || "nothing"}`);
    return lines;
  }

  function hideTip() {
    tip.hidden = true;
  }

  function hover(event) {
    const box = canvas.getBoundingClientRect();
    const found = at(event.clientX - box.left, event.clientY - box.top);
    if (!found) return hideTip();
    const words = found.crowd > 1 ? crowdInWords(found) : wordsOf(found.i);
    tip.replaceChildren(...words.map((text) => make("div", { textContent: text })));
    tip.hidden = false;
    const outer = root.getBoundingClientRect();
    const left = event.clientX - outer.left + 14;
    tip.style.left = `${Math.max(0, Math.min(left, outer.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY - outer.top + 16}px`;
  }

  // ── Search ──
  let nameCounts = null;
  function searchFor(query) {
    view.query = query;
    const wanted = query.trim().toLowerCase();
    for (const row of rows) row.matches = null;
    if (!wanted) {
      matched = null;
      found.textContent = "";
    } else {
      if (!nameCounts) {
        nameCounts = new Uint32Array(head.names.length);
        for (let i = 0; i < total; i++) nameCounts[columns.name[i]]++;
      }
      matched = Uint8Array.from(head.names, (name) => name.toLowerCase().includes(wanted));
      let hits = 0;
      matched.forEach((hit, name) => (hits += hit * nameCounts[name]));
      found.textContent = hits === 1 ? "1 match" : `${hits.toLocaleString("en-GB")} matches`;
    }
    root.dataset.matches = found.textContent;
    dirty();
  }

  function matchesOf(row) {
    if (row.matches) return row.matches;
    const { first, last } = row;
    let n = 0;
    for (let i = first; i < last; i++) n += matched[columns.name[i]];
    const [start, duration] = [new Float64Array(n), new Float64Array(n)];
    const kind = new Uint8Array(n);
    for (let i = first, k = 0; i < last; i++)
      if (matched[columns.name[i]]) {
        start[k] = columns.start[i];
        duration[k] = columns.duration[i];
        kind[k++] = columns.kind[i];
      }
    return (row.matches = makeRow(start, duration, kind, row.draw.kinds));
  }

  function nextMatch(step) {
    if (!matched) return;
    for (let k = 1; k <= total; k++) {
      const i = (((view.selected + step * k) % total) + total) % total;
      if (!matched[columns.name[i]]) continue;
      select(i);
      return bringIntoView(i);
    }
  }

  // ── Keys and pointer ──
  function neighbour(step) {
    if (view.selected < 0) {
      const line = lines.find((one) => one.row && one.row.lane) ?? lines.find((one) => one.row);
      const place = search(line.row.draw.start, view.t0, 0, line.row.draw.n - 1, false);
      return line.row.first + place;
    }
    const row = rowOf(view.selected);
    return Math.min(Math.max(view.selected + step, row.first), row.last - 1);
  }

  function otherRow(step) {
    const i = neighbour(0);
    const shown = lines.filter((one) => one.row);
    const line = shown[shown.findIndex((one) => one.row === rowOf(i)) + step];
    if (!line) return i;
    const { draw: row, first } = line.row;
    const place = search(row.start, columns.start[i], 0, row.n, true);
    return first + Math.max(place - 1, 0);
  }

  const goTo = (i) => {
    select(i);
    bringIntoView(i);
  };
  const keys = {
    ArrowLeft: () => pan(-0.15),
    ArrowRight: () => pan(0.15),
    ArrowUp: () => (body.scrollTop -= 40),
    ArrowDown: () => (body.scrollTop += 40),
    "+": () => zoom(0.6),
    "=": () => zoom(0.6),
    "-": () => zoom(1 / 0.6),
    Home: reset,
    Escape: () => {
      hideTip();
      select(-1);
    },
    "/": () => field.focus(),
    Enter: () => nextMatch(1),
  };
  const shifted = {
    ArrowLeft: () => goTo(neighbour(-1)),
    ArrowRight: () => goTo(neighbour(1)),
    ArrowUp: () => goTo(otherRow(-1)),
    ArrowDown: () => goTo(otherRow(1)),
    Enter: () => nextMatch(-1),
  };
  canvas.addEventListener(
    "keydown",
    (event) => {
      const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
      const act = isPlain && ((event.shiftKey && shifted[event.key]) || keys[event.key]);
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    },
    { signal },
  );
  field.addEventListener("input", () => searchFor(field.value), { signal });
  field.addEventListener(
    "keydown",
    (event) => {
      event.stopPropagation();
      if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") {
        field.value = "";
        searchFor("");
        canvas.focus();
      }
    },
    { signal },
  );

  const timeAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return view.t0 + ((event.clientX - box.left) / width) * (view.t1 - view.t0);
  };
  canvas.addEventListener(
    "wheel",
    (event) => {
      const isFocused = root.getRootNode().activeElement === canvas;
      // Without focus the wheel is the page's: one scrolls past a timeline far more often.
      if (!isFocused && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      const size = event.deltaMode === 1 ? 30 : 1;
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (isSideways) pan(((event.deltaX || event.deltaY) * size) / width);
      else zoom(Math.exp(Math.max(-1, Math.min(1, (event.deltaY * size) / 300))), timeAt(event));
    },
    { signal, passive: false },
  );
  let drag = null;
  canvas.addEventListener(
    "pointerdown",
    (event) => {
      if (event.button !== 0) return;
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.clientX, y: event.clientY, t0: view.t0, top: body.scrollTop, moved: false };
    },
    { signal },
  );
  canvas.addEventListener(
    "pointermove",
    (event) => {
      if (!drag) return hover(event);
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
      if (!drag.moved) return;
      canvas.style.cursor = "grabbing";
      const span = view.t1 - view.t0;
      const from = drag.t0 - (dx / width) * span;
      show(from, from + span);
      body.scrollTop = drag.top - dy;
    },
    { signal },
  );
  canvas.addEventListener(
    "pointerup",
    (event) => {
      canvas.style.cursor = "";
      if (drag && !drag.moved) {
        const box = canvas.getBoundingClientRect();
        select(at(event.clientX - box.left, event.clientY - box.top)?.i ?? -1);
      }
      drag = null;
    },
    { signal },
  );
  canvas.addEventListener("pointercancel", () => (drag = null), { signal });
  canvas.addEventListener("pointerleave", hideTip, { signal });
  canvas.addEventListener("dblclick", reset, { signal });
  body.addEventListener("scroll", dirty, { signal });

  // ── Around it ──
  const resized = new ResizeObserver(() => {
    const wanted = Math.max(root.clientWidth - 8 - LEFT - (body.offsetWidth - body.clientWidth), 100);
    if (wanted === width) return;
    width = wanted;
    canvas.style.width = `${width}px`;
    dirty();
  });
  resized.observe(root);
  const themed = new MutationObserver(dress);
  themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress, { signal });
  signal.addEventListener("abort", () => {
    resized.disconnect();
    themed.disconnect();
  });

  // So that many ranks are seen at once, deep call stacks are folded.
  if (rows.length > 40)
    for (const row of rows) if (row.level > 2) view.folded.add(`${keyOf(row)} ${row.lane}`);
  sayHelp();
  layOut();
  dress();
  root.lockstep = { rows, view, busy, columns, head, placeOf: (i) => placeOf(i, body.scrollTop) };
  return { view, unmount: () => controller.abort() };
}

// ── Where scenes come from ───────────────────────────────────────────────────────────────────

const ARRAYS = {
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float64: Float64Array,
};

// buffers: one a column, as DataView or Uint8Array.
function open(text, buffers) {
  const head = JSON.parse(text);
  const columns = {};
  head.columns.forEach(([name, type], at) => {
    const { buffer, byteOffset, byteLength } = buffers[at];
    const isAligned = byteOffset % 8 === 0;
    const from = isAligned ? buffer : buffer.slice(byteOffset, byteOffset + byteLength);
    const array = ARRAYS[type];
    columns[name] = new array(from, isAligned ? byteOffset : 0, byteLength / array.BYTES_PER_ELEMENT);
  });
  return { head, columns };
}

// The slices come as a message and not as the widget's state, which notebooks store. The first
// one comes by itself: while cells run, the kernel answers nobody.
const sources = new Map(); // by the widget's key: `model` is another object each time

function initialize({ model }) {
  const source = { scene: undefined, tell: new Set() };
  sources.set(model.get("key"), source);
  model.on("msg:custom", (message, buffers) => {
    if (message.type !== "scene") return;
    source.scene = message.head ? open(message.head, buffers) : null;
    for (const tell of source.tell) tell();
  });
  if (!model.get("fresh")) model.send({ type: "scene" });
  return () => sources.delete(model.get("key"));
}

// The still picture stands below the widget, for those who cannot run it: here it is folded.
function foldStill(el) {
  const output = el.closest(".jp-OutputArea-child");
  const area = output?.parentElement;
  if (!area) return () => {};
  const fold = () => {
    const still = output.nextElementSibling?.querySelector("details.lockstep-still");
    if (still) still.open = false;
    return Boolean(still);
  };
  const observer = new MutationObserver(() => fold() && observer.disconnect());
  if (!fold()) observer.observe(area, { childList: true, subtree: true });
  return () => observer.disconnect();
}

function render({ model, el }) {
  const source = sources.get(model.get("key"));
  let mounted = null;
  let unfold = () => {};
  const tell = () => {
    mounted?.unmount();
    if (source.scene) {
      mounted = mount(el, source.scene.head, source.scene.columns, mounted?.view);
      unfold = foldStill(el);
    } else if (source.scene === null)
      el.textContent = "The slices are no longer in memory: run the cell again. The picture is below.";
    else el.textContent = "Loading the timeline…";
  };
  source.tell.add(tell);
  tell();
  return () => {
    source.tell.delete(tell);
    mounted?.unmount();
    unfold();
  };
}

export default { initialize, render };
