// Pictures without controls: the graph with its weights, the data of each client, and fitted rates.

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

/** One bar per client, one colour per label. */
function drawShares(shares) {
  if (shares.sentence) return el("p", { class: "quiet" }, shares.sentence);
  const { labels, counts } = shares, width = 340, height = 200, box = { left: 44, top: 12, right: width - 4, bottom: height - 38 };
  const most = Math.max(1, ...counts.map((row) => row.reduce((a, b) => a + b, 0)));
  const up = (count) => box.bottom - (count / most) * (box.bottom - box.top);
  const step = (box.right - box.left) / counts.length, wide = counts.length > 80 ? step : step * 0.84;
  const middle = (client) => box.left + (client + 0.5) * step;
  const paint = (k) => (labels.length <= 8 ? { class: `share s${k}` } : { class: "share", fill: ramp(k / (labels.length - 1)) });
  const bars = counts.map((row, client) => {
    let below = 0;
    return row.map((count, k) => {
      if (!count) return null;
      const from = up(below), to = up((below += count));
      return svg("rect", { ...paint(k), x: middle(client) - wide / 2, width: wide, y: to, height: Math.max(0, from - to) },
        svg("title", {}, `Client ${client}: ${show(count)} rows of label ${labels[k]}`));
    });
  });
  const lines = [0, Math.round(most / 2), most].map((count) => [
    svg("line", { class: "grid", x1: box.left, x2: box.right, y1: up(count), y2: up(count) }),
    svg("text", { x: box.left - 8, y: up(count) + 4, "text-anchor": "end" }, show(count))]);
  const every = Math.ceil(counts.length / 12);
  const names = counts.map((_, client) => (client % every ? null : svg("text", { x: middle(client), y: box.bottom + 16, "text-anchor": "middle" }, String(client))));
  const picture = svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Rows by client and label: ${counts.length} clients, ${labels.length} labels` },
    lines, bars, names, svg("text", { class: "name", x: box.right, y: height - 4, "text-anchor": "end" }, "client"));
  const key = labels.map((label, k) => el("li", {},
    svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { ...paint(k), width: 12, height: 12, rx: 2 })), label));
  return el("figure", { class: "shares" }, el("figcaption", {}, el("strong", {}, "Data"), " rows per client and label"),
    picture, el("ul", { class: "key" }, key));
}

/** One study of rates: the points of each method, the fitted line, and the line that the theory predicts. */
function drawRates(what, fits) {
  const first = fits[0], logx = !first.is_exponential, drawn = fits.filter((fit) => fit.points.length);
  if (!drawn.length) return null;
  const u = (a) => (logx ? Math.log10(a) : a * Math.LOG10E);
  const series = [{}], tables = [];
  const add = (points, look) => {
    const sorted = [...points].sort((p, q) => p[0] - q[0]);
    tables.push([sorted.map((p) => p[0]), sorted.map((p) => p[1])]);
    series.push(look);
  };
  fits.forEach((fit, index) => {
    if (!fit.points.length) return;
    const logs = fit.points.map(([a, b]) => [u(a), Math.log10(b)]);
    const middle = [0, 1].map((k) => logs.reduce((sum, p) => sum + p[k], 0) / logs.length);
    const xs = fit.points.map(([a]) => a), ends = [Math.min(...xs), Math.max(...xs)];
    const line = (slope) => ends.map((a) => [a, 10 ** (middle[1] + slope * (u(a) - middle[0]))]);
    if (fit.theory !== null) add(line(fit.theory), { auto: false, stroke: css("--soft"), width: 1.5, dash: dashes([3, 4]), points: { show: false } });
    add(line(fit.slope), { ...lineOf(index), auto: false });
    add(fit.points, { width: 0, stroke: css(`--c${index % 7}`), points: { show: true, size: 7, width: 0, fill: css(`--c${index % 7}`) } });
  });
  const node = el("div", { class: "canvas still", role: "img", "aria-label": what || "rates" });
  putChart(node, {
    width: 350, height: 280, series, cursor: { show: false },
    scales: { x: scaleOf(logx, 0.06), y: scaleOf(true, 0.06) }, axes: [axis("x", first.x || "x", logx), axis("y", first.y || "y", true)],
  }, uPlot.join(tables));
  return el("figure", { class: "rates" },
    el("figcaption", {}, el("strong", {}, what || first.study || "Rates")),
    node,
    el("ul", { class: "key" },
      fits.map((fit, index) => el("li", {}, swatch(index), `${fit.method || "?"}: slope ${show(fit.slope)}`)),
      fits.some((fit) => fit.theory !== null) ? el("li", {}, svg("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
        svg("line", { class: "theory", x1: 1, x2: 29, y1: 6, y2: 6 })), "theory") : null));
}
