// Elements, numbers, scales and ticks: what every drawing on the page is made of.
// Text from records reaches the page through `append` and `setAttribute` alone, which never read it as markup.

const SVG_NAMES = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => build(document.createElementNS(SVG_NAMES, name), attributes, children);

function button(label, pressed, act, attributes = {}) {
  const node = el("button", { type: "button", "aria-pressed": pressed === null ? null : String(pressed), ...attributes }, label);
  node.addEventListener("click", () => act(node));
  return node;
}

const press = (node, on) => node.setAttribute("aria-pressed", String(on));

// ---------------------------------------------------------------------------------------------------------- numbers

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const raised = (power) => "10" + [...String(power)].map((sign) => RAISED[sign]).join("");
const minus = (text) => text.replace("-", "−");

/** A number for people: 0.0045, 1,200, 3.2×10⁻⁷. */
function show(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    return minus(mantissa) + "×" + raised(Number(power));
  }
  if (Number.isInteger(value)) return minus(value.toLocaleString("en-GB"));
  return minus(size >= 1000 ? Math.round(value).toLocaleString("en-GB") : String(Number(value.toPrecision(digits))));
}

/** An amount with a prefix: 1234567 bits are 1.23 Mbit. */
function human(value, unit) {
  if (value === null || value === undefined) return "–";
  const prefixes = ["", "k", "M", "G", "T"];
  let place = 0;
  while (Math.abs(value) >= 1000 && place < prefixes.length - 1) { value /= 1000; place += 1; }
  const text = Math.abs(value) >= 1e5 ? show(value) : String(Number(value.toPrecision(3)));
  return minus(text) + (unit || prefixes[place] ? " " + prefixes[place] + unit : "");
}

/** A measurement by the name of its column. */
function measured(name, value) {
  if (value === null || value === undefined) return "–";
  if (name === "round") return show(value);
  if (name.startsWith("bits")) return human(value, "bit");
  if (name.endsWith("accuracy")) return value.toFixed(3);
  if (name === "seconds" || name === "waiting" || name === "hidden") return show(value) + " s";
  return show(value);
}

// --------------------------------------------------------------------------------------------------- scales and ticks

/** A function from values to pixels, with its inverse as `back`. */
function scale(log, low, high, from, to) {
  const place = log ? Math.log10 : (value) => value;
  const a = place(low), b = place(high);
  const at = (value) => from + ((place(value) - a) / (b - a)) * (to - from);
  at.back = (pixel) => {
    const inner = a + ((pixel - from) / (to - from)) * (b - a);
    return log ? 10 ** inner : inner;
  };
  return at;
}

/** A range with some air around it, never of no width. */
function widen(log, low, high, share) {
  if (log) {
    const extra = low === high ? 0.3 : Math.log10(high / low) * share;
    return [low / 10 ** extra, high * 10 ** extra];
  }
  const extra = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * share;
  return [low - extra, high + extra];
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999) ?? 10 * power;
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9 && ticks.length < 50; n += 1) {
    ticks.push(Number((n * step).toPrecision(12)));
  }
  const places = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9) + (step / power === 2.5 ? 1 : 0));
  return { major: ticks, minor: [], label: (value) => tickText(value, places, high) };
}

function tickText(value, places, high) {
  if (value === 0) return "0";
  if (Math.abs(high) >= 1e4) return human(value, "");
  if (places > 4) return show(value, 4);
  return places ? minus(value.toFixed(places)) : show(value);
}

/** Marks for an axis: powers of ten, 1-2-5 over short ranges, even steps over very short ones. */
function ticks(log, low, high, count) {
  if (!log) return linearTicks(low, high, count);
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), decades = Math.log10(high / low);
  const inside = (value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  const every = (multiples, step = 1) => {
    const found = [];
    for (let power = first; power <= last; power += step) {
      for (const m of multiples) found.push(Number((m * 10 ** power).toPrecision(12)));
    }
    return found.filter(inside);
  };
  const minor = decades <= 6 ? every([2, 3, 4, 5, 6, 7, 8, 9]) : [];
  if (decades >= 1.7) {
    const step = Math.max(1, Math.ceil(decades / count));
    const label = (value) => raised(Math.round(Math.log10(value)));
    return { major: every([1], step), minor, label };
  }
  const few = every([1, 2, 5]);
  if (few.length >= 3) return { major: few, minor, label: (value) => (value >= 1e4 ? human(value, "") : show(value)) };
  return linearTicks(low, high, count);
}

/** Grid, marks and names of two axes around a box, and the frame of what is drawn in it. */
function drawAxes(box, x, y, names) {
  const { left, top, right, bottom } = box;
  const group = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const value of x.marks.minor) group.append(svg("line", { class: "minor", x1: x.at(value), x2: x.at(value), y1: top, y2: bottom }));
  for (const value of y.marks.minor) group.append(svg("line", { class: "minor", x1: left, x2: right, y1: y.at(value), y2: y.at(value) }));
  for (const value of x.marks.major) {
    const at = x.at(value);
    group.append(svg("line", { class: "major", x1: at, x2: at, y1: top, y2: bottom }));
    group.append(svg("text", { class: "tick across", x: at, y: bottom + 18, "text-anchor": "middle" }, x.marks.label(value)));
  }
  for (const value of y.marks.major) {
    const at = y.at(value);
    group.append(svg("line", { class: "major", x1: left, x2: right, y1: at, y2: at }));
    group.append(svg("text", { class: "tick up", x: left - 8, y: at + 4, "text-anchor": "end" }, y.marks.label(value)));
  }
  group.append(svg("path", { class: "frame", d: `M${left} ${top}V${bottom}H${right}` }));
  group.append(svg("text", { class: "name", x: right, y: bottom + 38, "text-anchor": "end" }, names.x));
  group.append(svg("text", { class: "name", x: 0, y: top - 12 }, names.y));
  return group;
}

/** The line that stands for method `number` in legends: its colour and its dashes. */
function swatch(number) {
  return svg("svg", { class: "swatch", width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { class: look(number), x1: 1, x2: 29, y1: 6, y2: 6 }));
}

const look = (number) => `line c${number % 7} d${number % 5}`;
