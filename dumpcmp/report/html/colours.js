// Colours that carry meaning: blue within the tolerance, orange to dark red beyond it. The two ends
// are told apart by all common kinds of colour vision, and failing cells have a cross besides.
const WITHIN = [[222, 235, 247], [158, 202, 225], [66, 146, 198]];
const WITHIN_AT_NIGHT = [[28, 46, 68], [36, 84, 128], [66, 146, 198]]; // no glare on a dark page
const BEYOND = [[253, 208, 100], [236, 122, 20], [179, 40, 10], [90, 5, 30]];

function between(scale, share) {
  const place = Math.max(0, Math.min(1, share)) * (scale.length - 1);
  const low = Math.min(Math.floor(place), scale.length - 2);
  const mix = scale[low].map((part, i) => Math.round(part + (place - low) * (scale[low + 1][i] - part)));
  return `rgb(${mix.join(",")})`;
}

// The colour of an error in units of the tolerance.
function heat(ratio) {
  if (ratio === null) return null;
  const within = document.documentElement.dataset.theme === "dark" ? WITHIN_AT_NIGHT : WITHIN;
  if (ratio === 0) return between(within, 0);
  if (ratio === Infinity) return between(BEYOND, 1);
  const size = Math.log10(ratio);
  return size <= 0 ? between(within, 1 + size / 4) : between(BEYOND, size / 6);
}

const SERIES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];

function themed(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

// A canvas of so many CSS pixels, sharp on any screen; returns what draws on it.
function prepared(canvas, height) {
  const width = canvas.parentElement.clientWidth || 800;
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return {pen, width, height};
}

function place(tip, figure, x, y, text) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(0, Math.min(x + 12, figure.clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${y + 14}px`;
}

function swatch(colour, text) {
  const box = make("i");
  box.style.background = colour;
  return make("span", {}, box, text);
}
