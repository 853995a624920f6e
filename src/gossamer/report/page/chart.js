// Charts by uPlot: axes, ticks, colours and sizes that all of them share.

const DASHES = [[], [8, 4], [9, 3, 2, 3], [2, 3], [9, 3, 2, 3, 2, 3]];
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

/** The value of a CSS variable now; uPlot asks again at each drawing, so that light, dark and print all fit. */
const css = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dashes = (pattern) => pattern.map((length) => length * devicePixelRatio);
const lineOf = (number) => ({ stroke: css(`--c${number % 7}`), width: 2, dash: dashes(DASHES[number % 5]), pxAlign: 0, points: { show: false } });

/** Ticks of a logarithmic axis: powers of ten; 1-2-5 over less than two decades; even steps over less than one. */
function logTicks(low, high, most) {
  const decades = Math.log10(high / low), span = high - low, found = [];
  if (decades < 1) {
    const power = 10 ** Math.floor(Math.log10(span / most)), step = power * ([1, 2, 5].find((m) => span / (m * power) <= most) ?? 10);
    for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(Number((n * step).toPrecision(12)));
    return found;
  }
  const multiples = decades < 2 ? [1, 2, 5] : [1], every = Math.max(1, Math.ceil(decades / most));
  const first = Math.ceil(Math.floor(Math.log10(low)) / every) * every;
  for (let power = first; power <= Math.log10(high); power += every) {
    for (const m of multiples) found.push(Number((m * 10 ** power).toPrecision(12)));
  }
  return found.filter((value) => value >= low && value <= high);
}

function tickLabels(splits, log, step) {
  const powers = splits.map(Math.log10), near = (power) => Math.abs(power - Math.round(power)) < 1e-9, largest = splits.at(-1);
  if (log && powers.length > 1 && powers.every(near)) return powers.map((power) => raised(Math.round(power)));
  return splits.map((value) => (value !== 0 && largest >= 1e4 ? human(value, "") : show(value, Math.max(3, Math.ceil(Math.log10(Math.abs(value) / step)) + 1))));
}

/** One axis: its name, its ticks and its grid. */
function axis(scale, label, log) {
  const across = scale === "x";
  const space = across ? 72 : 46;
  return {
    scale, label, font: FONT, labelFont: FONT, labelSize: 22, labelGap: 2, space, size: across ? 28 : 60, gap: 6,
    stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, border: { show: true, stroke: css("--soft"), width: 1 },
    ...(log ? {
      splits: (u, _, low, high) => logTicks(low, high, Math.max(3, u.bbox[across ? "width" : "height"] / devicePixelRatio / space)),
      filter: (_, splits) => splits,
    } : {}),
    values: (_, splits, __, ___, step) => tickLabels(splits, log, step),
  };
}

/** A scale with some air around the data, never of no width. */
function scaleOf(log, air) {
  const widen = (_, low, high) => {
    if (low === null || high === null) return [null, null];
    if (log) {
      const factor = low === high ? 2 : (high / low) ** air;
      return [low / factor, high * factor];
    }
    const extra = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * air;
    return [low - extra, high + extra];
  };
  return { time: false, distr: log ? 3 : 1, range: widen };
}

/** Put a chart into a node, with `options` beside what all charts share; the node leads to it as `node.chart`. */
function putChart(node, options, data) {
  const chart = new uPlot({ legend: { show: false }, ...options }, data, node);
  chart.batch(() => {});  // drawn at once
  node.chart = chart;
  return chart;
}

for (const media of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(media).addEventListener("change", () => {
    for (const node of document.querySelectorAll(".canvas")) node.chart?.batch(() => node.chart.redraw(false));
  });
}
