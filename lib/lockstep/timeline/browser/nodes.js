// The nodes of the page, and how they look. Text of a trace is only ever set as textContent or
// drawn: it is data.

import { percent } from "./words.js";

// How much larger than usual letters are: sizes in pixels are of the usual ones, and all that letters
// stand in grows with them. Those are CSS pixels, but where "device" is said.
export const enlargedOf = (root) => parseFloat(getComputedStyle(root).fontSize) / 12;
export const isNarrow = (root, enlarged) => root.clientWidth < 600 * enlarged;
// The width of the labels.
export const leftOf = (root, enlarged) =>
  isNarrow(root, enlarged) ? Math.min(116 * enlarged, 0.4 * root.clientWidth) : 168 * enlarged;

export const MOUSE =
  "Click a slice, or hover. Click the picture, or hold Ctrl, to zoom with the wheel; drag over a range of " +
  "time, Shift and drag to pan; double-click shows all.";
const KEYS =
  "Arrow keys pan and scroll, + and − zoom, and so do W A S D; Home shows all, / searches, Enter goes to the " +
  "next match. Shift and arrow keys go from slice to slice, R reports on the visible range, " +
  "F fits the selection, Escape clears it, ? shows this.";

const EXPORTS =
  "Save writes the slices to a file that Perfetto and chrome://tracing read. Open in Perfetto loads " +
  "https://ui.perfetto.dev in a new tab and hands it that file within this browser: this page asks for " +
  "nothing before the click, and sends the file nowhere else. Without a network: ";

const STYLE = `
.lockstep-timeline{--ink:#1a1a1a;--muted:#5c5c5c;--line:#d8d8d8;--paper:#fff;--soft:#f4f4f4;
  position:relative;color:var(--ink);background:var(--paper);
  font:calc(var(--jp-code-font-size,13px)*12/13)/1.4 system-ui,sans-serif;
  box-sizing:border-box;width:100%;padding:4px}
.lockstep-timeline *{box-sizing:border-box}
.lockstep-timeline .ls-bar{display:flex;flex-wrap:wrap;gap:6px;align-items:center;padding:2px 0 6px}
.lockstep-timeline .ls-title{font-weight:600;font-size:calc(13em/12);margin-right:auto;overflow-wrap:anywhere}
.lockstep-timeline button,.lockstep-timeline input{font:inherit;color:inherit;
  background:var(--soft);border:1px solid var(--line);border-radius:4px;padding:2px 8px;margin:0}
.lockstep-timeline button{cursor:pointer}
.lockstep-timeline :focus-visible{outline:2px solid #56B4E9;outline-offset:-1px}
.lockstep-timeline input{width:15em;max-width:45%}
.lockstep-timeline .ls-buttons{display:flex;gap:6px}
.lockstep-timeline .ls-found{min-width:7em;color:var(--muted)}
.lockstep-timeline canvas{display:block}
.lockstep-timeline .ls-body{position:relative;overflow-x:hidden;overflow-y:auto;display:grid;
  grid-template-columns:var(--left) minmax(0,1fr);border:solid var(--line);border-width:1px 0;
  overscroll-behavior:contain}
.lockstep-timeline .ls-rows{position:sticky;top:0;align-self:start;touch-action:pan-y;cursor:crosshair}
.lockstep-timeline .ls-labels{position:relative;border-right:1px solid var(--line)}
.lockstep-timeline .ls-label{position:absolute;left:0;right:4px;padding:0 2px 0 4px;display:flex;
  gap:4px;align-items:center;white-space:nowrap;overflow:hidden;border:0;background:none;
  text-align:left;border-radius:0}
.lockstep-timeline .ls-label [aria-hidden]{flex:none}
.lockstep-timeline .ls-label span{overflow:hidden;text-overflow:ellipsis}
.lockstep-timeline .ls-label small{margin-left:auto;color:var(--muted);font-size:calc(11em/12);flex:none}
.lockstep-timeline.ls-narrow .ls-label small{display:none}
.lockstep-timeline.ls-narrow .ls-lane{padding-left:8px}
.lockstep-timeline.ls-narrow .ls-found{min-width:0}
.lockstep-timeline .ls-rank{font-weight:600}
.lockstep-timeline.ls-narrow .ls-rank{font-size:calc(11em/12);padding-left:2px;gap:2px}
.lockstep-timeline .ls-lane{padding-left:16px}
.lockstep-timeline .ls-tip{position:absolute;z-index:9;max-width:30em;pointer-events:none;
  background:var(--paper);border:1px solid var(--ink);border-radius:4px;padding:4px 8px;
  overflow-wrap:anywhere;box-shadow:0 1px 4px #0006}
.lockstep-timeline .ls-tip div:first-child,.lockstep-timeline .ls-said div:first-child{
  font-weight:600;max-height:4.2em;overflow:hidden}
.lockstep-timeline .ls-help p{margin:0 0 4px}
.lockstep-timeline .ls-help code{font-size:1em;white-space:nowrap}
.lockstep-timeline .ls-said{padding:4px 0;min-height:3.4em;overflow-wrap:anywhere}
.lockstep-timeline .ls-steps{display:flex;gap:4px;overflow-x:auto;padding:2px 0 6px}
.lockstep-timeline .ls-steps button{flex:none}
.lockstep-timeline .ls-range{overflow:auto;max-height:24em;margin-bottom:6px}
.lockstep-timeline .ls-range table{border-collapse:collapse}
.lockstep-timeline .ls-range td{white-space:nowrap}
.lockstep-timeline .ls-range th button{padding:0 4px}
.lockstep-timeline .ls-range [aria-sort] button{border-color:var(--ink);font-weight:600}
.lockstep-timeline .ls-range .ls-name{max-width:36em;padding:0;border:0;background:none;
  overflow:hidden;text-overflow:ellipsis;white-space:nowrap;text-decoration:underline;text-align:left}
.lockstep-timeline.ls-narrow .ls-range{font-size:calc(11em/12)}
.lockstep-timeline.ls-narrow .ls-range .ls-name{max-width:9em}
.lockstep-timeline.ls-narrow .ls-range :is(th,td){padding-right:4px}
.lockstep-timeline .ls-range th,.lockstep-timeline .ls-range td{padding:0 12px 0 0;text-align:right;
  font-variant-numeric:tabular-nums;font-weight:400}
.lockstep-timeline .ls-range :first-child{text-align:left}
.lockstep-timeline .ls-legend{display:flex;flex-wrap:wrap;gap:2px 14px;padding:4px 0}
.lockstep-timeline .ls-legend :is(span,button){display:inline-flex;gap:5px;align-items:center}
.lockstep-timeline .ls-legend button[aria-pressed=false]{text-decoration:line-through;
  color:var(--muted);border-style:dashed}
.lockstep-timeline .ls-muted{color:var(--muted)}
.lockstep-timeline .ls-foot{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 16px}
.lockstep-timeline .ls-unseen{position:absolute;width:1px;height:1px;overflow:hidden;
  clip-path:inset(50%)}
.lockstep-timeline [hidden]{display:none!important}
`;

export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties))
    if (key in node && key !== "role") node[key] = value;
    else node.setAttribute(key, value);
  // JupyterLab's keys would run cells and delete them. It looks at the focused node itself first.
  node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children);
  return node;
}

export function makeNodes(head) {
  const field = make("input", { type: "search", placeholder: "search names ( / )" });
  field.setAttribute("aria-label", "search names");
  const found = make("span", { className: "ls-found", role: "status" });
  const zoomIn = makeButton("+", "zoom in");
  const zoomOut = makeButton("−", "zoom out");
  const all = makeButton("all", "show all");
  const report = makeButton("report", "report on what is seen");
  const title = make("span", { className: "ls-title", textContent: head.title });
  const asks = makeButton("?", "keys and mouse");
  asks.setAttribute("aria-expanded", "false");
  const buttons = make("span", { className: "ls-buttons" }, zoomIn, zoomOut, all, report, asks);
  const save = makeButton("Save", "save the slices to a file");
  const perfetto = makeButton("Open in Perfetto", "open ui.perfetto.dev in a new tab and hand it the slices");
  const exports = make("span", { className: "ls-buttons" }, save, perfetto);
  const bar = make("div", { className: "ls-bar" }, title, field, found, buttons, exports);
  const help = make("div", { className: "ls-help", hidden: true });
  const offline = make("code", { textContent: "lockstep trace --open" });
  help.append(...[[MOUSE], [KEYS], [EXPORTS, offline]].map((words) => make("p", {}, ...words)));

  const steps = make("div", { className: "ls-steps", hidden: !head.steps.length });
  steps.append(...head.steps.map(makeStep));

  const axis = make("canvas", { className: "ls-axis" });
  axis.setAttribute("aria-hidden", "true");
  const labels = make("div", { className: "ls-labels" });
  const canvas = make("canvas", { className: "ls-rows", tabIndex: 0, role: "application" });
  canvas.setAttribute("aria-roledescription", "timeline");
  canvas.setAttribute("aria-label", `${head.alt} ${KEYS}`);
  const body = make("div", { className: "ls-body" }, labels, canvas);

  const said = make("div", { className: "ls-said", role: "status" });
  const list = make("div", { className: "ls-list" });
  const legend = make("div", { className: "ls-legend" });
  const stamp = make("span", { className: "ls-stamp", textContent: head.stamp });
  const foot = make("div", { className: "ls-foot ls-muted" }, stamp);
  const tip = make("div", { className: "ls-tip", hidden: true });
  const root = make(
    "div",
    { className: "lockstep-timeline" },
    make("style", { textContent: STYLE }),
    ...[bar, help, steps, axis, body, said, list, legend, foot, tip],
    make("div", { className: "ls-unseen" }, makeTable(head)),
  );
  return {
    ...{ root, field, found, zoomIn, zoomOut, all, report, asks, save, perfetto, help, steps },
    ...{ axis, labels, canvas, body, said, list, legend, tip },
  };
}

function makeButton(text, label) {
  const node = make("button", { type: "button", textContent: text, title: label });
  node.setAttribute("aria-label", label);
  return node;
}

function makeStep({ label }, at) {
  const node = makeButton(label, `${label}: show it, and report on it`);
  node.dataset.at = at;
  return node;
}

// The shares of each rank, for those who do not see the picture.
function makeTable(head) {
  const cells = (tag, texts) =>
    make("tr", {}, ...texts.map((text) => make(tag, { textContent: text })));
  return make(
    "table",
    {},
    make("caption", { textContent: head.alt }),
    cells("th", ["rank", "computes", "communicates", "exposed", ...head.groups]),
    ...head.times.map((one) =>
      cells("td", [
        `${head.parts[one.part].label} rank ${one.rank}`.trim(),
        one.hasCompute ? percent(one.compute, one.span) : "unknown",
        percent(one.communication, one.span),
        one.hasCompute ? percent(one.exposed, one.span) : "unknown",
        ...one.groups.map((lasts) => percent(lasts, one.span)),
      ]),
    ),
  );
}
