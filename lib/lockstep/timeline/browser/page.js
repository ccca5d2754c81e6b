// A timeline in a page of its own, which holds the columns, packed (see offline.py).

import { openScene } from "./scene.js";
import { mount } from "./timeline.js";

async function unpack(node) {
  const packed = Uint8Array.from(atob(node.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const packed = document.querySelectorAll("script[type='text/plain']");
const [text, ...buffers] = await Promise.all([...packed].map(unpack));
mount(document.getElementById("timeline"), openScene(new TextDecoder().decode(text), buffers));
