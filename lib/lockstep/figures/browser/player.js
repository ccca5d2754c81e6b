// Plays messages round by round.

import { make, makeButton, makeChoice, makeRoot, svg } from "./nodes.js";
import { BUSY, connect, foldStill, hasRoom, onWidth, roomIn } from "./widget.js";
import { drawStage } from "./stage.js";

const ROUND = 1100; // ms of a round
const HELP = "Arrow keys step, Home and End go to the start and the end, Space plays.";

// One film: its stage, and what is said and counted of its rounds.
function makeView(film) {
  const title = make("div", { className: "ls-title", textContent: film.title });
  const picture = svg("svg", { role: "img", tabindex: 0, "data-lm-suppress-shortcuts": "true" });
  const box = make("div", {}, picture);
  const said = make("div", { className: "ls-said", role: "status" });
  const counts = make("div", { className: "ls-counts" });
  const legend = make(
    "div",
    { className: "ls-legend" },
    make("span", { textContent: `${film.legend}; a thick frame has those of all.` }),
    make("span", { textContent: film.note ? "" : "Arrow: solid is added, dashed is taken." }),
  );
  const foot = make("div", {
    className: "ls-foot",
    textContent: [film.note, film.stamp].filter(Boolean).join(" "),
  });
  const end = film.rounds.length;

  function draw(time) {
    if (hasRoom(box)) drawStage(picture, film, Math.min(time, end), roomIn(box));
  }

  function show(time) {
    const at = Math.min(Math.floor(time), end);
    said.textContent = film.said[Math.min(Math.ceil(time), end)];
    picture.setAttribute("aria-label", `${film.title}. ${film.said[at]} ${HELP}`);
    const chunks = film.ranks * film.states[0][0].length;
    const done = film.complete[at].reduce((sum, one) => sum + one, 0);
    const rows = [
      ["rounds", `${at} of ${end}`],
      ["busiest rank has sent", film.busiest[at]],
      ["all together", film.all[at]],
      ["complete", `${done} of ${chunks}`],
    ];
    counts.replaceChildren(
      ...rows.map(([name, value]) =>
        make("span", {}, `${name} `, make("strong", { textContent: value })),
      ),
    );
    draw(time);
  }

  return { node: make("div", {}, title, box, said, counts, legend, foot), end, draw, show };
}

function render({ model, el }) {
  const root = makeRoot();
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let views = [];
  let asked = {}; // what was chosen, even where it cannot be played
  let time = 0; // in rounds
  let end = 0;
  let speed = "1×";
  let playing = 0; // of an animation, or of a timer
  let last = 0; // when the animation was last drawn

  const choices = make("div", { className: "ls-bar" });
  const back = makeButton("‹ step", "one round back", () => goTo(Math.ceil(time) - 1));
  const play = makeButton("play", "play", () => (playing ? stop() : start()));
  const forth = makeButton("step ›", "one round forward", () => goTo(Math.floor(time) + 1));
  const scrub = make("input", { type: "range", className: "ls-scrub", min: 0, step: 1 });
  scrub.setAttribute("aria-label", "round");
  scrub.oninput = () => goTo(Number(scrub.value));
  const speeds = { name: "speed", values: ["½×", "1×", "2×", "4×"] };
  const pace = makeChoice(speeds, speed, (value) => (speed = value));
  const bar = make("div", { className: "ls-bar" }, back, play, forth, scrub, pace);
  const problem = make("div", { role: "status" });
  const stage = make("div", { className: "ls-beside" });
  root.append(choices, bar, problem, stage);
  el.append(root);

  const lengthOfRound = () => ROUND / { "½×": 0.5, "1×": 1, "2×": 2, "4×": 4 }[speed];

  function draw() {
    for (const view of views) view.draw(time);
    root.dataset.time = time;
  }

  function show() {
    scrub.value = Math.ceil(time);
    scrub.setAttribute("aria-valuetext", `round ${Math.floor(time)} of ${end}`);
    back.disabled = time === 0;
    forth.disabled = time === end;
    play.textContent = playing ? "pause" : "play";
    play.setAttribute("aria-label", play.textContent);
    for (const view of views) view.show(time);
    root.dataset.time = time;
  }

  function stop() {
    cancelAnimationFrame(playing);
    clearTimeout(playing);
    playing = 0;
    show();
  }

  function goTo(round) {
    time = Math.min(Math.max(round, 0), end);
    stop();
  }

  function start() {
    if (time === end) time = 0;
    last = performance.now();
    next();
    show();
  }

  // With less motion nothing flies: rounds follow each other.
  function next() {
    playing = still.matches ? setTimeout(move, lengthOfRound(), last + lengthOfRound()) : requestAnimationFrame(move);
  }

  function move(now) {
    const before = Math.ceil(time);
    const share = still.matches ? 1 : Math.min((now - last) / lengthOfRound(), 0.2);
    time = Math.max(time, Math.min(time + share, end));
    // A round that is over is seen for a moment, because nothing is under way then.
    if (Math.floor(time) > Math.floor(time - share)) time = Math.floor(time);
    last = still.matches ? performance.now() : now;
    if (time === end) return stop();
    next();
    if (Math.ceil(time) !== before || still.matches || Number.isInteger(time)) show();
    else draw();
  }

  stage.addEventListener("keydown", (event) => {
    const does = {
      ArrowLeft: () => goTo(Math.ceil(time) - 1),
      ArrowRight: () => goTo(Math.floor(time) + 1),
      Home: () => goTo(0),
      End: () => goTo(end),
      " ": () => (playing ? stop() : start()),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });

  const kernel = connect(
    model,
    (shown) => {
      problem.textContent = shown.problem ?? "";
      if (shown.problem) return;
      views = shown.films.map(makeView);
      end = Math.max(...views.map((view) => view.end));
      asked = { ...shown.asked };
      stage.replaceChildren(...views.map((view) => view.node));
      scrub.max = end;
      choices.hidden = !shown.choices.length;
      const focused = choices.querySelector(":focus")?.parentElement.firstChild.textContent;
      choices.replaceChildren(
        ...shown.choices.map((one) =>
          makeChoice(one, asked[one.name], (value) => {
            asked = { ...asked, [one.name]: value };
            kernel.ask(asked);
          }),
        ),
      );
      for (const label of choices.children)
        if (label.firstChild.textContent === focused) label.querySelector("select").focus();
      goTo(0);
    },
    (isBusy) => (problem.textContent = isBusy ? BUSY : ""),
  );
  const ends = [onWidth(root, draw), foldStill(el), () => kernel.end(), () => stop()];
  return () => ends.forEach((end) => end());
}

export default { render };
