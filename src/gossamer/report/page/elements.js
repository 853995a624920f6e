// Elements and numbers.
// Text from records enters the page through `append` and `setAttribute` only, which never parse it as markup.

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

/** The legend mark of method `number`: a line in its colour and dashes. */
function swatch(number) {
  return svg("svg", { class: "swatch", width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { class: look(number), x1: 1, x2: 29, y1: 6, y2: 6 }));
}

const look = (number) => `line c${number % 7} d${number % 5}`;
