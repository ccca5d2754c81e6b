// A widget asks, and Python answers: the page knows no formula.

const PATIENCE = 500; // ms until a kernel that does not answer is said to be busy

// tell(shown) is called with every answer, wait(isBusy) when the kernel does not answer for long.
export function connect(model, tell, wait) {
  let timer;
  const told = () => {
    clearTimeout(timer);
    wait(false);
    tell(JSON.parse(model.get("shown")));
  };
  model.on("change:shown", told);
  told();
  return {
    ask(asked) {
      model.set("asked", JSON.stringify(asked));
      model.save_changes();
      clearTimeout(timer);
      timer = setTimeout(() => wait(true), PATIENCE);
    },
    end() {
      clearTimeout(timer);
      model.off("change:shown", told);
    },
  };
}

export const BUSY = "The kernel is busy, or has ended: the answer comes when its cells have run.";

// What stands below the widget, for those who cannot run it: here it is folded. An output's node is
// JupyterLab's, or VS Code's.
export function foldStill(el) {
  let output = null;
  const fold = () => {
    const still = output.nextElementSibling?.querySelector("details.lockstep-still");
    if (still) {
      still.open = false;
      still.dataset.plays = "yes"; // without this it says how to wake the widget
    }
    return Boolean(still);
  };
  const added = new MutationObserver(() => fold() && added.disconnect());
  const stopSizes = onWidth(el, () => {
    if (output || !(output = el.closest(".jp-OutputArea-child,.output_container"))) return;
    if (!fold()) added.observe(output.parentElement, { childList: true, subtree: true });
  });
  return () => {
    stopSizes();
    added.disconnect();
  };
}

// A picture is drawn as if letters were as large as usual, 13 pixels, and then grows with them: so
// wide it is drawn.
export const roomIn = (node) => (node.clientWidth * 13) / parseFloat(getComputedStyle(node).fontSize);

// In less than that nothing can be drawn: a page that is laid out passes through such widths, and
// before that the node is on no page.
export const hasRoom = (node) => roomIn(node) >= 160;

// Draw when there is a width, and whenever it changes, or the height, as it does with the letters.
export function onWidth(node, draw) {
  const observer = new ResizeObserver(() => node.clientWidth && draw(node.clientWidth));
  observer.observe(node);
  return () => observer.disconnect();
}
