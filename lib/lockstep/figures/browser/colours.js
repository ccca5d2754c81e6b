// Colours and patterns. Pixels are written into an image, as words: a million small rectangles
// would be too slow.

export const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
export const mix = (a, b, share) => a.map((value, at) => Math.round(value * (1 - share) + b[at] * share));
export const word = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
export const css = (colour) => `rgb(${colour.join(" ")})`;

// Whether black ink has more contrast on it than white (WCAG 2): as in picture.py.
export function isLight(colour) {
  const [r, g, b] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179;
}

const PATTERNS = {
  "": () => false,
  "/": (x, y) => (x + y) % 8 < 3,
  "\\": (x, y) => (x - y + 64) % 8 < 3,
  "-": (x, y) => y % 4 === 1,
  "|": (x) => x % 4 === 1,
  ".": (x, y) => (x % 4 === 1 && y % 4 === 1) || (x % 4 === 3 && y % 4 === 3),
  x: (x, y) => (x + y) % 8 < 2 || (x - y + 64) % 8 < 2,
};

// A tile of 8 × 8 CSS pixels, as words of an image.
export function tileOf(look, paper, ratio, dim) {
  const size = 8 * ratio;
  const base = mix(rgb(look.colour), paper, dim);
  const ink = mix(base, paper, 0.45);
  const tile = new Uint32Array(size * size);
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++) {
      const on = PATTERNS[look.pattern](Math.floor(x / ratio), Math.floor(y / ratio));
      tile[y * size + x] = word(on ? ink : base);
    }
  return tile;
}

// A rectangle of device pixels, with a tile that lies still. image: {pixels, stride, ratio}.
export function fill({ pixels, stride, ratio }, x0, y0, x1, y1, tile) {
  const size = 8 * ratio;
  const mask = size - 1;
  const isPowerOfTwo = (size & mask) === 0;
  for (let y = y0; y < y1; y++) {
    const line = (y % size) * size;
    const at = y * stride;
    for (let x = x0; x < x1; x++) pixels[at + x] = tile[line + (isPowerOfTwo ? x & mask : x % size)];
  }
}
