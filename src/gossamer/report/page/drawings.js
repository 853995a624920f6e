// Pictures that stand still: a graph with its weights, who holds what, and fitted rates.

/** Clients and edges, as wide as their weight; negative weights dashed. */
function drawNetwork(network) {
  if (network.sentence) return el("p", { class: "quiet" }, network.sentence);
  const size = 340, reach = size / 2 - 26, clients = network.places.length;
  const at = network.places.map(([x, y]) => [size / 2 + x * reach, size / 2 + y * reach]);
  const ys = at.map(([, y]) => y), top = Math.min(...ys) - 20, bottom = Math.max(...ys) + 20;
  const weights = network.edges.map(([, , w]) => w), largest = Math.max(1e-12, ...weights.map(Math.abs));
  const widest = Math.max(1, Math.min(7, 60 / Math.sqrt(Math.max(1, weights.length))));
  const width = (w) => Math.max(0.4, (widest * Math.abs(w)) / largest).toFixed(2);
  const radius = Math.max(2.5, Math.min(13, 150 / clients));
  const edges = network.edges.map(([i, j, w]) => svg("line", {
    class: w < 0 ? "edge negative" : "edge", x1: at[i][0], y1: at[i][1], x2: at[j][0], y2: at[j][1], "stroke-width": width(w),
  }, svg("title", {}, `Clients ${i} and ${j}: weight ${show(w)}`)));
  const dots = at.map(([x, y], i) => svg("g", {},
    svg("circle", { class: "client", cx: x, cy: y, r: radius }),
    radius >= 9 ? svg("text", { class: "inside", x, y: y + 4, "text-anchor": "middle" }, String(i)) : null,
    svg("title", {}, `Client ${i} keeps ${show(network.self[i])} for itself`)));
  const label = `Graph of ${clients} clients and ${weights.length} edges`;
  const sample = (w, text) => el("li", {}, svg("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { class: w < 0 ? "edge negative" : "edge", x1: 1, x2: 29, y1: 6, y2: 6, "stroke-width": width(w) })), text);
  const low = Math.min(...weights), high = Math.max(...weights), same = high - low < 1e-9;
  return el("figure", { class: "network" },
    el("figcaption", {}, el("strong", {}, "Graph"), ` ${clients} clients, ${weights.length} edges, weights as widths`),
    svg("svg", { class: "picture", viewBox: `0 ${top} ${size} ${bottom - top}`, role: "img", "aria-label": label }, edges, dots),
    weights.length ? el("ul", { class: "key" }, sample(high, same ? `every weight ${show(high)}` : `largest weight ${show(high)}`),
      same ? null : sample(low, `${low < 0 ? "lowest, below zero:" : "smallest"} ${show(low)}`)) : null);
}

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function ramp(share) {
  const place = share * (VIRIDIS.length - 1), k = Math.min(VIRIDIS.length - 2, Math.floor(place)), rest = place - k;
  return `rgb(${VIRIDIS[k].map((v, i) => Math.round(v + (VIRIDIS[k + 1][i] - v) * rest)).join(" ")})`;
}

/** One bar a client, one colour a label. */
function drawShares(shares) {
  if (shares.sentence) return el("p", { class: "quiet" }, shares.sentence);
  const { labels, counts } = shares, width = 340, height = 210, box = { left: 44, top: 30, right: width - 4, bottom: height - 40 };
  const totals = counts.map((row) => row.reduce((a, b) => a + b, 0)), most = Math.max(1, ...totals);
  const y = { at: scale(false, 0, most * 1.02, box.bottom, box.top), marks: linearTicks(0, most, 4) };
  const step = (box.right - box.left) / counts.length, wide = counts.length > 80 ? step : step * 0.84;
  const every = Math.ceil(counts.length / 12);
  const x = {
    at: (client) => box.left + (client + 0.5) * step,
    marks: { major: [], minor: [], label: String },
  };
  const few = labels.length <= 8;
  const paint = (k) => (few ? { class: `share s${k}` } : { class: "share", fill: ramp(labels.length > 1 ? k / (labels.length - 1) : 0) });
  const bars = counts.map((row, client) => {
    let below = 0;
    return row.map((count, k) => {
      if (!count) return null;
      const from = y.at(below), to = y.at((below += count));
      return svg("rect", { ...paint(k), x: x.at(client) - wide / 2, width: wide, y: to, height: Math.max(0, from - to) },
        svg("title", {}, `Client ${client}: ${show(count)} rows of label ${labels[k]}`));
    });
  });
  const names = counts.map((_, client) => (client % every ? null
    : svg("text", { class: "tick across", x: x.at(client), y: box.bottom + 16, "text-anchor": "middle" }, String(client))));
  const picture = svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Rows by client and label: ${counts.length} clients, ${labels.length} labels` },
    drawAxes(box, x, y, { x: "client", y: "rows" }), bars.flat(), names);
  const key = labels.map((label, k) => el("li", {},
    svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { ...paint(k), width: 12, height: 12, rx: 2 })), label));
  return el("figure", { class: "shares" }, el("figcaption", {}, el("strong", {}, "Who holds what"), " rows by client and label"),
    picture, el("ul", { class: "key" }, key));
}

/** One question: the points of each method, the fitted line, and the line that the theory expects. */
function drawRates(what, fits) {
  const first = fits[0], logx = !first.is_exponential;
  const u = (a) => (logx ? Math.log10(a) : a * Math.LOG10E), back = (v) => (logx ? 10 ** v : v / Math.LOG10E);
  const dots = fits.flatMap((fit) => fit.points);
  if (!dots.length) return null;
  const width = 350, height = 270, box = { left: 48, top: 32, right: width - 10, bottom: height - 48 };
  const side = (k, log) => widen(log, Math.min(...dots.map((p) => p[k])), Math.max(...dots.map((p) => p[k])), 0.06);
  const [xs, ys] = [side(0, logx), side(1, true)];
  const x = { at: scale(logx, ...xs, box.left, box.right), marks: ticks(logx, ...xs, 5) };
  const y = { at: scale(true, ...ys, box.bottom, box.top), marks: ticks(true, ...ys, 5) };
  const clip = `rates-${drawRates.count = (drawRates.count ?? 0) + 1}`;
  const inside = svg("g", { "clip-path": `url(#${clip})` });
  fits.forEach((fit, index) => {
    if (!fit.points.length) return;
    const logs = fit.points.map(([a, b]) => [u(a), Math.log10(b)]);
    const middle = [0, 1].map((k) => logs.reduce((sum, p) => sum + p[k], 0) / logs.length);
    const ends = [Math.min(...logs.map((p) => p[0])), Math.max(...logs.map((p) => p[0]))];
    const line = (slope, attributes) => {
      const [p, q] = ends.map((v) => [x.at(back(v)).toFixed(1), y.at(10 ** (middle[1] + slope * (v - middle[0]))).toFixed(1)]);
      return svg("path", { ...attributes, d: `M${p.join(" ")}L${q.join(" ")}` });
    };
    if (fit.theory !== null) inside.append(line(fit.theory, { class: "theory" }));
    inside.append(line(fit.slope, { class: `curve ${look(index)}` }));
    for (const [a, b] of fit.points) inside.append(svg("circle", { class: `dot c${index % 7}`, cx: x.at(a), cy: y.at(b), r: 3.5 }));
  });
  return el("figure", { class: "rates" },
    el("figcaption", {}, el("strong", {}, what || first.study || "Rates")),
    svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": what || "rates" },
      svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top }))),
      drawAxes(box, x, y, { x: first.x || "x", y: first.y || "y" }), inside),
    el("ul", { class: "key" },
      fits.map((fit, index) => el("li", {}, swatch(index), `${fit.method || "?"}: slope ${show(fit.slope)}`)),
      fits.some((fit) => fit.theory !== null) ? el("li", {}, svg("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
        svg("line", { class: "theory", x1: 1, x2: 29, y1: 6, y2: 6 })), "theory") : null));
}
