// Dials, and what a model says for them. All numbers come from Python.

import { make, makeChoice, makeRoot, svg } from "./nodes.js";
import { BUSY, connect, foldStill, hasRoom, onWidth, roomIn } from "./widget.js";
import { drawChart, legendOfChart } from "./chart.js";
import { drawLanes, legendOfLanes } from "./lanes.js";

let count = 0; // names within a page are told apart by it

function render({ model, el }) {
  const root = makeRoot();
  const name = `lockstep-dials-${count++}`;
  let now = null;
  let asked = {};

  const title = make("div", { className: "ls-title" });
  const choices = make("div", { className: "ls-bar" });
  const dials = make("div", { className: "ls-dials" });
  const lanes = svg("svg", { role: "img" });
  const chart = svg("svg", { role: "img" });
  const box = make("div", {}, lanes, chart);
  const legend = make("div", { className: "ls-legend" });
  const said = make("div", { className: "ls-said", role: "status" });
  const foot = make("div", { className: "ls-foot" });
  foot.style.whiteSpace = "pre-line";
  root.append(...[title, choices, dials, said, box, legend, foot]);
  el.append(root);

  function ask(change) {
    asked = { ...asked, ...change };
    kernel.ask(asked);
  }

  function makeDial({ name, label, texts }) {
    const output = make("output");
    const range = make("input", { type: "range", min: 0, max: texts.length - 1, step: 1 });
    const show = () => {
      output.textContent = texts[range.value];
      range.setAttribute("aria-valuetext", texts[range.value]);
    };
    range.setAttribute("aria-label", label);
    range.value = asked[name];
    range.oninput = () => {
      show();
      ask({ [name]: Number(range.value) });
    };
    show();
    return make("label", {}, make("span", { textContent: label }), range, output);
  }

  // The nodes stay, so that a dial keeps the focus and the pointer that turns it.
  function build() {
    title.textContent = now.title;
    dials.replaceChildren(...now.dials.map(makeDial));
    choices.hidden = !now.choices.length;
    choices.replaceChildren(
      ...now.choices.map((one) =>
        makeChoice(one, asked[one.name], (value) => ask({ [one.name]: value })),
      ),
    );
    foot.textContent = now.stamp;
  }

  function draw() {
    if (!now || !hasRoom(box)) return;
    const width = roomIn(box);
    lanes.style.display = now.lanes ? "" : "none";
    chart.style.display = now.chart ? "" : "none";
    if (now.lanes) drawLanes(lanes, now, width, name);
    if (now.chart) drawChart(chart, now.chart, width, `${name}-clip`);
    for (const picture of [lanes, chart]) picture.setAttribute("aria-label", now.said);
  }

  const kernel = connect(
    model,
    (shown) => {
      if (shown.problem) {
        said.textContent = shown.problem;
        return;
      }
      const isFirst = now === null;
      now = shown;
      if (isFirst) {
        asked = { ...shown.asked };
        build();
      }
      said.textContent = now.said;
      draw();
      legend.replaceChildren(
        ...(now.lanes ? legendOfLanes(now, name) : []),
        ...(now.chart ? legendOfChart(now.chart) : []),
      );
    },
    (isBusy) => isBusy && (said.textContent = BUSY),
  );
  const ends = [onWidth(root, draw), foldStill(el), () => kernel.end()];
  return () => ends.forEach((end) => end());
}

export default { render };
