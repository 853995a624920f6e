// The curves of one experiment: what is drawn, against what, for which methods, and in which range.

const LOG_FIRST = { grad_norm: true, consensus: true, bits: true, bits_nominal: true };
const END_SLACK = 10;
const BANDS = "Lines are means over the seeds; bands show the range from the smallest to the largest.";

class Plot {
  constructor(group, names) {
    this.methods = group.methods;
    this.names = names;
    this.off = new Set();
    const some = (side, name) => this.methods.some((method) => method[side][name]);
    this.ys = Object.keys(names.measured).filter((name) => some("y", name));
    this.xs = Object.keys(names.across).filter((name) => some("x", name));
    this.choose("y", this.ys[0]);
    this.choose("x", this.xs[0]);
    this.node = this.layOut();
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("blur", () => this.chart?.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => (this.chart ? this.chart.setSize(this.size()) : this.draw())).observe(this.frame);
  }

  choose(side, name) {
    this[side] = name;
    this[side + "Log"] = Boolean(LOG_FIRST[name]);
    if (side === "x") this.zoom = null;
    if (this.node) this.refresh();
  }

  refresh() {
    for (const node of this.node.querySelectorAll("[data-axis]")) press(node, this[node.dataset.axis] === node.dataset.name);
    for (const node of this.node.querySelectorAll("[data-log]")) press(node, this[node.dataset.log + "Log"]);
    this.draw();
  }

  // ------------------------------------------------------------------------------------------------------- structure

  layOut() {
    const choices = (side, all, label) => all.map((name) =>
      button(label(name), name === this[side], () => this.choose(side, name), { "data-axis": side, "data-name": name }));
    const strip = (title, kind, children) =>
      el("div", { class: "choice " + kind, role: "group", "aria-label": title }, el("span", { class: "title" }, title), el("div", { class: "strip" }, children));
    const log = (side) => button(`log ${side}`, this[side + "Log"], () => { this[side + "Log"] = !this[side + "Log"]; this.refresh(); },
      { "data-log": side, title: `Logarithmic ${side} axis` });
    this.frame = el("div", { class: "canvas", tabindex: 0, role: "group", "aria-label": "Curves; arrow keys read values, + and - zoom, 0 shows all" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.legend = el("ul", { class: "legend" });
    this.place = el("p", { class: "place", "aria-live": "polite" });
    this.values = this.methods.map((method, index) => this.legendItem(method, index));
    const lost = this.methods.flatMap((method) => method.diverged);
    return el("div", { class: "plot" },
      el("div", { class: "controls" },
        strip("Show", "wide", choices("y", this.ys, (name) => this.names.measured[name].name)),
        strip("Against", "", choices("x", this.xs, (name) => this.names.across[name])),
        strip("Scale", "", [log("y"), log("x")]),
        strip("Zoom", "", [
          button("−", null, () => this.zoomBy(2), { "data-zoom": "out", "aria-label": "Zoom out" }),
          button("+", null, () => this.zoomBy(0.5), { "data-zoom": "in", "aria-label": "Zoom in" }),
          button("reset", null, () => this.reset(), { "data-zoom": "reset" }),
        ])),
      this.frame,
      this.place,
      this.legend,
      el("p", { class: "hint mouse" }, "Drag over the curves to zoom; double-click to reset. Click a method to hide it. " + BANDS),
      el("p", { class: "hint fingers" }, "Touch the curves to read values; pinch to zoom. Touch a method to hide it. " + BANDS),
      lost.length ? el("ul", { class: "lost" }, lost.map((sentence) => el("li", {}, sentence))) : null);
  }

  legendItem(method, index) {
    const value = el("span", { class: "value" });
    const lost = method.diverged.length;
    const mark = lost ? el("span", { class: "mark" }, lost === method.seeds ? "diverged" : `${lost} of ${method.seeds} diverged`) : null;
    const node = button("", true, () => {
      this.off.has(index) ? this.off.delete(index) : this.off.add(index);
      press(node, !this.off.has(index));
      this.draw();
    }, { class: "entry", "data-method": index });
    node.append(swatch(index), el("span", { class: "label" }, method.label, mark ? " " : null, mark), value);
    this.legend.append(el("li", {}, node));
    return value;
  }

  size() {
    const width = Math.max(280, Math.round(this.frame.clientWidth));
    return { width, height: Math.round(Math.min(520, Math.max(300, width * 0.56))) };
  }

  // ------------------------------------------------------------------------------------------------------ the curves

  /** The columns of a method that these axes can show: x, mean and, over several seeds, low and high. */
  columns(method) {
    const xs = method.x[this.x], y = method.y[this.y];
    if (!xs || !y) return null;
    const fits = (value, log) => value !== null && (!log || value > 0);
    const rows = xs.map((_, k) => k).filter((k) => fits(xs[k], this.xLog));
    const mean = rows.map((k) => (fits(y.mean[k], this.yLog) ? y.mean[k] : null));
    if (mean.every((value) => value === null)) return null;
    const floor = this.yLog ? Math.min(...mean.filter((value) => value !== null)) / 10 : -Infinity;  // a band may reach down to zero
    const band = y.low ? [rows.map((k, n) => (mean[n] === null ? null : Math.max(y.low[k], floor))), rows.map((k, n) => (mean[n] === null ? null : y.high[k]))] : [];
    return [rows.map((k) => xs[k]), mean, ...band];
  }

  draw() {
    this.chart?.destroy();
    this.chart = null;
    this.frame.chart = null;
    this.shown = this.methods.map((method, index) => ({ index, method, columns: this.off.has(index) ? null : this.columns(method) })).filter(({ columns }) => columns);
    if (!this.shown.length) {
      this.frame.replaceChildren(el("p", { class: "nothing" }, "Nothing to draw on these axes."));
      this.read();
      return;
    }
    this.frame.replaceChildren(this.tip);
    const sound = this.shown.some(({ method }) => method.diverged.length < method.seeds);
    const series = [{}], bands = [];
    for (const curve of this.shown) {
      // Runs that diverged would press all others flat: they leave through the top instead.
      const auto = !sound || curve.method.diverged.length < curve.method.seeds;
      curve.at = series.length;
      series.push({ ...lineOf(curve.index), auto, method: curve.index });
      if (curve.columns.length > 2) {
        series.push({ auto, width: 0, points: { show: false } }, { auto, width: 0, points: { show: false } });
        bands.push({ series: [curve.at + 2, curve.at + 1], fill: () => css(`--c${curve.index % 7}`)() + "33" });
      }
    }
    const names = { x: this.names.across[this.x], y: this.names.measured[this.y].name };
    this.chart = putChart(this.frame, {
      ...this.size(), series, bands,
      scales: { x: scaleOf(this.xLog, 0), y: scaleOf(this.yLog, 0.05) },
      axes: [axis("x", names.x, this.xLog), axis("y", names.y, this.yLog)],
      cursor: { y: false, points: { show: (_, at) => this.dot(at) }, hover: { prox: (u, at, _, x) => this.reach(u, at, x) }, drag: { dist: 6 } },
      hooks: { setCursor: [() => this.read()], setScale: [(u, key) => key === "x" && this.zoomed(u)] },
    }, uPlot.join(this.shown.map(({ columns }) => columns)));
    this.full = [this.chart.scales.x.min, this.chart.scales.x.max];
    this.chart.root.setAttribute("role", "img");
    this.chart.root.setAttribute("aria-label", this.describe());
    this.listenToFingers(this.chart.over);
    if (this.zoom) this.setZoom(...this.zoom);
    this.read();
  }

  describe() {
    const ends = this.shown.slice(0, 12).map(({ method, columns }) => `${method.label} ends at ${measured(this.y, columns[1].at(-1))}`);
    return `${this.names.measured[this.y].name} against ${this.names.across[this.x]}: ${ends.join("; ")}`;
  }

  // ------------------------------------------------------------------------------------------------- reading values

  dot(at) {
    const curve = this.shown.find((other) => other.at === at);
    return curve && el("div", { class: `dot c${curve.index % 7}` });
  }

  /** How far from the cursor a point may lie: anywhere on its curve, but few pixels beyond the curve's ends. */
  reach(u, at, x) {
    const { columns: [xs] } = this.shown.findLast((other) => other.at <= at);
    return x >= xs[0] && x <= xs.at(-1) ? null : END_SLACK;
  }

  /** Show the values at the cursor, or the last ones when there is none. */
  read() {
    const name = this.names.measured[this.y].name, cursor = this.chart?.cursor;
    const where = cursor && cursor.left >= 0 ? this.whereText(this.chart.posToVal(cursor.left, "x")) : null;
    const rows = [];
    for (const value of this.values) value.textContent = "–";
    for (const { index, method, columns, at } of this.shown) {
      const row = where === null ? null : cursor.idxs[at];
      const [mean, low, high] = where === null ? [columns[1].at(-1)] : [0, 1, 2].map((k) => (row == null || k > columns.length - 2 ? null : this.chart.data[at + k][row]));
      this.values[index].textContent = measured(this.y, mean);
      const spread = low !== high && low !== undefined ? ` (${measured(this.y, low)} to ${measured(this.y, high)})` : "";
      if (where !== null && mean !== null) rows.push({ index, label: method.label, text: measured(this.y, mean) + spread, y: mean });
    }
    this.place.textContent = `${name} at ${where ?? "the end"}`;
    this.showTip(rows.sort((a, b) => b.y - a.y), where);
  }

  whereText(x) {
    if (this.x === "round") return `round ${Math.round(x).toLocaleString("en-GB")}`;
    return measured(this.x, x) + (this.x === "bits_nominal" ? " (as the paper counts)" : "");
  }

  showTip(rows, where) {
    this.tip.hidden = !rows.length || this.touching || this.frame.clientWidth < 560;
    if (this.tip.hidden) return;
    this.tip.replaceChildren(el("strong", {}, where), ...rows.slice(0, 14).map((row) =>
      el("div", { class: "row", "data-method": row.index }, swatch(row.index), el("span", {}, row.label), el("span", { class: "value" }, row.text))));
    const at = this.chart.cursor.left + this.chart.over.offsetLeft, width = this.tip.offsetWidth;
    this.tip.style.left = `${at + 16 + width < this.frame.clientWidth ? at + 16 : Math.max(0, at - 16 - width)}px`;
    this.tip.style.top = "12px";
  }

  // ------------------------------------------------------------------------------------------------- keys and fingers

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.chart) return;
    if (steps[event.key]) {
      const width = this.chart.over.clientWidth, { left } = this.chart.cursor;
      const to = (left < 0 ? width / 2 : left) + steps[event.key] * width * 0.02;
      this.chart.setCursor({ left: Math.max(0, Math.min(width, to)), top: 10 });
    } else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  /** uPlot knows the mouse. One finger reads values; two fingers keep hold of the values that they were put on. */
  listenToFingers(over) {
    const places = (event) => [...event.touches].map((touch) => touch.clientX - over.getBoundingClientRect().left);
    let held = [];
    const act = (event) => {
      const [p, q] = places(event);
      if (event.type === "touchstart") held = places(event).map((place) => this.chart.posToVal(place, "x"));
      this.touching = true;
      if (q === undefined) this.chart.setCursor({ left: p, top: 10 });
      else if (Math.abs(p - q) > 12) this.pinch(p, q, ...held);
    };
    over.addEventListener("touchstart", act, { passive: true });
    over.addEventListener("touchmove", act, { passive: true });
    over.addEventListener("mousemove", () => { this.touching = false; });
  }

  pinch(p, q, a, b) {
    const [place, back] = this.xLog ? [Math.log10, (v) => 10 ** v] : [(v) => v, (v) => v];
    const slope = (place(b) - place(a)) / (q - p);
    if (slope > 0) this.setZoom(back(place(a) - p * slope), back(place(a) + (this.chart.over.clientWidth - p) * slope));
  }

  // -------------------------------------------------------------------------------------------------------- the zoom

  zoomBy(factor) {
    if (!this.chart) return;
    const width = this.chart.over.clientWidth, { left } = this.chart.cursor, middle = left < 0 ? width / 2 : left;
    const [low, high] = [middle - middle * factor, middle + (width - middle) * factor].map((place) => this.chart.posToVal(place, "x"));
    this.setZoom(low, high);
  }

  setZoom(low, high) {
    const [first, last] = this.full;
    if (high > low) this.chart.batch(() => this.chart.setScale("x", { min: Math.max(low, first), max: Math.min(high, last) }));
  }

  /** Remember the range, however it was set: a redrawn chart keeps it. */
  zoomed(u) {
    const { min, max } = u.scales.x;
    if (this.full && u === this.chart) this.zoom = min <= this.full[0] && max >= this.full[1] ? null : [min, max];
  }

  reset() {
    if (this.chart) this.setZoom(...this.full);
  }
}
