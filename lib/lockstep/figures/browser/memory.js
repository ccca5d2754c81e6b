// A GPU's memory over time: to zoom, pan and point at, by mouse and by keyboard. Python says which
// allocations lie where; of parts that are too fine for the first answer the page asks again.

import { make, makeButton, makeChoice, makeRoot } from "./nodes.js";
import { BUSY, connect, foldStill, onWidth } from "./widget.js";
import { binary, climb, count, duration, fullestBetween, groupAt, openStack } from "./stack.js";
import { coloursOf, measureRoom, paint, placeIn, swatchOf, tilesOf } from "./paint.js";
import { tableOf } from "./held.js";

const KEYS =
  "Arrow keys left and right pan, + and − zoom, Home or 0 shows all, P goes to the peak. Shift with " +
  "left and right moves the cursor by one event; up and down choose an allocation there, Escape none.";
const MOUSE =
  "Point at an allocation, click to set the cursor, drag to pan, double-click to show all; Ctrl and the " +
  "wheel zoom, and so does the wheel alone once the picture is clicked.";

const ENOUGH = 800; // groups of states that are seen: finer ones would hardly be

const OWN = `
.lockstep-play .ls-plot{position:relative}
.lockstep-play .ls-plot canvas{display:block;width:100%;background:var(--paper);touch-action:pan-y;cursor:crosshair}
.lockstep-play .ls-plot canvas:focus-visible{outline-offset:-2px}
.lockstep-play .ls-tip{position:absolute;z-index:9;max-width:min(28em,80%);pointer-events:none;
  background:var(--paper);border:1px solid currentColor;border-radius:4px;padding:3px 8px;
  overflow-wrap:anywhere;box-shadow:0 1px 4px #0006}
.lockstep-play .ls-tip div:first-child{font-weight:600}
.lockstep-play .ls-memory{min-height:1.4em;padding:2px 0;overflow-wrap:anywhere}
.lockstep-play .ls-held{overflow:auto;max-height:20em;border:1px solid var(--line);border-radius:4px}
.lockstep-play .ls-held table{border-collapse:collapse;width:100%;margin:0;font-size:calc(12em/13);
  color:inherit;table-layout:auto}
.lockstep-play .ls-held :is(th,td){text-align:right;padding:1px 8px;font-weight:400;border:0;
  background:none;font-variant-numeric:tabular-nums;white-space:nowrap;color:inherit;vertical-align:top}
.lockstep-play .ls-held tr{background:none!important}
.lockstep-play .ls-held thead th{position:sticky;top:0;background:var(--paper);
  box-shadow:0 1px 0 var(--line)}
.lockstep-play .ls-held :is(tr>:first-child){text-align:left;white-space:normal;overflow-wrap:anywhere}
.lockstep-play .ls-held .ls-kind>*{font-weight:600;border-top:1px solid var(--faint)}
.lockstep-play .ls-held .ls-line{padding-left:3.2em}
.lockstep-play .ls-held canvas{vertical-align:-.15em}
.lockstep-play .ls-help p{margin:0 0 4px}
@container (max-width:36em){
  .lockstep-play .ls-held .ls-line{padding-left:1em}
  .lockstep-play .ls-held :is(th,td){padding:1px 4px}
  .lockstep-play .ls-held tr>:last-child{display:none}
}
`;

function makeMemoryNodes() {
  const root = makeRoot();
  const title = make("div", { className: "ls-title" });
  const bar = make("div", { className: "ls-bar" });
  const help = make("div", { className: "ls-help", hidden: true });
  help.append(...[MOUSE, KEYS].map((words) => make("p", { textContent: words })));
  const legend = make("div", { className: "ls-legend" });
  const canvas = make("canvas", { tabIndex: 0, role: "application" });
  canvas.setAttribute("aria-roledescription", "memory over time");
  const tip = make("div", { className: "ls-tip", hidden: true });
  const plot = make("div", { className: "ls-plot" }, canvas, tip);
  const said = make("div", { className: "ls-memory", role: "status" });
  const held = make("div", { className: "ls-held", tabIndex: 0, role: "group" });
  const foot = make("div", { className: "ls-foot" });
  foot.style.whiteSpace = "pre-line";
  root.append(make("style", { textContent: OWN }), title, bar, help, legend, plot, said, held, foot);
  return { root, title, bar, help, legend, canvas, tip, said, held, foot };
}

function render({ model, el }) {
  const nodes = makeMemoryNodes();
  const { root, canvas, tip } = nodes;
  el.append(root);
  root.style.minWidth = "18em"; // beside an open sidebar less may be left: then it scrolls
  el.style.overflowX = "auto";
  let whole = null; // all states
  let part = null; // fewer of them, all that are asked for
  let asked = null;
  let axis = "events";
  let view = null;
  let cursor = null; // {state, time}
  let picked = -1; // an allocation of the drawn stack
  let shown = null; // what was painted last
  let tiles = [];
  let isDue = false;
  let timer;

  const all = () => ({ from: 0, to: axis === "time" ? Math.max(whole.span, 1) : whole.states });
  const covers = (stack) => {
    const places = stack.edges[axis];
    return places[0] <= view.from && view.to <= places[places.length - 1];
  };
  const stackNow = () => (part && covers(part) ? part : whole);
  const isWhole = () => view.from <= all().from && view.to >= all().to;

  // ── Looking ────────────────────────────────────────────────────────────────────────────────

  function redraw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      draw();
    });
  }

  function draw() {
    if (!whole || !root.clientWidth) return;
    const room = measureRoom(nodes);
    if (room.wide < 60) return;
    const colours = { ...coloursOf(nodes), error: whole.error };
    tiles = tilesOf(whole.kinds, colours, room.ratio);
    const stack = stackNow();
    if (shown && shown.stack !== stack) picked = -1;
    // Reserved memory is in sight, unless that would make all else flat.
    const { most, peak } = whole;
    const top = 1.06 * Math.max(most > 2 * peak.bytes ? 0 : most, peak.bytes, 1);
    shown = { stack, axis, view, room, tiles, colours, cursor, picked, top };
    paint(canvas, shown);
    const look = `${tiles.map((tile) => tile.full[0])}`;
    if (nodes.legend.dataset.look !== look) {
      nodes.legend.dataset.look = look;
      nodes.legend.replaceChildren(...legend());
      tell();
    }
    root.dataset.view = `${view.from} ${view.to}`;
    root.dataset.exact = String(stack.exact);
  }

  const swatch = (kind) => swatchOf(tiles[kind].full, shown.room.ratio);

  function legend() {
    const kinds = whole.kinds.map(({ label }, kind) => make("span", {}, swatch(kind), label));
    return [...kinds.reverse(), make("span", { textContent: "┈ reserved" }), make("span", { textContent: "▼ peak" })];
  }

  // Show a part of the axis; ask for what is too fine to be seen in what is there.
  function show(from, to) {
    const { from: least, to: most } = all();
    const shortest = Math.min(axis === "time" ? 20 : 4, most);
    const span = Math.min(Math.max(to - from, shortest), most - least);
    const start = Math.min(Math.max(from, least), most - span);
    view = { from: start, to: start + span };
    tip.hidden = true;
    clearTimeout(timer);
    if (!whole.exact) timer = setTimeout(refine, 120);
    redraw();
  }

  function refine() {
    if (isWhole() || stackNow().exact) return;
    const stack = stackNow();
    const places = stack.edges.events;
    const [a, b] = [view.from, view.to].map((x) => groupAt(stack, axis, x));
    if (b - a > ENOUGH) return;
    const [first, last] = [places[a], places[Math.min(b + 1, places.length - 1)]];
    const room = Math.ceil((last - first) / 4);
    const wanted = { first: Math.max(0, first - room), last: Math.min(whole.states, last + room) };
    if (asked && asked.first === wanted.first && asked.last === wanted.last) return;
    asked = wanted;
    kernel.ask(wanted);
  }

  function zoom(factor, at = (view.from + view.to) / 2) {
    const share = (at - view.from) / (view.to - view.from);
    const span = Math.min((view.to - view.from) * factor, all().to);
    show(at - span * share, at - span * share + span);
  }

  const pan = (share) => {
    const by = (view.to - view.from) * share;
    show(view.from + by, view.to + by);
  };
  const showAll = () => show(all().from, all().to);

  function goToPeak() {
    const { state, time } = whole.peak;
    const at = axis === "time" ? time : state + 0.5;
    const span = Math.min(view.to - view.from, all().to / 8);
    setCursor(state, time);
    show(at - span / 2, at + span / 2);
  }

  // ── Telling ────────────────────────────────────────────────────────────────────────────────

  const groupOf = (stack, state) => groupAt(stack, "events", state);

  function setCursor(state, time) {
    cursor = { state, time };
    picked = -1;
    tell();
    redraw();
  }

  const placeOf = (state, time) =>
    (whole.timed ? `${duration(time)}, ` : "") + `after ${count(state)} ${state === 1 ? "event" : "events"}`;

  // What is told of an allocation, or of a kind's smaller ones.
  function wordsOf(stack, i, kind, bytes) {
    const name = stack.kinds[kind].label;
    if (i < 0) return [`${binary(bytes)} · ${name}`, "smaller allocations, drawn as one"];
    const text = (at) => (whole.timed ? duration(at) : `event ${count(at)}`);
    const until = stack.stays.has(i) ? "the end" : text(stack.until[i]);
    return [`${binary(bytes)} · ${name}`, stack.lines[stack.line[i]], `from ${text(stack.since[i])} until ${until}`];
  }

  function tell() {
    if (!whole || !tiles.length) return;
    const stack = stackNow();
    const group = groupOf(stack, cursor.state);
    const isPeak = cursor.state === whole.peak.state;
    const what = isPeak ? "At the peak" : "At the cursor";
    const near = stack.exact ? "" : " (the fullest moment near it)";
    const total = `${binary(stack.totals[group])} allocated, ${binary(stack.reserved[group])} reserved`;
    const place = placeOf(cursor.state, cursor.time);
    let chosen = "";
    if (picked >= 0)
      climb(stack, group, (i, kind, low, high) => {
        if (i === picked) chosen = ` Chosen: ${wordsOf(stack, i, kind, high - low).join(", ")}.`;
        return i === picked;
      });
    nodes.said.textContent = `${what}${isPeak ? "" : near} (${place}): ${total}.${chosen}`;
    nodes.held.setAttribute("aria-label", `who holds memory ${isPeak ? "at the peak" : "at the cursor"}`);
    nodes.held.replaceChildren(tableOf(stack, group, swatch));
  }

  // What is at a point of the canvas: {group, i, kind, bytes}, or null.
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const { room, top, stack } = shown;
    const [x, y] = [event.clientX - box.left - room.left, event.clientY - box.top - room.top];
    if (x < 0 || x > room.wide) return null;
    const perPixel = (view.to - view.from) / (room.wide * room.ratio);
    const column = Math.floor(x * room.ratio);
    const from = view.from + column * perPixel;
    const group = fullestBetween(stack, axis, from, from + perPixel);
    const bytes = (1 - y / room.high) * top;
    let found = { group, i: -1, kind: -1, bytes: 0 };
    if (y <= room.high)
      climb(stack, group, (i, kind, low, high) => {
        if (bytes < low || bytes >= high) return false;
        found = { group, i, kind, bytes: high - low };
        return true;
      });
    return found;
  }

  function hover(event) {
    const found = shown && under(event);
    const isThere = Boolean(found) && found.kind >= 0;
    tip.hidden = !isThere;
    const before = picked;
    picked = isThere ? found.i : -1;
    if (before !== picked) redraw();
    if (!isThere) return;
    const words = wordsOf(shown.stack, found.i, found.kind, found.bytes);
    tip.replaceChildren(...words.map((text) => make("div", { textContent: text })));
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const [wide, high] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(x + 14 + wide > box.width ? x - 14 - wide : x + 14, 0)}px`;
    tip.style.top = `${y + 14 + high > box.height ? Math.max(y - 10 - high, 0) : y + 14}px`;
  }

  // By keyboard: the cursor goes from event to event, and through what lies there.
  function step(by) {
    const stack = stackNow();
    const group = Math.min(Math.max(groupOf(stack, cursor.state) + by, 0), stack.full.length - 1);
    moveTo(stack, group);
    const at = placeIn(shown, axis === "time" ? cursor.time : cursor.state + 0.5) - shown.room.left;
    if (at < 0 || at > shown.room.wide) {
      const half = (view.to - view.from) / 2;
      const place = axis === "time" ? cursor.time : cursor.state;
      show(place - half, place + half);
    }
  }

  function moveTo(stack, group) {
    const state = stack.full[group];
    const near = stack.edges.time[group];
    setCursor(state, state === whole.peak.state ? whole.peak.time : near);
  }

  function choose(by) {
    const stack = stackNow();
    const there = [];
    climb(stack, groupOf(stack, cursor.state), (i) => {
      if (i >= 0) there.push(i);
      return false;
    });
    if (!there.length) return;
    const at = there.indexOf(picked);
    const next = at < 0 ? (by > 0 ? 0 : there.length - 1) : at + by;
    picked = there[Math.min(Math.max(next, 0), there.length - 1)];
    tell();
    redraw();
  }

  // ── Listening ──────────────────────────────────────────────────────────────────────────────

  const keys = {
    ArrowLeft: () => pan(-0.15),
    ArrowRight: () => pan(0.15),
    ArrowUp: () => choose(1),
    ArrowDown: () => choose(-1),
    "+": () => zoom(0.6),
    "=": () => zoom(0.6),
    "-": () => zoom(1 / 0.6),
    0: showAll,
    Home: showAll,
    p: goToPeak,
    P: goToPeak,
    Escape: () => setCursor(cursor.state, cursor.time),
    "?": () => asks.click(),
  };
  const shifted = { ArrowLeft: () => step(-1), ArrowRight: () => step(1) };
  canvas.addEventListener("keydown", (event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const key = isPlain && ((event.shiftKey && shifted[event.key]) || keys[event.key]);
    if (!key || !whole) return;
    event.preventDefault();
    event.stopPropagation();
    tip.hidden = true;
    key();
  });
  const placeUnder = (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left - shown.room.left;
    return view.from + (x / shown.room.wide) * (view.to - view.from);
  };
  const wheel = (event) => {
    // Without focus the wheel is the page's, as it is over a timeline.
    const isFocused = root.getRootNode().activeElement === canvas;
    if (!shown || (!isFocused && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();
    const size = event.deltaMode === 1 ? 30 : 1;
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (isSideways) return pan(((event.deltaX || event.deltaY) * size) / shown.room.wide);
    zoom(Math.exp(Math.max(-1, Math.min(1, (event.deltaY * size) / 300))), placeUnder(event));
  };
  canvas.addEventListener("wheel", wheel, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !shown) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, from: view.from, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const dx = event.clientX - drag.x;
    if (Math.abs(dx) > 3) drag.moved = true;
    if (!drag.moved) return;
    const span = view.to - view.from;
    const from = drag.from - (dx / shown.room.wide) * span;
    show(from, from + span);
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = drag && !drag.moved && under(event);
    drag = null;
    if (!found) return;
    moveTo(shown.stack, found.group);
    picked = found.i;
    tell();
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    redraw();
  });
  canvas.addEventListener("dblclick", () => showAll());

  const asks = makeButton("?", "keys and mouse", () => {
    nodes.help.hidden = !nodes.help.hidden;
    asks.setAttribute("aria-expanded", String(!nodes.help.hidden));
  });
  asks.setAttribute("aria-expanded", "false");
  const axes = { "by event": "events", "by time": "time" };
  const changeAxis = (name) => {
    // What is seen stays in sight.
    const stack = stackNow();
    const [a, b] = [view.from, view.to].map((x) => groupAt(stack, axis, x));
    const wasWhole = isWhole();
    axis = axes[name];
    const places = stack.edges[axis];
    if (wasWhole) showAll();
    else show(places[a], places[Math.min(b + 1, places.length - 1)]);
  };

  function build() {
    const choice = makeChoice({ name: "x axis", values: Object.keys(axes) }, "by event", changeAxis);
    choice.hidden = !whole.timed;
    nodes.bar.append(
      makeButton("+", "zoom in", () => zoom(0.5)),
      makeButton("−", "zoom out", () => zoom(2)),
      makeButton("◀", "pan left", () => pan(-0.3)),
      makeButton("▶", "pan right", () => pan(0.3)),
      makeButton("all", "show all", showAll),
      makeButton("peak", "go to the peak", goToPeak),
      choice,
      asks,
    );
    nodes.title.textContent = whole.title;
    canvas.setAttribute("aria-label", `${whole.title}. ${whole.said} ${KEYS}`);
    nodes.foot.textContent = `${whole.inferred}\n${whole.stamp}`;
    view = all();
    cursor = { state: whole.peak.state, time: whole.peak.time };
  }

  const kernel = connect(
    model,
    (answer) => {
      if (answer.problem) return;
      const stack = openStack(answer);
      if (stack.first === 0 && stack.last === stack.states) {
        const isFirst = whole === null;
        whole = stack;
        if (isFirst) build();
      } else part = stack;
      picked = -1;
      if (whole) tell();
      redraw();
    },
    (isBusy) => {
      if (isBusy) nodes.said.textContent = BUSY;
    },
  );
  const themed = new MutationObserver(redraw);
  themed.observe(document.body, { attributes: true });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", redraw);
  const ends = [onWidth(root, draw), foldStill(el), () => kernel.end()];
  return () => {
    clearTimeout(timer);
    themed.disconnect();
    scheme.removeEventListener("change", redraw);
    ends.forEach((end) => end());
  };
}

export default { render };
