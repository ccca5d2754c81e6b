// Plays messages round by round.

import { make, makeButton, makeChoice, makeRoot, svg } from "./nodes.js";
import { BUSY, connect, foldStill, hasRoom, onWidth, roomIn } from "./widget.js";
import { drawStage } from "./stage.js";

const ROUND = 1100; // ms of a round
const HELP = "Arrow keys step, Home and End go to the start and the end, Space plays.";

function render({ model, el }) {
  const root = makeRoot();
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let film = null;
  let asked = {}; // what was chosen, even where it cannot be played
  let time = 0; // in rounds
  let playing = 0; // of an animation, or of a timer
  let last = 0; // when the animation was last drawn

  const title = make("div", { className: "ls-title" });
  const choices = make("div", { className: "ls-bar" });
  const back = makeButton("‹ step", "one round back", () => goTo(Math.ceil(time) - 1));
  const play = makeButton("play", "play", () => (playing ? stop() : start()));
  const forth = makeButton("step ›", "one round forward", () => goTo(Math.floor(time) + 1));
  const scrub = make("input", { type: "range", className: "ls-scrub", min: 0, step: 1 });
  scrub.setAttribute("aria-label", "round");
  scrub.oninput = () => goTo(Number(scrub.value));
  const bar = make("div", { className: "ls-bar" }, back, play, forth, scrub);
  const picture = svg("svg", { role: "img", tabindex: 0, "data-lm-suppress-shortcuts": "true" });
  const box = make("div", {}, picture);
  const said = make("div", { className: "ls-said", role: "status" });
  const counts = make("div", { className: "ls-counts" });
  const legend = make("div", { className: "ls-legend" });
  const foot = make("div", { className: "ls-foot" });
  root.append(...[title, choices, bar, box, said, counts, legend, foot]);
  el.append(root);

  function draw() {
    if (!film || !hasRoom(box)) return;
    drawStage(picture, film, time, roomIn(box));
    root.dataset.time = time;
  }

  function show() {
    const at = Math.floor(time);
    const end = film.rounds.length;
    const chunks = film.ranks * film.states[0][0].length;
    scrub.value = Math.ceil(time);
    scrub.setAttribute("aria-valuetext", `round ${at} of ${end}`);
    back.disabled = time === 0;
    forth.disabled = at === end;
    play.textContent = playing ? "pause" : "play";
    play.setAttribute("aria-label", play.textContent);
    said.textContent = film.said[Math.ceil(time)];
    picture.setAttribute("aria-label", `${film.title}. ${film.said[at]} ${HELP}`);
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
    draw();
  }

  function stop() {
    cancelAnimationFrame(playing);
    clearTimeout(playing);
    playing = 0;
    if (film) show();
  }

  function goTo(round) {
    time = Math.min(Math.max(round, 0), film.rounds.length);
    stop();
  }

  function start() {
    if (time === film.rounds.length) time = 0;
    last = performance.now();
    next();
    show();
  }

  // With less motion nothing flies: rounds follow each other.
  function next() {
    playing = still.matches ? setTimeout(move, ROUND, last + ROUND) : requestAnimationFrame(move);
  }

  function move(now) {
    const before = Math.ceil(time);
    const share = still.matches ? 1 : Math.min((now - last) / ROUND, 0.2);
    time = Math.max(time, Math.min(time + share, film.rounds.length));
    // A round that is over is seen for a moment, because nothing is under way then.
    if (Math.floor(time) > Math.floor(time - share)) time = Math.floor(time);
    last = still.matches ? performance.now() : now;
    if (time === film.rounds.length) return stop();
    next();
    if (Math.ceil(time) !== before || still.matches || Number.isInteger(time)) show();
    else draw();
  }

  picture.addEventListener("keydown", (event) => {
    const does = {
      ArrowLeft: () => goTo(Math.ceil(time) - 1),
      ArrowRight: () => goTo(Math.floor(time) + 1),
      Home: () => goTo(0),
      End: () => goTo(film.rounds.length),
      " ": () => (playing ? stop() : start()),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });

  const kernel = connect(
    model,
    (shown) => {
      if (shown.problem) {
        said.textContent = shown.problem;
        return;
      }
      film = shown;
      asked = { ...film.asked };
      title.textContent = film.title;
      scrub.max = film.rounds.length;
      choices.hidden = !film.choices.length;
      const focused = choices.querySelector(":focus")?.parentElement.firstChild.textContent;
      choices.replaceChildren(
        ...film.choices.map((one) =>
          makeChoice(one, asked[one.name], (value) => {
            asked = { ...asked, [one.name]: value };
            kernel.ask(asked);
          }),
        ),
      );
      for (const label of choices.children)
        if (label.firstChild.textContent === focused) label.querySelector("select").focus();
      legend.replaceChildren(
        make("span", { textContent: `${film.legend}; a thick frame has those of all.` }),
        make("span", { textContent: film.note ? "" : "Arrow: solid is added, dashed is taken." }),
      );
      foot.textContent = [film.note, film.stamp].filter(Boolean).join(" ");
      goTo(0);
    },
    (isBusy) => isBusy && (said.textContent = BUSY),
  );
  const ends = [onWidth(root, draw), foldStill(el), () => kernel.end(), () => stop()];
  return () => ends.forEach((end) => end());
}

export default { render };
