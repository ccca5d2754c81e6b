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

export const BUSY = "The kernel is busy, or gone: the answer comes when its cells have run.";

// What stands below the widget, for those who cannot run it: here it is folded.
export function foldStill(el) {
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

// Draw now, and whenever the width changes.
export function onWidth(node, draw) {
  const observer = new ResizeObserver(() => node.clientWidth && draw(node.clientWidth));
  observer.observe(node);
  return () => observer.disconnect();
}
