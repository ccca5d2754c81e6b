// Who holds memory in a state, as a table: by kind and line, the most bytes first.

import { make } from "./nodes.js";
import { binary, count, holders } from "./stack.js";

const LINES = 6; // of each kind, while it is folded

export const shareOf = (part, whole) => `${((100 * part) / Math.max(whole, 1)).toFixed(0)} %`;

// swatch: of a kind. Returns a table.
export function tableOf(stack, group, swatch) {
  const total = stack.totals[group];
  const cells = (tag, ...texts) => texts.map((text) => make(tag, { textContent: text }));
  const bodies = holders(stack, group).map(({ kind, bytes, lines }) => {
    const name = make("th", { scope: "rowgroup" }, swatch(kind), ` ${stack.kinds[kind].label}`);
    const head = make("tr", { className: "ls-kind" }, name, ...cells("td", "", binary(bytes), shareOf(bytes, total)));
    const shown = lines.length === LINES + 1 ? lines.length : LINES; // one more line fits, too
    const rows = lines.slice(0, shown).map(({ line, count: many, bytes: held }) => {
      const where = line < 0 ? "smaller allocations, drawn as one" : stack.lines[line];
      const row = make("th", { scope: "row", className: "ls-line", textContent: where });
      return make("tr", {}, row, ...cells("td", line < 0 ? "" : count(many), binary(held), shareOf(held, total)));
    });
    const more = lines.slice(shown);
    if (more.length) {
      const held = more.reduce((sum, one) => sum + one.bytes, 0);
      const many = more.reduce((sum, one) => sum + one.count, 0);
      const row = make("th", { scope: "row", className: "ls-line", textContent: `${more.length} more lines` });
      rows.push(make("tr", {}, row, ...cells("td", count(many), binary(held), shareOf(held, total))));
    }
    return make("tbody", {}, head, ...rows);
  });
  const head = ["kind, line", "allocations", "bytes", "share"].map((text) =>
    make("th", { scope: "col", textContent: text }),
  );
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), ...bodies);
}
