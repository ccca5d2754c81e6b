// Light and dark: colours of the page, tiles of the kinds, the legend.

import { fill, mix, rgb, tileOf, word } from "../../figures/browser/colours.js";
import { make } from "./nodes.js";

const THEMES = {
  light: { ink: "#1a1a1a", muted: "#5c5c5c", line: "#d8d8d8", paper: "#ffffff", soft: "#f4f4f4" },
  dark: { ink: "#e6e6e6", muted: "#a8a8a8", line: "#3a3a3a", paper: "#111111", soft: "#1e1e1e" },
};

const THEMED_BY = ["data-jp-theme-light", "data-vscode-theme-kind"]; // of the page's body

// JupyterLab and VS Code say which theme is on; elsewhere the system does.
function themeNow() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false" ? "dark" : "light";
  if (vscodeThemeKind !== undefined) return vscodeThemeKind.endsWith("light") ? "light" : "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function dress(timeline) {
  const { scene, nodes } = timeline;
  const theme = themeNow();
  const colours = THEMES[theme];
  for (const [name, colour] of Object.entries(colours))
    nodes.root.style.setProperty(`--${name}`, colour);
  nodes.root.dataset.theme = theme;
  const ratio = Math.max(1, Math.round(devicePixelRatio));
  const tiles = tilesOf(scene.head.kinds, rgb(colours.paper), ratio);
  Object.assign(timeline, { colours, ratio, tiles });
  nodes.legend.replaceChildren(...legendOf(timeline, tiles, ratio));
  timeline.redraw();
}

function tilesOf(kinds, paper, ratio) {
  const tiles = {};
  for (const [kind, look] of Object.entries(kinds))
    tiles[kind] = {
      full: tileOf(look, paper, ratio, 0),
      dim: tileOf(look, paper, ratio, 0.78),
      tint: word(mix(rgb(look.colour), paper, 0.75)),
      colour: rgb(look.colour),
    };
  return tiles;
}

// What is in lanes can be hidden there.
function legendOf({ scene: { head, rows, total }, view }, tiles, ratio) {
  const inLanes = new Set(rows.filter((row) => row.lane).flatMap((row) => row.draw.kinds));
  const shown = head.legend.map((kind) => {
    const swatch = make("canvas", { width: 24 * ratio, height: 12 * ratio, ariaHidden: "true" });
    swatch.style.cssText = "width:2em;height:1em";
    const image = new ImageData(swatch.width, swatch.height);
    const pixels = new Uint32Array(image.data.buffer);
    const all = { pixels, stride: swatch.width, ratio };
    fill(all, 0, 0, swatch.width, swatch.height, tiles[kind].full);
    swatch.getContext("2d").putImageData(image, 0, 0);
    const parts = [swatch, make("span", { textContent: head.kinds[kind].label })];
    if (!inLanes.has(kind)) return make("span", {}, ...parts);
    const button = make("button", { type: "button", title: "hide or show it in the lanes" }, ...parts);
    button.setAttribute("aria-pressed", String(!view.hidden.has(kind)));
    button.dataset.kind = kind;
    return button;
  });
  const dense = make("span", {
    className: "ls-muted",
    hidden: total < 1000,
    textContent: "where slices are narrower than a pixel: height = share of time, faint = something",
  });
  const path = make("span", { hidden: !head.path.length, textContent: "━ critical path" });
  return [...shown, path, dense];
}

export function watchTheme(timeline) {
  const { signal } = timeline;
  const change = () => dress(timeline);
  const themed = new MutationObserver(change);
  themed.observe(document.body, { attributes: true, attributeFilter: THEMED_BY });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", change, { signal });
  signal.addEventListener("abort", () => themed.disconnect());
}
