// Sliders, and what a model says for them. All numbers come from Python.

import { make, makeChoice, makeRoot, svg } from "./nodes.js";
import { BUSY, connect, foldStill, hasRoom, onWidth, roomIn } from "./widget.js";
import { drawChart, legendOfChart } from "./chart.js";
import { drawLanes, legendOfLanes } from "./lanes.js";

let count = 0; // names within a page are told apart by it

// What a model says of one choice: a sentence, lanes and a chart.
function makeView() {
  const name = `lockstep-sliders-${count++}`;
  const said = make("div", { className: "ls-said", role: "status" });
  const lanes = svg("svg", { role: "img" });
  const chart = svg("svg", { role: "img" });
  const box = make("div", {}, lanes, chart);
  const legend = make("div", { className: "ls-legend" });
  let drawn = null;

  // longest: how long the longest lanes are of all that stand beside each other.
  function draw(longest) {
    if (!drawn || !hasRoom(box)) return;
    const width = roomIn(box);
    lanes.style.display = drawn.lanes ? "" : "none";
    chart.style.display = drawn.chart ? "" : "none";
    if (drawn.lanes) drawLanes(lanes, drawn, width, name, drawn.length / longest);
    if (drawn.chart) drawChart(chart, drawn.chart, width, `${name}-clip`);
    for (const picture of [lanes, chart]) picture.setAttribute("aria-label", drawn.said);
  }

  function show(now, longest) {
    drawn = now;
    said.textContent = now.said;
    draw(longest);
    legend.replaceChildren(
      ...(now.lanes ? legendOfLanes(now, name) : []),
      ...(now.chart ? legendOfChart(now.chart) : []),
    );
  }

  return { node: make("div", {}, said, box, legend), said, draw, show };
}

function render({ model, el }) {
  const root = makeRoot();
  let now = null;
  let asked = {};
  let views = [];

  const title = make("div", { className: "ls-title" });
  const choices = make("div", { className: "ls-bar" });
  const sliders = make("div", { className: "ls-sliders" });
  const problem = make("div", { role: "status" });
  const stage = make("div", { className: "ls-beside" });
  const foot = make("div", { className: "ls-foot" });
  foot.style.whiteSpace = "pre-line";
  root.append(...[title, choices, sliders, problem, stage, foot]);
  el.append(root);

  function ask(change) {
    asked = { ...asked, ...change };
    kernel.ask(asked);
  }

  function makeSlider({ name, label, texts }) {
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

  // The nodes stay, so that a slider keeps the focus and the pointer that turns it.
  function build() {
    title.textContent = now.title;
    sliders.replaceChildren(...now.sliders.map(makeSlider));
    choices.hidden = !now.choices.length;
    choices.replaceChildren(
      ...now.choices.map((one) =>
        makeChoice(one, asked[one.name], (value) => ask({ [one.name]: value })),
      ),
    );
    foot.textContent = now.stamp;
  }

  const longest = () => Math.max(...now.drawn.map((one) => one.length ?? 0));

  function draw() {
    for (const view of views) view.draw(longest());
  }

  const kernel = connect(
    model,
    (shown) => {
      problem.textContent = shown.problem ?? "";
      if (shown.problem) return;
      const isFirst = now === null;
      now = shown;
      if (isFirst) {
        asked = { ...shown.asked };
        build();
      }
      if (views.length !== now.drawn.length) {
        views = now.drawn.map(makeView);
        stage.replaceChildren(...views.map((view) => view.node));
      }
      views.forEach((view, number) => view.show(now.drawn[number], longest()));
    },
    (isBusy) => (problem.textContent = isBusy ? BUSY : ""),
  );
  const ends = [onWidth(root, draw), foldStill(el), () => kernel.end()];
  return () => ends.forEach((end) => end());
}

export default { render };
