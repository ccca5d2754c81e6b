// Numbers and names in words.

export function inWords(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(4))} ${unit}`;
  return `${Number(ns.toPrecision(4))} ns`;
}

export function bytesInWords(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]])
    if (bytes >= size) return `${Number((bytes / size).toPrecision(4))} ${unit}`;
  return `${bytes} bytes`;
}

export function ranksInWords(ranks) {
  const runs = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`)).join(", ");
}

export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
export const count = (number, what) => `${number.toLocaleString("en-GB")} ${what}${number === 1 ? "" : "s"}`;

// A kernel's name without its template and arguments; other names as they are.
export function shortName(name) {
  const cut = name.search(/[<(]/);
  if (cut < 4) return name;
  const head = name.slice(0, cut).replace(/^void /, "");
  return head.includes("::") ? head.split("::").at(-1) || name : head;
}
