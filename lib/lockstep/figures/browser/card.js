// Asks for a number or a guess, and then shows what came out beside it.

import { make, makeButton, makeRoot } from "./nodes.js";
import { BUSY, connect, foldStill } from "./widget.js";

function render({ model, el }) {
  const root = makeRoot();
  const form = make("div", { className: "ls-bar" });
  const shown = make("div", { className: "ls-shown", role: "status" });
  root.append(form, shown);
  el.append(root);

  function build({ label, options, answer }) {
    form.append(make("span", { className: "ls-title", textContent: label }));
    const ask = (said) => kernel.ask({ answer: said });
    for (const one of options) form.append(makeButton(one, one, () => ask(one)));
    if (options.length) return;
    const field = make("input", { type: "text", size: 8, value: answer });
    field.setAttribute("aria-label", label);
    field.setAttribute("inputmode", "decimal");
    field.onkeydown = (event) => {
      if (event.key === "Enter") ask(field.value); // a false returned would swallow the key
    };
    form.append(field, makeButton("compare", "compare", () => ask(field.value)));
  }

  function tell(found) {
    if (!form.childElementCount) build(found);
    const rows = found.rows.map(([name, text], at) =>
      make("div", {}, at === 0 && found.sign ? `${found.sign} ` : "", name ? `${name} · ${text}` : text),
    );
    for (const [theme, src] of Object.entries(found.picture))
      rows.push(make("img", { src, className: `lockstep-${theme}`, alt: "both on a number line" }));
    shown.replaceChildren(...rows);
    for (const node of form.querySelectorAll("button, input")) {
      node.disabled = found.isOver;
      if (node.textContent) node.setAttribute("aria-pressed", node.textContent === found.answer);
    }
  }

  const kernel = connect(
    model,
    (found) => (found.problem ? (shown.textContent = found.problem) : tell(found)),
    (isBusy) => isBusy && (shown.textContent = BUSY),
  );
  const stopFolding = foldStill(el);
  return () => {
    stopFolding();
    kernel.end();
  };
}

export default { render };
