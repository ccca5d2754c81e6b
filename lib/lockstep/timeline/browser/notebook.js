// A timeline as a widget of a notebook, by anywidget.

import { openScene } from "./scene.js";
import { mount } from "./timeline.js";

// The slices come as a message and not as the widget's state, which notebooks store. The first
// one comes by itself: while cells run, the kernel answers nobody.
const sources = new Map(); // by the widget's key: `model` is another object each time

function initialize({ model }) {
  const source = { scene: undefined, tell: new Set() };
  sources.set(model.get("key"), source);
  model.on("msg:custom", (message, buffers) => {
    if (message.type !== "scene") return;
    source.scene = message.head ? openScene(message.head, buffers) : null;
    for (const tell of source.tell) tell();
  });
  if (!model.get("fresh")) model.send({ type: "scene" });
  return () => sources.delete(model.get("key"));
}

// The still picture stands below the widget, for those who cannot run it: here it is folded. An
// output's node is JupyterLab's, or VS Code's.
function foldStill(el) {
  const output = el.closest(".jp-OutputArea-child,.output_container");
  const area = output?.parentElement;
  if (!area) return () => {};
  const fold = () => {
    const still = output.nextElementSibling?.querySelector("details.lockstep-still");
    if (still) {
      still.open = false;
      still.dataset.plays = "yes"; // without this it says how to wake the widget
    }
    return Boolean(still);
  };
  const observer = new MutationObserver(() => fold() && observer.disconnect());
  if (!fold()) observer.observe(area, { childList: true, subtree: true });
  return () => observer.disconnect();
}

function render({ model, el }) {
  const source = sources.get(model.get("key"));
  let mounted = null;
  let stopFolding = () => {};
  const tell = () => {
    mounted?.unmount();
    if (source.scene) {
      mounted = mount(el, source.scene, mounted?.view);
      stopFolding = foldStill(el);
    } else if (source.scene === null)
      el.textContent = "The slices are no longer in memory: run the cell again. The picture is below.";
    else el.textContent = "Loading the timeline…";
  };
  source.tell.add(tell);
  tell();
  return () => {
    source.tell.delete(tell);
    mounted?.unmount();
    stopFolding();
  };
}

export default { initialize, render };
