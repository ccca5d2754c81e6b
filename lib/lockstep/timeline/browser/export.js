// The slices in Chrome's trace format, which Perfetto reads: as a file, or handed to Perfetto's page.
// What they have more of in `lockstep trace --perfetto` (shapes, counters) is not known here.

import { make } from "./nodes.js";
import { bisect } from "./rows.js";
import { knownOf, nameOf } from "./scene.js";

const PERFETTO = "https://ui.perfetto.dev";
const AT_ONCE = 10_000; // events in a piece of text

export function listenToExports(timeline) {
  const { signal, nodes } = timeline;
  nodes.save.addEventListener("click", () => save(timeline), { signal });
  nodes.perfetto.addEventListener("click", () => openInPerfetto(timeline), { signal });
}

function say({ nodes }, text) {
  nodes.said.replaceChildren(make("div", { textContent: text }));
}

async function save(timeline) {
  const fileName = fileNameOf(timeline);
  const href = URL.createObjectURL(new Blob([await fileOf(timeline.scene)]));
  make("a", { href, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
  say(timeline, `Saved as ${fileName}`);
}

const fileNameOf = ({ scene }) =>
  `${scene.head.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "timeline"}.json.gz`;

// Its page answers PING with PONG once it can take a trace.
async function openInPerfetto(timeline) {
  const tab = open(PERFETTO); // at once: later it would not count as the user's
  if (!tab) return say(timeline, `No tab was opened: allow pop-ups here, or save the file and open it at ${PERFETTO}`);
  say(timeline, `${PERFETTO} is loading in a new tab…`);
  const buffer = await fileOf(timeline.scene);
  const fileName = fileNameOf(timeline);
  const asked = new AbortController();
  const ping = setInterval(() => {
    if (tab.closed) asked.abort();
    else tab.postMessage("PING", PERFETTO);
  }, 200);
  asked.signal.addEventListener("abort", () => clearInterval(ping));
  const answer = ({ source, origin, data }) => {
    if (source !== tab || origin !== PERFETTO || data !== "PONG") return;
    asked.abort();
    tab.postMessage({ perfetto: { buffer, title: fileName, fileName } }, PERFETTO);
    say(timeline, "Perfetto has the slices; it may ask there whether you trust this page");
  };
  addEventListener("message", answer, { signal: asked.signal });
}

// ── The file ─────────────────────────────────────────────────────────────────────────────────

async function fileOf(scene) {
  const text = new Blob([...pieces(scene)]);
  return new Response(text.stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
}

function* pieces(scene) {
  let some = [JSON.stringify({ ph: "M", name: "process_labels", pid: 0, args: { labels: scene.head.stamp } })];
  yield '{"displayTimeUnit":"ns","traceEvents":[\n';
  for (const event of events(scene)) {
    if (some.length === AT_ONCE) {
      yield `${some.join(",\n")},\n`;
      some = [];
    }
    some.push(event);
  }
  yield `${some.join(",\n")}\n]}\n`;
}

// A rank is a process, a lane a thread, and so is each level that does not nest in the one above.
function* events(scene) {
  const { head, rows } = scene;
  const ranks = Math.max(...rows.map((row) => row.rank)) + 1;
  const arrows = arrowsOf(scene);
  let thread = ranks * head.parts.length;
  let above = null;
  for (const row of rows.filter((one) => one.lane)) {
    const pid = row.part * ranks + row.rank;
    const name = `${head.parts[row.part].label} rank ${row.rank}`.trim();
    if (above?.part !== row.part || above?.rank !== row.rank) yield metadata("process_name", pid, 0, name);
    if (!row.level || !nests(row.draw, above.draw)) {
      thread++;
      yield metadata("thread_name", pid, thread, row.level ? `${row.lane} (overlapping)` : row.lane);
    }
    for (let i = row.first; i < row.last; i++) yield eventOf(scene, i, pid, thread, arrows.get(i));
    above = row;
  }
}

const metadata = (what, pid, tid, name) =>
  JSON.stringify({ ph: "M", name: what, pid, tid, args: { name } });

function nests(inner, outer) {
  for (let k = 0; k < inner.n; k++) {
    const at = bisect(outer.start, inner.start[k], 0, outer.n, true) - 1;
    if (at < 0 || outer.start[at] + outer.duration[at] < inner.start[k] + inner.duration[k]) return false;
  }
  return true;
}

// Microseconds, exact to the nanosecond.
const micro = (ns) => `${Math.floor(ns / 1000)}.${String(ns % 1000).padStart(3, "0")}`;

function eventOf(scene, i, pid, tid, arrow) {
  const { start, duration, kind } = scene.columns;
  const rest = { name: nameOf(scene, i), cat: scene.head.kinds[kind[i]].label, args: knownOf(scene, i), ...arrow };
  const times = `"ts":${micro(start[i])},"dur":${micro(duration[i])}`;
  return `{"ph":"X","pid":${pid},"tid":${tid},${times},${JSON.stringify(rest).slice(1)}`;
}

// By slice: from launches to what they launched, where that does not seem to begin before them.
function arrowsOf({ columns: { start, launches, launched } }) {
  const found = new Map();
  launches.forEach((from, k) => {
    if (start[launched[k]] < start[from]) return;
    found.set(from, { bind_id: String(from), flow_out: true });
    found.set(launched[k], { bind_id: String(from), flow_in: true });
  });
  return found;
}
