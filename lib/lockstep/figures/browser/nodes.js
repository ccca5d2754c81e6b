// Nodes of the page, and how they look. Text is only ever set as textContent: it is data.

// Colours come from where the model stands, so that they fit the theme of JupyterLab, of an editor or
// of a plain page; what is not ink is ink, diluted.
const STYLE = `
.lockstep-play{--line:color-mix(in srgb,currentColor 35%,transparent);
  --faint:color-mix(in srgb,currentColor 16%,transparent);
  --soft:color-mix(in srgb,currentColor 7%,transparent);
  --paper:var(--jp-layout-color0,Canvas);
  color:var(--jp-content-font-color1,inherit);
  font:var(--jp-code-font-size,13px)/1.4 system-ui,sans-serif;
  box-sizing:border-box;width:100%;padding:4px;container-type:inline-size}
.lockstep-play *{box-sizing:border-box}
.lockstep-play .ls-title{font-weight:600;overflow-wrap:anywhere}
.lockstep-play .ls-bar{display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center;padding:4px 0}
.lockstep-play label{display:inline-flex;gap:6px;align-items:center}
.lockstep-play button,.lockstep-play select,.lockstep-play input[type=text]{font:inherit;color:inherit;
  background:var(--soft);border:1px solid var(--line);border-radius:4px;padding:2px 9px;margin:0}
.lockstep-play select option{color:CanvasText;background:Canvas}
.lockstep-play button{cursor:pointer}
.lockstep-play button:disabled{opacity:.45;cursor:default}
.lockstep-play input[type=range]{margin:0;accent-color:var(--jp-brand-color1,#1976d2);min-width:0}
.lockstep-play :focus-visible{outline:2px solid #56B4E9;outline-offset:1px}
.lockstep-play svg{display:block;max-width:100%;font:12px system-ui,sans-serif}
.lockstep-play svg[role=img]{width:100%;height:auto}
.lockstep-play svg text{fill:currentColor}
.lockstep-play .ls-scrub{flex:1 1 120px}
.lockstep-play .ls-said{min-height:2.8em;padding:4px 0;overflow-wrap:anywhere}
.lockstep-play .ls-counts{display:flex;flex-wrap:wrap;gap:2px 18px;padding:2px 0;
  font-variant-numeric:tabular-nums}
.lockstep-play .ls-sliders{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(24em,100%),1fr));
  gap:4px 24px;padding:4px 0}
.lockstep-play .ls-sliders label{display:grid;grid-template-columns:8.5em 1fr 6em;gap:8px}
.lockstep-play .ls-sliders label>span{text-align:right}
.lockstep-play .ls-sliders output{font-variant-numeric:tabular-nums;white-space:nowrap}
.lockstep-play .ls-beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26em,100%),1fr));
  gap:4px 24px}
.lockstep-play .ls-beside>div{min-width:0}
.lockstep-play .ls-legend{display:flex;flex-wrap:wrap;gap:2px 16px;padding:2px 0}
.lockstep-play .ls-legend span{display:inline-flex;gap:6px;align-items:center}
.lockstep-play .ls-foot{font-size:calc(12em/13);padding-top:2px;overflow-wrap:anywhere}
.lockstep-play [hidden]{display:none!important}
@container (max-width:25.4em){
  .lockstep-play .ls-sliders label{grid-template-columns:7em 1fr 4.5em;gap:5px}
}
`;

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties))
    if (key in node && key !== "role" && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  // JupyterLab's keys would run cells and delete them. It looks at the focused node itself first.
  node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children);
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export const makeRoot = () =>
  make("div", { className: "lockstep-play" }, make("style", { textContent: STYLE }));

export function makeButton(text, label, does) {
  const node = make("button", { type: "button", textContent: text, title: label, onclick: does });
  node.setAttribute("aria-label", label);
  return node;
}

export function makeChoice({ name, values }, value, does) {
  const options = values.map((one) => make("option", { value: String(one), textContent: String(one) }));
  const select = make("select", { onchange: () => does(values[select.selectedIndex]) }, ...options);
  select.value = String(value);
  select.setAttribute("aria-label", name);
  return make("label", {}, name, select);
}
